"""Two runs fail in the same way where they have a cause in common: what `chaos shrink` compares."""

import pytest

from harness.judging.failure import failure_of
from harness.judging.summarize import summarize
from mecefo_runtime.system.reason import Reason
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit

HARD = "throughput_drop <= 1%"
DIED = {"faults": (Fault(recovers=False),), "job_fails": True}


def failure(**knobs):
    return failure_of(summarize(run(**knobs)))


@pytest.mark.parametrize(
    ("knobs", "verdict", "causes"),
    [
        ({"gates": [HARD]}, "fail", {Reason("gate_failed", gate=HARD)}),
        (DIED, "fail", {Reason("job_died"), Reason("gate_failed", gate="unrecovered_incidents == 0")}),
        ({"ended": "halted"}, "halted", {Reason("halt_condition", condition="training_loss > 20")}),
        ({"residue": (4711,)}, "dirty", {Reason("left_behind")}),
    ],
)
def test_a_failed_run_has_its_causes(knobs, verdict, causes):
    found = failure(**knobs)
    assert (found.verdict, found.causes) == (verdict, causes)
    assert str(found).startswith(f"{verdict} (")


@pytest.mark.parametrize("knobs", [{}, {"faults": (Fault(verified=False),)}, {"ended": "failed"}])
def test_of_what_did_not_fail_there_is_none(knobs):
    assert failure(**knobs) is None


def test_those_with_a_cause_in_common_are_alike():
    died, died_later = failure(**DIED), failure(**{**DIED, "faults": (Fault(step=30, recovers=False),)})
    assert died.is_like(died_later) and died_later.is_like(died)
    assert not died.is_like(failure(gates=[HARD]))
    assert not died.is_like(failure(residue=(4711,))) and not died.is_like(None)
