"""What a log tells of a preemption: who got the notice, what was saved in the grace, what was lost after it."""

import pytest

from mecefo_runtime.system.events import Event
from tests.harness.judging.test_undecided import Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

GRACE = 10.0


def rank(number, *, exit_code=0, action="handler", notified=True, killed=False, seconds=1.0):
    ended = {"exit": exit_code, "killed": killed, "seconds": seconds}
    return {"rank": number, "pid": 10 + number, "action": action, "notified": notified, **ended}


class Preempted(Log):
    """Two ranks, of which the checkpoint of step 20 is saved; the notice comes in step 25."""

    def __init__(self, *ranks, gates=(), requeue=1, signal="SIGTERM", used=1.0, **evidence):
        super().__init__(("preempt", "rank=0+1"), gates=gates)
        self.attempt(1, 1, 24)
        self.save(1, 20)
        known = {"signal": signal, "deliver": "all", "grace_seconds": GRACE, "used_seconds": used}
        self.at += 0.05
        self.since = self.at
        about = {"incident": 0, "fault": "preempt", "target": "rank=0+1", "ranks": [0, 1]}
        self.tell("injected", step=25, asks_to_leave=True, requeue=requeue, **about)
        self.known = {"summary": "gone", "ranks": list(ranks), "notices": [], **known, **evidence}

    def verified(self, codes=(0, 0)):
        self.at += 1.0
        self.leave(1, codes)
        self.tell("verified", step=25, incident=0, evidence=self.known)
        self.undo()

    def requeued(self, first, exit_code=1):
        self.tell("command_requeued", number=1, exit=exit_code)
        self.attempt(2, first, 60)
        self.leave(2)
        return summarized(self.end())


def figures(summary):
    return summary["incidents"][0]["preemption"]


def caveats_of(summary):
    return {one["code"]: one for one in summary["caveat_codes"]}


def test_a_job_that_saves_and_leaves_loses_nothing():
    log = Preempted(rank(0), rank(1), gates=["steps_lost_by_preemption == 0", "grace_used_ratio < 50%"])
    log.steps(1, 25, 25)
    log.save(1, 25)
    saved_seconds = log.at - log.since
    log.verified()
    summary = log.requeued(26)
    assert summary["verdict"] == "pass", summary["reasons"]
    found = figures(summary)
    assert found["notice_to_checkpoint_seconds"] == pytest.approx(saved_seconds)
    assert (found["checkpoint_step"], found["checkpoints_after_notice"]) == (25, 1)
    assert (found["ranks_left_in_order"], found["ranks_killed"], found["ranks_reached"]) == ([0, 1], [], [0, 1])
    assert (found["last_step"], found["resumed_after"], found["steps_lost"]) == (25, 25, 0)
    assert summary["incidents"][0]["grace_used_ratio"] == pytest.approx(0.1)


def test_ranks_that_end_of_their_data_workers_have_saved_nothing():
    log = Preempted(rank(0, exit_code=1), rank(1, exit_code=1), gates=["notice_to_checkpoint_seconds < 5"])
    message = "DataLoader worker (pid 7) is killed by signal: Terminated. "
    fields = {"exception": "RuntimeError", "message": message}
    log.events.append(Event("rank_raised", "rank", log.at, log.at, 10, rank=0, step=25, fields=fields))
    log.verified((1, 1))
    summary = log.requeued(21)
    found = figures(summary)
    assert (found["ranks_failed"], found["ranks_left_in_order"]) == ([0], [1])
    assert found["raised"][0]["message"] == message
    assert (found["checkpoints_after_notice"], found["steps_lost"]) == (0, 4)
    assert caveats_of(summary)["notice_ended_data_workers"].get("saved_step") is None
    (gate,) = (gate for gate in summary["gates"] if not gate["builtin"])
    assert (gate["passed"], summary["exit_code"]) == (None, 5)


