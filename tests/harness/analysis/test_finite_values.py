"""Parameters that stay NaN behind a finite loss; models with infinities from the beginning are right jobs."""

import pytest

from harness.analysis.command.finite_values import find_not_finite
from harness.judging.summarize import summarize
from harness.report import github, junit, wording
from mecefo_runtime.system.command_records import StateChecksums
from mecefo_runtime.system.events import Event
from tests.harness.analysis.test_attempts import KILLED, STARTUP, STEP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

INJECTED = 5.5


def look(rank, step, not_finite=None, *, values=None):
    """What a rank told at second `step`; without `not_finite` as an older version does."""
    fields = {"sums": "00000001", "tensors": ["weight"]}
    if not_finite is not None:
        fields |= {
            "not_finite": not_finite,
            "not_finite_values": sum(not_finite.values()) if values is None else values,
        }
    return StateChecksums.of(
        Event("state_checksums", "rank", step, float(step), 9, rank=rank, step=step, fields=fields)
    )


def found(*looks, **how):
    return find_not_finite(looks, INJECTED, **how)


def test_what_is_not_finite_up_to_the_last_look_is_named():
    looks = [look(0, step, {}) for step in range(1, 7)] + [look(0, step, {"weight": 12}) for step in range(7, 10)]
    (one,) = found(*looks)
    assert (one.rank, one.tensor, one.values, one.since_step) == (0, "weight", 12, 7)


@pytest.mark.parametrize(
    "looks",
    [
        # Infinities from the beginning: a mask that is a parameter.
        [look(0, step, {"mask": 6}) for step in range(1, 10)],
        # Finite again at the last look: the script restored them.
        [*(look(0, step, {}) for step in (1, 7)), look(0, 8, {"weight": 3}), look(0, 9, {})],
        # Nothing to compare with.
        [look(0, step, {"weight": 3}) for step in (7, 8)],
        # A version that did not look.
        [look(0, step) for step in range(1, 10)],
    ],
)
def test_no_alarm(looks):
    assert found(*looks) == ()


def test_a_mask_does_not_hide_what_is_lost_beside_it():
    looks = [look(0, 1, {"mask": 6}), look(0, 8, {"mask": 6, "weight": 1})]
    assert [(one.tensor, one.values) for one in found(*looks)] == [("weight", 1)]
    # Of a tensor whose name is left out only the number of values is known.
    looks = [look(0, 1, {"mask": 6}), look(0, 8, {"mask": 6}, values=9)]
    assert [(one.tensor, one.values) for one in found(*looks)] == [(None, 3)]


def test_a_rank_that_is_gone_holds_nothing_at_the_end():
    looks = [look(0, 1, {}), look(1, 1, {}), look(1, 7, {"weight": 2}), look(0, 9, {})]
    assert [one.rank for one in found(*looks)] == [1]
    assert found(*looks, newest_start_seconds=8.0) == ()


def spoilt(*, loss=1.0, values=512, until=30, world_size=1, fault="set-nan"):
    """A job of one rank whose loss stays `loss`, and of whose weight so many values are NaN from step 13 to `until`."""
    log = Log()
    log.events[1].fields["incidents"][0] |= {"fault": fault, "target": "rank=0"}
    log.at += STARTUP
    log.tell("attempt_started", attempt_number=1, world_size=world_size)
    log.tell("process_started", role="rank", started_pid=10, started_rank=0, rank_attempt=1)
    for step in range(1, 31):
        if step == KILLED:
            log.tell("injected", step=step, incident=0, fault=fault, is_loss=False, ranks=[0], target="rank=0")
            log.tell("verified", step=step, incident=0, evidence={"summary": "taken in"})
            log.tell("undone", step=step, incident=0)
            log.at += STEP / 100
        log.steps(1, step, step, loss=loss if KILLED <= step <= until else 1.0)
        lost = {"weight": values} if KILLED <= step <= until and values else {}
        fields = {"sums": "00000001", "not_finite_values": sum(lost.values()), "not_finite": lost}
        log.events.append(Event("state_checksums", "rank", log.at, log.at, 10, rank=0, step=step, fields=fields))
    return log.end()


def test_weights_that_stay_nan_behind_a_finite_loss_fail_a_job_of_one_rank():
    summary = summarized(spoilt())
    assert (summary["verdict"], summary["exit_code"], summary["parameters_not_finite"]) == ("fail", 1, 512)
    assert "512 more values of rank 0's parameters (first in weight) are not finite" in summary["reasons"][0]
    assert "from step 13 to the end" in summary["reasons"][0]


def test_weights_that_are_finite_again_are_no_failure():
    summary = summarized(spoilt(until=20))
    assert (summary["verdict"], summary["parameters_not_finite"]) == ("pass", 0), summary["reasons"]
    assert summary["incidents"][0]["recovered"] is True


@pytest.mark.parametrize(
    ("how", "code"),
    [({}, "parameters_not_finite"), ({"loss": float("nan"), "values": 0}, "loss_not_finite")],
)
def test_such_an_incident_has_not_recovered_anywhere(how, code):
    events = spoilt(**how)
    events[0].fields["gates"] = ["recovery_seconds < 60", "progress_seconds < 60"]
    summary = summarize(events)
    (incident,) = summary.incidents
    assert (incident.recovered, incident.violations, incident.recovery_seconds) == (False, (code,), None)
    assert incident.continued_seconds is not None and summary.unrecovered_incidents == 1
    assert summary.verdict == "fail"
    answers = {gate.expression: gate.passed for gate in summary.gates}
    assert answers == {
        "recovery_seconds < 60": None,
        "progress_seconds < 60": None,
        "unrecovered_incidents == 0": False,
    }
    assert (wording.recovery_words(incident) or "").startswith("Training continued")
    assert 'failure message="Training continued' in junit.render(summary)
    assert "Training continued" in github.markdown(summary, None)


@pytest.mark.parametrize(("step", "recovered"), [(8, [False, True]), (20, [False, False])])
def test_only_what_came_before_the_numbers_were_corrupted_has_recovered(step, recovered):
    events = spoilt(loss=float("nan"), values=0)
    at = next(event for event in events if event.kind == "step_committed" and event.step == step).monotonic_seconds
    killed = {"incident": 1, "fault": "pause-process", "ranks": [0], "target": "rank=0"}
    events += [
        Event("injected", "x", at, at, 1, step=step, fields=killed),
        Event("verified", "x", at, at, 1, step=step, fields={"incident": 1, "evidence": {"summary": "stopped"}}),
    ]
    assert [one.recovered for one in summarize(events).incidents] == recovered
