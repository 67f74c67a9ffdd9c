"""Somebody else's job from its log: attempts, recovery as progress, steps recomputed, and where the time went."""

import pytest

from harness.analysis.command.attempts import attempt_at
from harness.analysis.state import build
from harness.judging.gates import builtin_gates
from mecefo_runtime.system.events import Event
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

STARTUP, STEP, RESTART = 2.0, 0.1, 3.0
# Attempt 1 commits steps 1 to 12 and is killed in step 13; its checkpoint is of step 10.
KILLED, RESUMED, LAST = 13, 11, 30


class Log:
    """A log with an exact clock: `at` is now."""

    def __init__(self):
        self.events = []
        self.at = 100.0
        self.tell("run_started", experiment={"name": "n", "job": {"runtime": "command"}}, seed=0, gates=[])
        plan = {"incident": 0, "fault": "kill-process", "target": "rank=1", "step": KILLED}
        self.tell("incidents_planned", incidents=[plan])
        self.tell("job_started", num_ranks=2, nodes=1, steps=None, runtime="command", command="torchrun t.py")

    def tell(self, kind, *, pid=1, step=None, **fields):
        self.events.append(Event(kind, "x", self.at, self.at, pid, step=step, fields=fields))

    def attempt(self, number):
        """Its two ranks report, rank 0 with the pid 10 * number."""
        self.tell("attempt_started", attempt_number=number, world_size=2)
        for rank in (0, 1):
            pid = 10 * number + rank
            self.tell("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=number)

    def steps(self, number, first, last, **figures):
        """Each STEP seconds long, one after the other."""
        for step in range(first, last + 1):
            began, self.at = self.at, self.at + STEP
            clock = {"began_monotonic": began, "committed_monotonic": self.at}
            self.tell("step_committed", pid=10 * number, step=step, epoch=1, **clock, **figures)

    def kill(self, number):
        """Half a step after the last."""
        self.at += STEP / 2
        self.tell("injected", step=KILLED, incident=0, fault="kill-process", is_loss=True, ranks=[1], target="rank=1")
        self.tell("process_exited", role="rank", exited_pid=10 * number + 1, exit=None, rank_attempt=number)
        self.tell("verified", step=KILLED, incident=0, evidence={"summary": "gone"})
        self.tell("undone", step=KILLED, incident=0)

    def end(self, outcome="completed"):
        self.tell("job_ended", outcome=outcome)
        self.tell("residue", processes=[], undo_pending=[])
        self.tell("run_ended", reason="completed")
        return self.events


def restarted(resumed=RESUMED, *, count_kept_by="optimizer", gates=(), **figures):
    log = Log()
    log.events[0].fields["gates"] = list(gates)
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1, **figures)
    log.kill(1)
    log.at += RESTART
    log.attempt(2)
    log.tell("steps_counted", pid=20, step=resumed, count_kept_by=count_kept_by)
    log.steps(2, resumed, LAST, **figures)
    return log.end()


def test_recovery_is_the_first_commit_and_progress_the_first_new_one():
    summary = summarized(restarted(samples=64))
    (incident,) = summary["incidents"]
    assert incident["recovery_seconds"] == pytest.approx(RESTART + STEP)
    assert incident["progress_seconds"] == pytest.approx(RESTART + 3 * STEP)
    assert (incident["attempt"], incident["recovery_attempt"], incident["recovery_step"]) == (1, 2, RESUMED)
    assert (summary["attempts"], summary["steps_repeated"], summary["steps_lost"]) == (2, 2, 2)
    assert summary["steps_committed"] == LAST
    assert (summary["verdict"], [gate["expression"] for gate in summary["gates"]]) == (
        "pass",
        ["unrecovered_incidents == 0"],
    )


def ended_again(exit_code, *, kind="kill-process", is_loss=True, goodbye=False):
    """As `restarted`, but at step 20 of the second attempt a rank ends, and all are started a third time."""
    log = Log()
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1, samples=64)
    log.kill(1)
    for event in log.events:
        if event.kind == "injected":
            event.fields.update(fault=kind, is_loss=is_loss)
    log.at += RESTART
    log.attempt(2)
    log.steps(2, RESUMED, 20, samples=64)
    log.at += STEP / 2
    if goodbye:
        log.tell("rank_finished", pid=21)
    ended = {"role": "rank", "exited_pid": 21, "exited_rank": 1, "exit": exit_code, "rank_attempt": 2}
    log.tell("process_exited", **ended)
    others = exit_code if exit_code is None or exit_code == 0 else -15
    log.tell("rank_finished", pid=20)
    log.tell("process_exited", **{**ended, "exited_pid": 20, "exited_rank": 0, "exit": others})
    if others == -15:
        log.tell("culprit_named", ranks=[1], how="torchrun")
    log.at += RESTART
    log.attempt(3)
    log.steps(3, 21 - 5, LAST, samples=64)
    return log.end()