@pytest.mark.parametrize(
    ("told", "reached"),
    [
        pytest.param(rank(0), True, id="sent and handled"),
        pytest.param(rank(0, exit_code=-15, action="default", notified=False), True, id="died of it"),
        pytest.param(rank(0, action="default", notified=False, killed=True), False, id="would have died"),
        pytest.param(rank(0, action="handler", notified=False, killed=True), None, id="not observed"),
        pytest.param(rank(0, action="ignored"), False, id="ignored"),
    ],
)
def test_whether_the_notice_came_to_a_rank(told, reached):
    log = Preempted(told, rank(1))
    log.verified()
    found = figures(log.requeued(21))
    kinds = {True: "ranks_reached", False: "ranks_not_reached", None: "ranks_reach_unknown"}
    assert [name for name in kinds.values() if 0 in found[name]] == [kinds[reached]]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_rank_that_reports_its_signals_tells_whether_one_came(arrives):
    log = Preempted(rank(0, notified=False, killed=True), rank(1))
    log.events.insert(3, Event("signals_watched", "rank", 101.0, 101.0, 10, fields={}))
    if arrives:
        log.tell("signal_arrived", pid=10, signal="SIGTERM")
    log.verified()
    found = figures(log.requeued(21))
    assert (0 in found["ranks_reached"], 0 in found["ranks_not_reached"]) == (arrives, not arrives)


@pytest.mark.parametrize("has_finished", [True, False])
def test_a_second_signal_after_the_end_of_the_script_changes_nothing(has_finished):
    log = Preempted(rank(0, exit_code=-15), rank(1))
    if has_finished:
        log.events.append(Event("rank_finished", "rank", log.at, log.at, 10, rank=0))
    log.verified((-15, 0))
    found = figures(log.requeued(21))
    assert (0 in found["ranks_left_in_order"], 0 in found["ranks_ended_by_signal"]) == (has_finished, not has_finished)


def test_a_launcher_that_kills_before_the_end_of_the_grace_is_named():
    log = Preempted(rank(0, exit_code=-9, seconds=5.0), rank(1, exit_code=-9, seconds=5.1))
    log.verified((-9, -9))
    summary = log.requeued(21)
    assert figures(summary)["ranks_killed_by_launcher"] == [0, 1]
    assert caveats_of(summary)["launcher_ended_ranks"]["seconds"] == 5.0


def test_whoever_trains_on_has_not_stood_still():
    ranks = (rank(0, killed=True, seconds=GRACE), rank(1, killed=True, seconds=GRACE))
    still, training = (Preempted(*ranks, used=GRACE) for _ in range(2))
    training.steps(1, 25, 24 + int(GRACE / 0.1))
    found = []
    for log in (still, training):
        log.at = log.since + GRACE
        log.verified((-9, -9))
        found.append(figures(log.requeued(21)))
    assert [one["ranks_stood_still"] for one in found] == [[0, 1], []]
    assert [one["ranks_killed"] for one in found] == [[0, 1], [0, 1]]


def test_without_a_requeue_it_is_not_known_what_is_lost():
    log = Preempted(rank(0), rank(1), requeue=0, gates=["steps_lost_by_preemption == 0"])
    log.steps(1, 25, 25)
    log.save(1, 25)
    log.verified()
    summary = summarized(log.end("failed"))
    found = figures(summary)
    assert (found["is_requeued"], found["steps_lost"], found["checkpoint_step"]) == (False, None, 25)
    (gate,) = (gate for gate in summary["gates"] if not gate["builtin"])
    assert gate["passed"] is None
    assert summary["incidents"][0]["undecided"] == "left_in_order"


def test_steps_in_the_grace_are_no_recovery():
    log = Preempted(rank(0, killed=True), rank(1, killed=True), requeue=0)
    log.steps(1, 25, 40)
    log.verified((-9, -9))
    summary = summarized(log.end("failed"))
    assert (summary["verdict"], summary["incidents"][0]["recovered"]) == ("fail", False)
