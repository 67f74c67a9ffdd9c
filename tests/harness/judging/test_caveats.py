"""What a reader must know beside the figures: checkpoints that were not saved."""

from dataclasses import replace

import pytest

from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit


def caveats_with(words, events):
    return [caveat for caveat in summarized(events)["caveats"] if words in caveat]


def checkpoints(events, failing, reason="OSError: [Errno 28] No space left on device"):
    """A checkpoint after each tenth step, those of the steps `failing` not saved."""
    found = []
    for event in events:
        found.append(event)
        if event.kind == "step_committed" and event.job == "main" and event.step % 10 == 0:
            is_failing = event.step in failing
            fields = {"reason": reason, "was_skipped": False} if is_failing else {"units": [], "blocking_seconds": 0.0}
            found.append(
                replace(event, kind="checkpoint_failed" if is_failing else "checkpoint_written", fields=fields)
            )
    return found


def test_checkpoints_that_all_fail_are_told():
    (caveat,) = caveats_with("could not be saved", checkpoints(run(faults=()), range(10, 70, 10)))
    assert caveat == (
        "6 of 6 checkpoints could not be saved. The first was that of step 10: OSError: [Errno 28] No space left on "
        "device. A job that needs one of them goes back to its start."
    )


def test_checkpoints_that_fail_while_a_fault_is_active_are_told_as_such():
    (caveat,) = caveats_with("could not be saved", checkpoints(run(faults=(Fault(step=25),)), (30, 60)))
    assert caveat.startswith("2 of 6 checkpoints could not be saved, 1 of them while a fault was active.")
    assert caveat.endswith("goes back to an older one, or to its start.")


@pytest.mark.parametrize(("failing", "number"), [((), 0), ((30, 60), 2), (None, None)], ids=["all", "some", "no saves"])
def test_checkpoints_that_fail_are_a_figure_and_a_gate(failing, number):
    events = run(faults=(Fault(step=25),), gates=["checkpoints_failed == 0"])
    summary = summarized(events if failing is None else checkpoints(events, failing))
    assert summary["checkpoints_failed"] == number
    (gate,) = (gate for gate in summary["gates"] if gate["expression"] == "checkpoints_failed == 0")
    assert gate["passed"] is (None if number is None else number == 0)


def test_saved_checkpoints_need_no_caveat():
    assert not caveats_with("could not be saved", checkpoints(run(), ()))