def test_an_attempt_that_ends_of_no_fault_is_a_loss_of_its_own():
    quiet, found = summarized(restarted(samples=64)), summarized(ended_again(-9))
    assert found["verdict"] == "pass", found["reasons"]
    (loss,) = found["unplanned_losses"]
    assert (loss["ranks"], loss["step"], loss["exit_codes"], loss["rejoined"]) == ([1], 20, [-9], True)
    assert any(
        "Rank 1 was lost after step 20 (killed by SIGKILL; pid 21, attempt 2)" in caveat for caveat in found["caveats"]
    )
    # Half a step, the restart, and the five steps that were done again.
    assert found["badput_seconds"]["unplanned"] == pytest.approx(RESTART + 5.5 * STEP)
    assert found["badput_seconds"]["restart"] == pytest.approx(quiet["badput_seconds"]["restart"])
    assert found["false_accusations"] == 0
    for key in ("recovery_seconds", "progress_seconds", "diagnosis"):
        assert found["incidents"][0][key] == quiet["incidents"][0][key]
    assert found["productive_seconds"] + sum(found["badput_seconds"].values()) == pytest.approx(
        found["wall_clock_seconds"]
    )


@pytest.mark.parametrize(
    "knobs",
    [
        {"exit_code": 0},
        {"exit_code": None, "goodbye": True},
        # What an instant did to its numbers may end a script at any time later.
        {"exit_code": 1, "kind": "flip-bits", "is_loss": False},
    ],
)
def test_who_says_goodbye_or_may_fail_of_the_fault_is_not_lost_to_something_else(knobs):
    assert summarized(ended_again(**knobs))["unplanned_losses"] == []


@pytest.mark.parametrize(("target", "when"), [("rank=1", "later"), ("rank=1", "at once"), ("role=launcher", "at once")])
def test_a_launcher_that_is_killed_from_outside_is_no_failure_of_the_fault(target, when):
    log = Log()
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1, samples=64)
    log.kill(1)
    for event in log.events:
        if event.kind == "injected":
            event.fields["target"] = target
    if when == "later":
        log.at += RESTART
        log.attempt(2)
        log.steps(2, RESUMED, 20, samples=64)
        log.at += STEP / 2
    log.tell("process_exited", role="launcher", exited_pid=5, exit=-9)
    if when == "later":
        # The ranks do not hear of it at once.
        log.steps(2, 21, 22, samples=64)
    log.tell("job_failed", reason="the command was killed by SIGKILL")
    log.at += STEP
    log.tell("job_ended", outcome="failed", steps_committed=20)
    log.tell("residue", processes=[], undo_pending=[])
    log.tell("run_ended", reason="completed", message="")
    found = summarized(log.events)
    if when == "later":
        assert [(loss["role"], loss["exit_codes"]) for loss in found["unplanned_losses"]] == [("launcher", [-9])]
        assert (found["verdict"], found["exit_code"]) == ("inconclusive", 5), found["reasons"]
        assert any(
            "The launcher was lost after step 20 (killed by SIGKILL; pid 5)" in caveat for caveat in found["caveats"]
        )
        assert found["badput_seconds"]["unplanned"] == pytest.approx(3 * STEP)
    else:
        # Negative control: who dies while the fault is at work may have died of it.
        assert (found["unplanned_losses"], found["verdict"]) == ([], "fail")
    total = found["productive_seconds"] + sum(found["badput_seconds"].values())
    assert total == pytest.approx(found["wall_clock_seconds"])


def test_wrong_numbers_do_not_explain_a_kill_from_outside():
    found = summarized(ended_again(-9, kind="flip-bits", is_loss=False))
    (loss,) = found["unplanned_losses"]
    assert (loss["ranks"], loss["exit_codes"]) == ([1], [-9])
    # Whoever ended of the fault itself was lost before a step after it was committed.
    assert found["incidents"][0]["diagnosis"] == summarized(restarted(samples=64))["incidents"][0]["diagnosis"]


def test_the_time_of_a_restart_is_a_restart_and_all_of_it_adds_up():
    summary = summarized(restarted(samples=64))
    badput = summary["badput_seconds"]
    assert badput["startup"] == pytest.approx(STARTUP)
    assert badput["restart"] == pytest.approx(RESTART)
    # Half a step was thrown away, and two were done again.
    assert badput["repeated_work"] == pytest.approx(2.5 * STEP)
    assert summary["productive_seconds"] + sum(badput.values()) == pytest.approx(summary["wall_clock_seconds"])
    assert summary["productive_seconds"] == pytest.approx(LAST * STEP)


