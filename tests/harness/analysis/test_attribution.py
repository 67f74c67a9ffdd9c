"""Whose a loss is: a fault's that explains it, or nobody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.analysis.state import build
from mecefo_runtime.system.events import Event
from tests.harness.summaries import summarized
from tests.harness.synthetic import DETECT_SECONDS, HOLD_SECONDS, Fault, Kill, run

pytestmark = pytest.mark.unit

SLOW = (Fault(kind="slow-rank", lasts_steps=10),)
GATES = ("recovery_seconds max < 5", "throughput_drop <= 60%")


def told(kind: str, at: float, step: int | None = None, **fields: Any) -> Event:
    return Event(kind, "injector", 0.0, at, 1, step=step, fields=fields)


def injected(incident: int, at: float, ranks: Sequence[int], **fields: Any) -> Event:
    return told("injected", at, incident=incident, ranks=list(ranks), target="link=2-3", **fields)


def committed(began: float, at: float, step: int = 1) -> Event:
    return told("step_committed", at, step, began_monotonic=began, committed_monotonic=at)


def detected(at: float, rank: int, how: str = "supervisor") -> Event:
    return told("detected", at, lost=[rank], how=how)


def owner(events: Sequence[Event], rank: int, at: float) -> int | None:
    (loss,) = (loss for loss in build(events).losses if (loss.lost, loss.at) == (rank, at))
    return loss.incident


def summary_of(*kills: Kill, faults: Sequence[Fault] = SLOW, **knobs: Any) -> dict[str, Any]:
    return summarized(run(faults=faults, kills=kills, gates=GATES, **knobs))


# ---- what it does to a run's figures ----


def test_a_rank_that_dies_when_the_fault_is_over_is_not_charged_to_it():
    quiet, found = summary_of(), summary_of(Kill(40, 5))
    assert (found["verdict"], found["exit_code"]) == ("pass", 0), found["reasons"]
    (loss,) = found["unplanned_losses"]
    assert (loss["ranks"], loss["step"], loss["exit_codes"], loss["mixed_with"]) == ([5], 39, [-9], [])
    assert loss["detection_seconds"] == pytest.approx(DETECT_SECONDS)
    (caveat,) = (caveat for caveat in found["caveats"] if "explains" in caveat)
    assert caveat.startswith("Rank 5 was lost after step 39 (killed by SIGKILL), which no fault explains.")
    # Nothing of it is the incident's.
    for key in ("diagnosis", "detection_seconds", "phases_seconds", "recovery_seconds"):
        assert found["incidents"][0][key] == quiet["incidents"][0][key], key
    assert found["throughput_drop_ratio"] == pytest.approx(quiet["throughput_drop_ratio"])
    assert found["false_accusations"] == 0
    assert found["num_steps_after"] == len(range(30, 40))
    assert found["badput_seconds"]["unplanned"] > 0
    assert found["incidents"][0]["badput_seconds"]["unplanned"] == 0
    books = [found["productive_seconds"], *found["badput_seconds"].values()]
    assert sum(books) == pytest.approx(found["wall_clock_seconds"])


def test_a_rank_that_dies_while_a_fault_of_others_is_in_force_cannot_be_told_from_it():
    found = summary_of(Kill(25, 5))
    assert found["verdict"] == "inconclusive"
    assert any("Rank 5" in reason and "incident 0" in reason for reason in found["reasons"])
    assert found["unplanned_losses"][0]["mixed_with"] == [0]
    # A gate that fails of both is no failure of the job during the fault.
    assert summarized(run(faults=SLOW, kills=[Kill(25, 5)], gates=["goodput >= 99%"]))["verdict"] == "inconclusive"


def test_a_fault_that_comes_before_the_job_is_past_a_loss_cannot_be_told_from_it():
    events = run(faults=[Fault(step=21)], kills=[Kill(20, 7)])
    resumed = build(events).unplanned[0].resumed
    assert build(events).unplanned[0].mixed_with == ()
    early = [
        event if event.kind != "injected" else told("injected", resumed - 0.001, 20, **event.fields) for event in events
    ]
    assert build(early).unplanned[0].mixed_with == (0,)


def test_a_rank_that_dies_before_any_fault_leaves_the_fault_its_own_figures():
    found = summary_of(Kill(8, 7), faults=[Fault(step=30)])
    assert found["verdict"] == "pass", found["reasons"]
    assert [loss["ranks"] for loss in found["unplanned_losses"]] == [[7]]
    (incident,) = found["incidents"]
    assert incident["diagnosis"]["score"] == "right"
    assert incident["detection_seconds"] == pytest.approx(DETECT_SECONDS)
    # The speed before the fault is that of the job without the rank.
    assert found["step_seconds"] == pytest.approx(0.125)


def test_a_rank_that_dies_beside_ranks_that_stay_away_is_told_from_them():
    found = summary_of(Kill(40, 7), faults=[Fault(repair_steps=None)])
    assert found["verdict"] == "pass", found["reasons"]
    assert found["incidents"][0]["diagnosis"]["score"] == "right"
    assert found["unplanned_losses"][0]["mixed_with"] == []


def test_a_job_that_dies_of_another_loss_has_not_failed_under_the_fault():
    events = run(faults=SLOW, kills=[Kill(40, 5)])
    gone = next(event for event in events if event.kind == "detected")
    died = told("job_failed", gone.monotonic_seconds + 0.001, reason="no replica can be made whole")
    kept = [event for event in events if event.monotonic_seconds <= gone.monotonic_seconds or event.job != "main"]
    ended = [told("job_ended", died.monotonic_seconds + 0.1, outcome="failed", steps_committed=39)]
    ended += [event for event in events if event.kind in ("residue", "run_ended")]
    found = summarized([*kept, died, *ended])
    assert found["verdict"] == "inconclusive"
    assert any("did not survive" in reason and "Rank 5" in reason for reason in found["reasons"])


def test_two_ranks_that_die_together_are_one_loss_and_two_apart_are_two():
    assert [loss["ranks"] for loss in summary_of(Kill(40, 5), Kill(40, 1))["unplanned_losses"]] == [[1, 5]]
    assert [loss["ranks"] for loss in summary_of(Kill(40, 5), Kill(50, 1))["unplanned_losses"]] == [[5], [1]]


def test_the_time_of_a_loss_is_from_the_commit_before_it_to_the_step_after_it():
    found = summary_of(Kill(40, 5, back_at=50), faults=())
    assert found["unplanned_losses"][0]["rejoined"]
    assert found["badput_seconds"]["regroup"] == found["badput_seconds"]["repeated_work"] == 0
    assert found["badput_seconds"]["unplanned"] > 0.05 + HOLD_SECONDS


# ---- the rule ----


def test_a_fault_that_goes_on_explains_the_loss_of_its_ranks_until_a_step_after_its_end_is_committed():
    slow = [injected(0, 10.0, [2, 3], goes_on=True), committed(11.0, 12.0), told("undone", 20.0, incident=0)]
    later = [committed(19.0, 21.0, 2), committed(22.0, 23.0, 3)]
    for at, is_its in ((11.5, True), (20.5, True), (22.5, True), (24.0, False)):
        assert (owner([*slow, *later, detected(at, 3)], 3, at) == 0) is is_its, at
    assert owner([*slow, detected(15.0, 1)], 1, 15.0) is None
    assert owner([*slow, detected(9.0, 3)], 3, 9.0) is None


def test_a_fault_that_takes_ranks_explains_their_loss_until_they_are_back():
    kill = [injected(0, 10.0, [2, 3], is_loss=True), detected(10.5, 2), committed(11.0, 12.0)]
    # A node that is given time to end goes long after the fault.
    assert owner([*kill, detected(30.0, 3)], 3, 30.0) == 0
    back = [*kill, told("rejoined", 40.0, ranks=[2])]
    assert owner([*back, detected(50.0, 2)], 2, 50.0) is None
    assert owner([*back, detected(50.0, 3)], 3, 50.0) == 0
    # One that was seen to kill nobody is over as others are.
    unseen = [injected(0, 10.0, [2], is_loss=True), told("unverified", 15.0, incident=0), committed(16.0, 17.0)]
    assert owner([*unseen, detected(50.0, 2)], 2, 50.0) is None


def test_numbers_that_were_corrupted_may_cost_a_rank_its_place_at_any_time_later():
    flip = [injected(0, 10.0, [2]), committed(11.0, 12.0)]
    assert owner([*flip, detected(50.0, 2, "health")], 2, 50.0) == 0
    assert owner([*flip, detected(50.0, 2)], 2, 50.0) is None
    stale = [injected(0, 10.0, [2], goes_on=True), told("undone", 11.0, incident=0), committed(12.0, 13.0)]
    assert owner([*stale, detected(50.0, 2, "health")], 2, 50.0) == 0
    # An error of the device ends the process before its next step.
    assert owner([injected(0, 10.0, [2]), detected(11.5, 2), committed(12.0, 13.0)], 2, 11.5) == 0


@pytest.mark.parametrize("how", ["peers", "health"])
def test_whom_the_job_sends_away_under_a_fault_is_its_answer_to_it(how):
    events = [injected(0, 10.0, [2, 3], goes_on=True), detected(11.0, 1, how)]
    timeline = build([*events, told("rejoined", 12.0, ranks=[1])])
    assert timeline.unplanned == ()
    assert (timeline.incidents[0].detected, timeline.incidents[0].rejoined) == (11.0, None)
    # A link that somebody else cut, when no fault is at work.
    assert build([committed(1.0, 2.0), detected(11.0, 1, how)]).unplanned[0].ranks == (1,)


def test_ranks_that_a_later_fault_lost_are_not_brought_back_by_an_earlier_one():
    # Neither takes ranks away by itself: what is cut off is sent away by the job.
    slow, cut = injected(0, 10.0, [2, 3], goes_on=True), injected(1, 20.0, [2, 3], goes_on=True)
    over = [told("undone", 30.0, incident=0), told("undone", 31.0, incident=1)]
    gone = [committed(11.0, 12.0), detected(22.0, 2, "peers")]
    slowed, cut_off = build([slow, cut, *gone, *over, told("rejoined", 32.0, ranks=[2])]).incidents
    assert (slowed.detected, slowed.rejoined) == (None, None)
    assert (cut_off.detected, cut_off.rejoined) == (22.0, 32.0)


def test_after_a_restart_of_all_ranks_those_that_were_lost_are_there():
    events = [injected(0, 10.0, [2], is_loss=True), detected(10.5, 2), told("regrouped", 15.0, members=[0, 1, 2, 3])]
    assert owner([*events, detected(50.0, 2)], 2, 50.0) is None


@pytest.mark.parametrize("kind", ["aborted", "halted", "interrupted", "job_failed"])
def test_what_the_tool_ends_itself_is_no_loss(kind):
    ended = told("process_exited", 20.0, role="coordinator", exited_pid=7, exit=-9)
    assert build([told(kind, 19.0), ended]).unplanned == ()
    assert len(build([ended, told(kind, 21.0)]).unplanned) == 1
    # What a fault took is still told to be its doing.
    late = [injected(0, 18.0, [1], is_loss=True), told(kind, 19.0), detected(19.5, 1)]
    assert build(late).incidents[0].detected == 19.5


def test_a_coordinator_that_dies_of_no_fault_is_a_loss_too():
    died = told("process_exited", 20.0, role="coordinator", exited_pid=7, exit=-9)
    back = told("coordinator_restarted", 21.0, members=[0, 1])
    (loss,) = build([died, back]).unplanned
    assert (loss.lost, loss.ranks, loss.exit_codes) == (("coordinator",), (), (-9,))
    kill = told("injected", 19.0, incident=0, ranks=[], target="role=coordinator", is_loss=True)
    assert build([kill, died, back]).unplanned == ()
    again = told("process_exited", 30.0, role="coordinator", exited_pid=8, exit=-9)
    assert [loss.since for loss in build([kill, died, back, again]).unplanned] == [30.0]


def test_ranks_that_go_with_their_supervisor_are_told_with_it():
    found = summary_of(Kill(40, 5, with_supervisor=True))
    (loss,) = found["unplanned_losses"]
    assert (loss["ranks"], loss["role"], loss["exit_codes"]) == ([4, 5], "supervisor", [-9])
    (caveat,) = (caveat for caveat in found["caveats"] if "explains" in caveat)
    assert caveat.startswith("Ranks 4 and 5 and the supervisor of their node were lost after step 39 (killed by")
    assert (found["verdict"], found["diagnosis_precision_ratio"], found["false_accusations"]) == ("pass", None, 0)


def test_supervisors_that_the_tool_ends_go_with_nobody():
    events = run(faults=SLOW, kills=[Kill(40, 5)])
    last = max(event.monotonic_seconds for event in events if event.kind == "step_committed" and event.job == "main")
    goodbye = told("process_exited", last + 0.01, role="coordinator", exited_pid=7, exit=0)
    ended = [
        told("process_exited", last + 0.02, role="supervisor", exited_node=n, exited_pid=n, exit=-9) for n in (1, 2)
    ]
    (loss,) = build([*events, goodbye, *ended]).unplanned
    assert (loss.ranks, loss.role) == ((5,), None)
    # Not even with one from which the job did not come back.
    at_last = run(faults=SLOW, kills=[Kill(60, 5)])
    end = max(event.monotonic_seconds for event in at_last if event.kind == "detected") + 0.001
    cut = [event for event in at_last if event.monotonic_seconds < end]
    over = [told(e.kind, end, **e.fields) for e in (goodbye, *ended)]
    assert [loss.role for loss in build([*cut, *over]).unplanned] == [None]
