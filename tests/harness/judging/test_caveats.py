"""What a reader must know beside the figures: losses of the baseline, and incidents that were active together."""

from dataclasses import replace

import pytest

from mecefo_runtime.system.events import TWIN_JOB
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, Kill, run, shifted

pytestmark = pytest.mark.unit

ON_LOSS = "loss_deviation <= 50%"
TOGETHER = "were active together"


def caveats_with(words, events):
    return [caveat for caveat in summarized(events)["caveats"] if words in caveat]


def test_a_loss_of_the_baseline_is_told_and_leaves_what_is_compared_with_it_open():
    summary = summarized(run(gates=[ON_LOSS], twin_kills=[Kill(step=30, rank=3)]))
    (loss,) = summary["twin_unplanned_losses"]
    assert (loss["ranks"], loss["step"], loss["exit_codes"]) == ([3], 29, [-9])
    assert any("Of the fault-free baseline: Rank 3 was lost" in caveat for caveat in summary["caveats"])
    (gate,) = [gate for gate in summary["gates"] if gate["expression"] == ON_LOSS]
    assert gate["passed"] is None
    assert summary["verdict"] == "inconclusive"
    # The job itself lost nothing but by its fault.
    assert (summary["unplanned_losses"], summary["badput_seconds"]["unplanned"]) == ([], 0.0)


def test_a_loss_of_the_baseline_changes_no_verdict_that_does_not_rest_on_it():
    assert summarized(run(twin_kills=[Kill(step=30, rank=3)]))["verdict"] == "pass"


def test_a_baseline_without_losses_needs_no_caveat():
    summary = summarized(run(gates=[ON_LOSS]))
    assert (summary["verdict"], summary["twin_unplanned_losses"]) == ("pass", [])
    assert not [caveat for caveat in summary["caveats"] if "baseline:" in caveat]


def test_processes_of_a_baseline_that_chaos_stopped_are_no_losses():
    events = [
        shifted(event, outcome="stopped") if event.kind == "job_ended" and event.job == TWIN_JOB else event
        for event in run(twin_kills=[Kill(step=30, rank=3)])
    ]
    assert summarized(events)["twin_unplanned_losses"] == []


def test_incidents_that_were_active_together_are_named_with_the_time():
    both = (Fault(step=20, repair_steps=20), Fault(step=30, node=2, repair_steps=20))
    (caveat,) = caveats_with(TOGETHER, run(faults=both))
    assert caveat.startswith("Incidents 0 and 1 were active together for 1.")
    assert caveat.endswith("counts for incident 1, injected last.")


def test_incidents_apart_need_no_caveat():
    apart = (Fault(step=15, repair_steps=5), Fault(step=40, node=2, repair_steps=5))
    assert not caveats_with(TOGETHER, run(faults=apart))


@pytest.mark.parametrize("unverified", [0, 1])
def test_an_incident_without_effect_is_active_with_no_other(unverified):
    both = [Fault(step=20, repair_steps=20), Fault(step=30, node=2, repair_steps=20)]
    both[unverified] = replace(both[unverified], verified=False)
    summary = summarized(run(faults=both))
    assert not [reason for reason in summary["reasons"] if "broke down" in reason]
    assert summary["caveats"] and not [caveat for caveat in summary["caveats"] if TOGETHER in caveat]


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


def test_saved_checkpoints_need_no_caveat():
    assert not caveats_with("could not be saved", checkpoints(run(), ()))