@pytest.mark.parametrize(
    ("figures", "unit", "work"),
    [({"tokens": 512, "samples": 4}, "tokens", 512), ({"samples": 4}, "samples", 4), ({}, "steps", 1)],
)
def test_throughput_is_in_what_the_script_lets_us_see(figures, unit, work):
    summary = summarized(restarted(**figures))
    assert summary["throughput_unit"] == unit
    assert summary["throughput_per_second"]["before"] == pytest.approx(work / STEP)
    tokens = summary["throughput_tokens_per_second"]["before"]
    assert tokens == (pytest.approx(work / STEP) if unit == "tokens" else None)
    assert any(f"Throughput is in {unit}" in caveat for caveat in summary["caveats"]) == (unit != "tokens")


def test_one_step_that_does_not_tell_its_samples_is_counted_with_the_others_in_steps():
    events = restarted(samples=4)
    silent = next(event for event in events if event.kind == "step_committed" and event.step == 7)
    events[events.index(silent)] = Event(
        "step_committed", "x", silent.time_seconds, silent.monotonic_seconds, silent.pid, step=7,
        fields={key: value for key, value in silent.fields.items() if key != "samples"},
    )  # fmt: skip
    assert summarized(events)["throughput_unit"] == "steps"


def test_a_job_that_begins_anew_repeats_all_of_its_steps_and_that_is_said_first():
    summary = summarized(restarted(resumed=1))
    assert (summary["steps_repeated"], summary["steps_committed"]) == (KILLED - 1, LAST)
    assert summary["steps_from_scratch"] == KILLED - 1
    assert summary["reasons"][0].endswith(f"it started again from step 1 and recomputed {KILLED - 1} steps")
    went_on = summarized(restarted())
    assert went_on["steps_from_scratch"] == 0
    assert not any("step 1" in reason for reason in went_on["reasons"])


def test_where_nobody_keeps_the_count_of_steps_none_is_lost_or_kept_for_all_that_is_known():
    """SGD: the second start begins at 1, whether it went on from a checkpoint or not."""
    gates = ["steps_lost <= 10", "steps_repeated <= 10"]
    summary = summarized(restarted(resumed=1, count_kept_by="nobody", gates=gates))
    assert (summary["steps_lost"], summary["steps_repeated"], summary["steps_from_scratch"]) == (None, None, 0)
    assert [gate["passed"] for gate in summary["gates"]] == [None, None, True]
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert any("keeps no count" in caveat for caveat in summary["caveats"])
    assert summarized(restarted(resumed=1, count_kept_by="nobody"))["verdict"] == "pass"
    assert summary["incidents"][0]["recovery_step"] is None


def test_a_job_that_dies_of_it_has_not_recovered():
    log = Log()
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    log.at += 1.0
    log.tell("job_failed", reason="the command was killed by SIGKILL")
    summary = summarized(log.end("failed"))
    assert (summary["verdict"], summary["exit_code"], summary["unrecovered_incidents"]) == ("fail", 1, 1)
    assert summary["incidents"][0]["recovery_seconds"] is None
    badput = summary["badput_seconds"]
    assert summary["productive_seconds"] + sum(badput.values()) == pytest.approx(summary["wall_clock_seconds"])


def test_steps_before_the_first_one_seen_are_not_lost():
    log = Log()
    log.attempt(1)
    log.steps(1, 101, 110)
    assert summarized(log.end())["steps_lost"] == 0


def test_an_attempt_that_came_to_no_step_belongs_to_the_wait():
    log = Log()
    log.attempt(1)
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    log.at += 1.0
    log.attempt(2)
    log.tell("process_exited", role="rank", exited_pid=20, exit=None, rank_attempt=2)
    log.at += 1.0
    log.attempt(3)
    log.steps(3, KILLED, LAST)
    timeline = build(log.end())
    ((since, until),) = timeline.restarts
    assert until - since == pytest.approx(2.0)
    assert timeline.incidents[0].committed_epoch == 3
    assert attempt_at(timeline.attempts, since) == 1 and attempt_at(timeline.attempts, None) is None


def test_only_our_own_jobs_must_lose_no_step():
    assert builtin_gates("command") == ("unrecovered_incidents == 0",)
    assert "steps_lost == 0" in builtin_gates("mecefo") and builtin_gates(None) == builtin_gates("mecefo")


