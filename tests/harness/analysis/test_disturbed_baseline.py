"""A baseline in which processes were killed from outside is not fault-free: nothing is compared with it."""

from __future__ import annotations

from typing import Any

import pytest

from mecefo_runtime.system.events import BASELINE_JOB, Event
from tests.harness.summaries import summarized
from tests.harness.synthetic import Kill, run

pytestmark = pytest.mark.unit

COMPARED = ("baseline_loss", "loss_deviation_ratio", "loss_curve_max_deviation_ratio")
GATE = "loss_deviation_ratio <= 1%"
OUTSIDE = Kill(10, 5, job=BASELINE_JOB)


def of_twin(kind: str, at: float, **fields: Any) -> Event:
    return Event(kind, "conductor", 0.0, at, 1, job=BASELINE_JOB, fields=fields)


def after_step(events: list[Event], step: int) -> float:
    """Just after the baseline committed `step`."""
    return next(
        event.monotonic_seconds + 0.0001
        for event in events
        if (event.job, event.kind, event.step) == (BASELINE_JOB, "step_committed", step)
    )


def with_baseline_ending(events: list[Event], outcome: str) -> list[Event]:
    """As if the baseline had ended so."""
    kept = [event for event in events if (event.job, event.kind) != (BASELINE_JOB, "job_ended")]
    ended = next(event for event in events if (event.job, event.kind) == (BASELINE_JOB, "job_ended"))
    return [*kept, of_twin("job_ended", ended.monotonic_seconds, outcome=outcome, steps_committed=60)]


def disturbances(found: dict[str, Any]) -> list[str]:
    return [caveat for caveat in found["caveats"] if "disturbed" in caveat]


def test_nothing_is_compared_with_a_baseline_that_lost_a_rank():
    found = summarized(run(kills=[OUTSIDE], gates=[GATE]))
    assert {found[key] for key in COMPARED} == {None}
    assert disturbances(found) == [
        "Nothing is compared with the fault-free baseline, which was disturbed itself: rank 5 was lost after step 9 "
        "(killed by SIGKILL)."
    ]
    assert (found["verdict"], found["exit_code"]) == ("inconclusive", 5)
    (undecided,) = (gate for gate in found["gates"] if gate["passed"] is None)
    assert undecided["expression"] == GATE
    assert undecided["reason"].endswith("or it was disturbed: the caveats say which")


def test_a_disturbed_baseline_is_no_loss_of_the_job():
    found = summarized(run(kills=[OUTSIDE]))
    assert (found["verdict"], found["unplanned_losses"]) == ("pass", [])
    quiet = summarized(run())
    for key in ("false_accusations", "diagnosis_precision_ratio", "badput_seconds", "final_loss"):
        assert found[key] == quiet[key], key


def test_an_undisturbed_baseline_is_compared_with():
    found = summarized(run(gates=[GATE]))
    assert None not in {found[key] for key in COMPARED}
    assert (found["verdict"], disturbances(found)) == ("pass", [])


def test_a_baseline_that_lost_its_coordinator_or_a_supervisor_says_so():
    events = run()
    died = of_twin("process_exited", after_step(events, 20), role="coordinator", exited_pid=7, exit=-9)
    (said,) = disturbances(summarized([*events, died]))
    assert "the coordinator was lost after step 20 (killed by SIGKILL)" in said
    (said,) = disturbances(summarized(run(kills=[Kill(10, 5, job=BASELINE_JOB, with_supervisor=True)])))
    assert "ranks 4 and 5 and the supervisor of their node were lost after step 9 (killed by SIGKILL)" in said


def test_a_baseline_that_failed_is_none():
    events = run()
    failed = of_twin("job_failed", after_step(events, 30), reason="no step was committed for 60 s")
    found = summarized(with_baseline_ending([*events, failed], "failed"))
    assert found["loss_deviation_ratio"] is None
    (said,) = disturbances(found)
    assert said.endswith("it failed: no step was committed for 60 s.")


def test_what_the_tool_itself_ends_of_a_baseline_disturbs_nothing():
    events = run()
    # One that is stopped: its coordinator is killed.
    last = after_step(events, 60)
    killed = of_twin("process_exited", last, role="coordinator", exited_pid=7, exit=-9)
    assert disturbances(summarized(with_baseline_ending([*events, killed], "stopped"))) == []
    # One that found no idle time, and is begun again.
    began = next(event for event in events if (event.job, event.kind) == (BASELINE_JOB, "layout"))
    starved = of_twin("process_exited", began.monotonic_seconds - 0.01, role="coordinator", exited_pid=7, exit=-9)
    assert disturbances(summarized([*events, starved])) == []


def test_a_loss_after_which_a_stopped_baseline_trained_on_counts():
    assert disturbances(summarized(with_baseline_ending(run(kills=[OUTSIDE]), "stopped"))) != []
