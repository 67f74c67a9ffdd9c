"""The figures of a job that ended all its ranks and went back to a checkpoint, from a log whose every time is known."""

from __future__ import annotations

import pytest

from harness.analysis.state import build
from harness.judging.always_checked import GATES
from harness.judging.gates import builtin_gates
from harness.judging.summarize import summarize
from harness.report import history, wording
from harness.report.curves import trace
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.model.data import checksum, samples_of_step
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from tests.harness.summaries import summarized
from tests.planning import layout_of

pytestmark = pytest.mark.unit

SAMPLES = 4
STEP_SECONDS = 0.1
LOST_AT, CHECKPOINT, LAST = 12, 8, 20
INJECTED = 1.0 + (LOST_AT - 1) * STEP_SECONDS + 0.04
CLUSTER = Cluster(nodes=1, gpus_per_node=2, data_parallel=2, pipeline=1, num_layers=2, num_microbatches=4)
LAYOUT = to_json(layout_of("exact", CLUSTER, range(2)))
DETECTED, REPAIRED, REGROUPED, TRANSFER = INJECTED + 0.01, INJECTED + 1.0, INJECTED + 2.0, 0.3


def event(kind: str, at: float, *, step: int | None = None, source: str = "coordinator", **fields: object) -> Event:
    return Event(kind, source, at, at, 1, step=step, fields=fields)


def committed(step: int, began: float, epoch: int) -> Event:
    end = began + STEP_SECONDS
    return event(
        "step_committed",
        end,
        step=step,
        source="rank",
        epoch=epoch,
        loss=3.0,
        tokens=100,
        samples=SAMPLES,
        samples_checksum=checksum(samples_of_step(step, SAMPLES)),
        began_monotonic=began,
        committed_monotonic=end,
        repeated=False,
    )


def log(strategy: str = "checkpoint") -> list[Event]:
    experiment = {"name": "x", "twin": False, "job": {"strategy": strategy}}
    affected = {"incident": 0, "fault": "kill-process", "ranks": [1], "is_loss": True, "target": "rank=1"}
    resumed = REGROUPED
    after = [*range(CHECKPOINT + 1, LOST_AT), *range(LOST_AT, LAST + 1)]
    end = resumed + len(after) * STEP_SECONDS
    return [
        event("run_started", 0.0, source="conductor", experiment=experiment, gates=[]),
        event("incidents_planned", 0.0, incidents=[{"incident": 0, "fault": "kill-process", "step": LOST_AT}]),
        event("job_started", 0.5, source="conductor", num_ranks=2, steps=LAST, samples_per_step=SAMPLES),
        event("layout", 0.6, epoch=1, reason="start", members=[0, 1], layout=LAYOUT),
        event("regrouped", 0.9, epoch=1, reason="start", members=[0, 1]),
        *(committed(step, 1.0 + (step - 1) * STEP_SECONDS, 1) for step in range(1, LOST_AT)),
        event("injected", INJECTED, step=LOST_AT, phase="forward", **affected),
        event("verified", INJECTED + 0.005, incident=0, evidence="gone"),
        event("detected", DETECTED, epoch=1, lost=[1], how="supervisor"),
        event("restarting", DETECTED + 0.02, epoch=1, ranks=[0, 1]),
        event("isolated", DETECTED + 0.05),
        event("repair_started", REPAIRED, incident=0, ranks=[1], nodes=[]),
        event("restart_started", REPAIRED, ranks=[0, 1]),
        event("layout", REGROUPED - 0.4, epoch=2, reason="loss", members=[0, 1], layout=LAYOUT),
        event("checkpoint_restored", REGROUPED - 0.4, step=CHECKPOINT, folder="x"),
        event(
            "regrouped", REGROUPED, epoch=2, reason="loss", members=[0, 1], group_seconds=0.1, transfer_seconds=TRANSFER
        ),
        event("rejoined", REGROUPED, epoch=2, ranks=[1], step=CHECKPOINT),
        *(committed(step, resumed + index * STEP_SECONDS, 2) for index, step in enumerate(after)),
        event("job_ended", end, source="conductor", outcome="completed"),
        event("residue", end, source="conductor", processes=[], undo_pending=[], left=[]),
        event("run_ended", end, source="conductor", reason="completed"),
    ]