@pytest.mark.parametrize(
    ("left_out", "verdict", "words"),
    [
        ({"steps_left_out": 0}, "inconclusive", "no step was left, so the recovery is unknown"),
        ({"steps_left_out": 34}, "fail", "committed after it: its GradScaler skipped the next 34 steps"),
        ({"spoilt_passes_left_out": 32}, "fail", "committed after it: none of the next 32 passes was finite"),
    ],
)
def test_a_job_that_trained_no_further_has_not_recovered(left_out, verdict, words):
    log = Log()
    log.attempt(1)
    log.steps(1, 1, 12)
    log.tell("injected", step=KILLED, incident=0, fault="set-nan", is_loss=False, ranks=[0], target="rank=0")
    log.tell("verified", step=KILLED, incident=0, evidence={"summary": "taken in"})
    log.tell("rank_finished", pid=10, **left_out)
    summary = summarized(log.end())
    assert summary["verdict"] == verdict
    assert words in " ".join(summary["reasons"])


def test_compilation_belongs_to_the_start_and_not_to_training():
    """Steps of 40, 8 and 0.1 seconds: the third begins the row of steady ones."""
    log = Log()
    log.at += STARTUP
    log.attempt(1)
    for number, seconds in ((1, 40.0), (2, 8.0)):
        began, log.at = log.at, log.at + seconds
        log.tell("step_committed", pid=10, step=number, epoch=1, began_monotonic=began, committed_monotonic=log.at)
    log.steps(1, 3, KILLED - 1)
    log.kill(1)
    log.at += RESTART
    log.attempt(2)
    began, log.at = log.at, log.at + 30.0
    log.tell("step_committed", pid=20, step=KILLED, epoch=1, began_monotonic=began, committed_monotonic=log.at)
    log.steps(2, KILLED + 1, LAST)
    badput = (summary := summarized(log.end()))["badput_seconds"]
    assert badput["startup"] == pytest.approx(STARTUP + 48.0)
    assert badput["restart"] == pytest.approx(RESTART + 30.0)
    assert summary["productive_seconds"] == pytest.approx((LAST - 3) * STEP)
    assert summary["productive_seconds"] + sum(badput.values()) == pytest.approx(summary["wall_clock_seconds"])


def waited(*, survivor_ended, attempts=1, ends="completed"):
    """Rank 1 is lost in step 13; rank 0 waits for it so long, and `attempts` more are started, of which the last steps.

    Each of the dead ones ends after a second.
    """
    log = Log()
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1, samples=64)
    log.kill(1)
    log.events[-3].fields["exited_rank"] = 1
    log.at += survivor_ended
    log.tell("process_exited", role="rank", exited_pid=10, exited_rank=0, exit=1, rank_attempt=1)
    for number in range(2, 2 + attempts):
        log.at += RESTART
        log.attempt(number)
        if number == 1 + attempts and ends == "completed":
            log.steps(number, KILLED, LAST, samples=64)
        else:
            log.at += 1.0
            log.tell("process_exited", role="rank", exited_pid=10 * number, exited_rank=0, exit=1, rank_attempt=number)
    if ends == "failed":
        log.tell("job_failed", reason="the command ended with exit code 1")
    log.at += 0.5
    return summarized(log.end(ends))


def test_waiting_for_a_lost_rank_is_detection_and_no_recomputed_work():
    found = waited(survivor_ended=14.0)
    badput = found["badput_seconds"]
    assert (found["steps_lost"], badput["detection"]) == (0, pytest.approx(14.0))
    # Of the step in flight only what was done when the rank was lost.
    assert badput["repeated_work"] == pytest.approx(STEP / 2)
    assert badput["restart"] == pytest.approx(RESTART)
    assert (badput["shutdown"], badput["other"]) == (pytest.approx(0.5), pytest.approx(0.0))
    assert found["productive_seconds"] + sum(badput.values()) == pytest.approx(found["wall_clock_seconds"])


@pytest.mark.parametrize("ends", ["completed", "failed"])
def test_restarts_that_died_are_restarts(ends):
    found = waited(survivor_ended=1.0, attempts=4, ends=ends)
    badput = found["badput_seconds"]
    dead = 4 if ends == "failed" else 3
    assert badput["detection"] == pytest.approx(1.0)
    waiting = 4 * RESTART + dead * 1.0
    # The last one that died was followed by none.
    assert badput["restart"] + badput["shutdown"] == pytest.approx(waiting + 0.5)
    assert badput["restart"] >= waiting - 1.0
    assert found["productive_seconds"] + sum(badput.values()) == pytest.approx(found["wall_clock_seconds"])


def test_a_job_that_nobody_restarts_has_detected_it_when_another_rank_ends():
    found = waited(survivor_ended=2.0, attempts=0, ends="failed")
    badput = found["badput_seconds"]
    assert badput["detection"] == pytest.approx(2.0)
    assert badput["shutdown"] == pytest.approx(0.5)
    assert found["incidents"][0]["recovered"] is False
