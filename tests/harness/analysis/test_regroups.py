from dataclasses import replace

import pytest

from harness.analysis.regroups import OwnStalls, Stall, StateRestore, coordinator_downs, read_stalls
from harness.analysis.state import build
from mecefo_runtime.job.config import JOB_FAILED
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse
from tests.harness import synthetic
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit


def event(kind: str, at: float, **fields: object) -> Record:
    return parse(Event(kind, "coordinator", at, at, 1, fields=fields))


def test_a_loss_and_a_rejoin_are_two_stalls():
    loss, rejoin = build(run()).stalls
    assert (loss.is_loss, rejoin.is_loss) == (True, False)
    assert loss.ended_seconds - loss.began_seconds == pytest.approx(0.010 + 0.020 + 0.030)
    assert rejoin.transfer_seconds == synthetic.TRANSFER_SECONDS


def test_where_the_state_came_from_is_what_the_coordinator_said_and_the_steps_since_then_are_lost():
    sources = {"snapshot": {"pieces": 6, "num_bytes": 600, "seconds": 0.1}}
    passed_over = {"peer": "every rank that held state was lost"}
    told = {"rung": "parity", "sources": sources, "passed_over": passed_over}
    events = [e for e in run() if e.job == MAIN_JOB]
    regroup = next(e for e in events if e.kind == "regrouped" and e.fields["reason"] == "loss")
    restored = replace(regroup, step=12, fields={**regroup.fields, **told})
    timeline = build([restored if e is regroup else e for e in events])
    at, seconds = regroup.monotonic_seconds, synthetic.TRANSFER_SECONDS
    expected = StateRestore(at, "parity", 12, 7, seconds, sources, passed_over)
    assert [stall.restore for stall in timeline.stalls] == [expected, None]
    assert timeline.incidents[0].restore == expected


@pytest.mark.parametrize(
    ("kind", "fields", "rung"),
    [
        ("checkpoint_restored", {"folder": "x"}, "checkpoint"),
        ("snapshot_restored", {"nodes": [0], "rebuilt_nodes": []}, "snapshot"),
        ("snapshot_restored", {"nodes": [0], "rebuilt_nodes": [1]}, "parity"),
    ],
)
def test_of_an_older_log_the_rung_is_known_all_the_same(kind, fields, rung):
    events = [event("detected", 3.0), event(kind, 3.5, **fields), event("regrouped", 4.0, reason="loss")]
    assert [stall.restore.rung for stall in read_stalls(events, (), 10.0)] == [rung]
    # What a job began with is nothing that it went back to.
    events = [event(kind, 1.0, **fields), event("regrouped", 2.0, reason="start"), *events[::2]]
    assert [stall.restore for stall in read_stalls(events, (), 10.0)] == [None]


def test_the_first_layout_is_no_stall():
    assert build(run(faults=())).stalls == ()


def test_a_loss_during_a_rejoin_makes_the_stall_a_loss():
    events = [
        event("layout", 1.0, reason="rejoin"),
        event("detected", 2.0, lost=[1]),
        event("layout", 3.0, reason="loss"),
        event("regrouped", 4.0, reason="loss", group_seconds=0.5, transfer_seconds=0.5),
    ]
    (stall,) = read_stalls(events, (), 10.0)
    assert (stall.began_seconds, stall.ended_seconds, stall.is_loss, stall.transfer_seconds) == (1.0, 4.0, True, 0.5)


def test_a_regroup_whose_beginning_was_not_told_lasts_as_long_as_it_says():
    (stall,) = read_stalls([event("regrouped", 4.0, reason="loss", group_seconds=0.5, transfer_seconds=1.0)], (), 10.0)
    assert (stall.began_seconds, stall.transfer_seconds) == (2.5, 1.0)


def test_a_transfer_is_never_longer_than_its_stall():
    events = [event("detected", 3.0), event("regrouped", 4.0, reason="loss", group_seconds=0.5, transfer_seconds=7.0)]
    assert read_stalls(events, (), 10.0)[0].transfer_seconds == 1.0


def test_a_stall_that_nothing_ends_lasts_to_the_end_of_the_job():
    (stall,) = read_stalls([event("detected", 3.0)], (), 10.0)
    assert (stall.ended_seconds, stall.regrouped_seconds) == (10.0, None)


def test_training_that_goes_on_ends_a_stall():
    events = [e for e in run() if e.job == MAIN_JOB and e.kind not in ("layout", "regrouped", "isolated")]
    stall = build(events).stalls[0]
    began = next(e.fields["began_monotonic"] for e in events if e.kind == "step_committed" and e.step == 20)
    assert (stall.ended_seconds, stall.regrouped_seconds) == (began, None)


def test_the_time_without_a_coordinator():
    ((since, until),) = build(run(faults=(Fault(role="coordinator"),))).coordinator_downs
    assert until - since == pytest.approx(synthetic.RESTART_SECONDS)


@pytest.mark.parametrize("code", [0, JOB_FAILED], ids=["job completed", "job failed"])
def test_a_coordinator_that_exits_on_its_own_is_missed_and_one_that_ends_with_the_job_is_not(code):
    gone = event("process_exited", 3.0, role="coordinator", exit=-9)
    last = event("process_exited", 5.0, role="coordinator", exit=code)
    rank = event("process_exited", 1.0, role="rank", exit=-9)
    assert coordinator_downs([rank, gone, event("coordinator_restarted", 4.0), last], 10.0) == ((3.0, 4.0),)
    assert coordinator_downs([gone], 10.0) == ((3.0, 10.0),)
    assert coordinator_downs([event("process_exited", 3.0, role="coordinator", exit=1)], 10.0) == ((3.0, 10.0),)


@pytest.mark.parametrize(
    ("detected", "is_own"), [(9.5, True), (10.5, True), (11.0, True), (20.0, False), (None, False)]
)
def test_a_regroup_that_was_over_before_a_fault_was_detected_is_that_of_the_loss_that_brought_it_about(
    detected, is_own
):
    stall = Stall(10.0, 11.0, 11.0, 0.0, is_loss=True)
    detections = {1: 10.2} if detected is None else {0: detected, 1: 10.2}
    causes = sorted(detections.values())
    assert list(OwnStalls(detections.get(0), causes, [stall]).between(9.0, 12.0)) == ([stall] if is_own else [])
    assert list(OwnStalls(detections[1], causes, [stall]).between(9.0, 12.0)) == [stall]
    assert list(OwnStalls(detections[1], causes, [stall]).between(11.1, 12.0)) == []


def test_a_regroup_that_nobody_was_lost_for_may_be_of_any_fault():
    stall = Stall(10.0, 11.0, 11.0, 0.0, is_loss=False)
    assert list(OwnStalls(20.0, [20.0], [stall]).between(9.0, 12.0)) == [stall]