def test_every_second_is_told_and_none_twice():
    summary = summarized(log())
    badput = summary["badput_seconds"]
    num_redone = LOST_AT - 1 - CHECKPOINT
    assert badput["restart"] == pytest.approx(REGROUPED - DETECTED - TRANSFER)
    assert badput["transfer"] == pytest.approx(TRANSFER)
    assert badput["detection"] == pytest.approx(0.01)
    # The step in flight when it affected, and those that had been committed before.
    assert badput["repeated_work"] == pytest.approx(0.04 + num_redone * STEP_SECONDS)
    assert badput["regroup"] == badput["degraded_speed"] == 0
    assert summary["productive_seconds"] == pytest.approx(LAST * STEP_SECONDS)
    total = summary["productive_seconds"] + sum(badput.values())
    assert total == pytest.approx(summary["wall_clock_seconds"])


def test_steps_are_done_again_and_no_sample_is_lost():
    summary = summarized(log())
    assert (summary["steps_lost"], summary["steps_repeated"], summary["samples_lost"]) == (3, 3, 0)
    assert summary["verdict"] == "pass", summary["reasons"]


def test_recovery_is_to_the_first_step_and_progress_to_the_first_new_one():
    (incident,) = summarized(log())["incidents"]
    assert incident["recovery_seconds"] == pytest.approx(REGROUPED - INJECTED + STEP_SECONDS)
    assert incident["progress_seconds"] == pytest.approx(REGROUPED - INJECTED + 4 * STEP_SECONDS)
    assert incident["phase_order_valid"]


def test_nothing_is_gained_until_the_job_is_where_it_was():
    (incident,) = build(log()).incidents
    assert incident.lifted == pytest.approx(REGROUPED + 3 * STEP_SECONDS)
    assert summarized(log())["throughput_drop_ratio"] == pytest.approx(1.0)


def test_without_a_restart_the_repair_lifts_it():
    events = [event for event in log() if event.kind != "restarting"]
    (incident,) = build(events).incidents
    assert incident.lifted == REPAIRED
    assert summarized(events)["badput_seconds"]["restart"] == 0


def test_a_restart_that_never_comes_to_a_step_lasts_to_the_end():
    events = [event for event in log() if event.monotonic_seconds <= REGROUPED - 0.4]
    events += [event("job_failed", 9.0, reason="no step"), event("run_ended", 9.5, reason="completed")]
    summary = summarized(events)
    assert summary["throughput_drop_ratio"] == pytest.approx(1.0)
    assert (summary["verdict"], summary["unrecovered_incidents"]) == ("fail", 1)


def test_the_caveat_says_what_is_quicker_here():
    assert any("with an external launcher a job waits longer" in caveat for caveat in summarized(log())["caveats"])


def test_who_takes_over_loses_no_step_but_those_that_nobody_living_had():
    """What was saved says how many that may be."""
    events = log("mecefo")
    without = [one for one in events if one.kind not in ("checkpoint_restored", "restarting")]
    went_back, did_not = ([gate["expression"] for gate in summarized(one)["gates"]] for one in (events, without))
    assert "steps_lost == 0" not in went_back and "steps_lost == 0" in did_not
    assert summarized(events)["steps_lost"] == summarized(without)["steps_lost"] == LOST_AT - 1 - CHECKPOINT


def test_a_strategy_is_held_to_what_it_promises():
    assert builtin_gates("mecefo", "mecefo") == builtin_gates("mecefo", "no-such-strategy") == GATES["built-in"]
    assert builtin_gates("mecefo", "checkpoint") == ("samples_lost == 0", "unrecovered_incidents == 0")
    assert builtin_gates("mecefo", "mecefo", went_back=True) == builtin_gates("mecefo", "checkpoint")
    assert builtin_gates("command", None) == ("unrecovered_incidents == 0",)


def test_what_is_drawn_knows_that_all_ranks_were_away():
    curves = trace(log())
    for first, second in curves.lanes.values():
        assert first.until_seconds <= DETECTED + 0.02 - 0.5 + 1e-9
        assert second.since_seconds == pytest.approx(REGROUPED - 0.5)
    back = next(mark for mark in curves.marks if mark.kind == "rejoined")
    assert back.step == LOST_AT, "on an axis of steps not before its fault"
    (affected,) = history.read(log()).affected
    assert affected.until_seconds == pytest.approx(REGROUPED - 0.5)


def test_the_report_tells_when_it_was_where_it_had_been():
    (incident,) = summarize(log()).incidents
    told = wording.how_it_recovered(incident)
    assert told is not None and told.startswith(f"It continued from step {CHECKPOINT + 1}, which had been committed")
