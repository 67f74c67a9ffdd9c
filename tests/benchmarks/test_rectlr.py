import pytest

from benchmarks._machine import Machine
from benchmarks.rectlr import AIM, COVERED, REORDERED, report, time_losses, to_document
from mecefo_runtime.stacks.rulers import largest_redundancy

pytestmark = pytest.mark.unit

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")


def test_every_loss_up_to_the_wipe_out_is_timed():
    timings, endured = time_losses(12, largest_redundancy(12), 3)
    assert len(timings[COVERED]) + len(timings[REORDERED]) == sum(endured)
    assert len(endured) == 3 and min(endured) >= largest_redundancy(12) - 1


@pytest.mark.parametrize(("seconds", "verdict"), [(0.001, "median met"), (0.02, "median NOT MET")])
def test_the_aim_is_judged_by_all_calls(seconds, verdict):
    found = {AIM: ({COVERED: [0.0001], REORDERED: [seconds, seconds]}, [400])}
    assert verdict in report(found, MACHINE)
    (size,) = to_document(found, MACHINE)["sizes"]
    assert size["losses_endured"] == [400] and size["cpu_seconds"][REORDERED]["median"] == seconds
