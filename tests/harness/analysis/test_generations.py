"""Two generations of one job at once: what is a violation, what a caveat, and who is exempt."""

import io

import pytest

from harness.analysis.command.generations import WITHOUT_SAVES_SECONDS
from harness.analysis.state import build
from harness.judging.summarize import summarize
from harness.live.lines import PlainView
from harness.report import github, junit, wording
from mecefo_runtime.system.events import Event
from tests.harness.analysis.test_attempts import RESTART, STEP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

EVERY = 5


class Generations(Log):
    """Attempt 1 loses its launcher in step 13 and trains on; attempt 2 begins RESTART seconds later, at step 11."""

    def __init__(self, *, target="role=store", ranks=(), saves=True, num_ranks=2):
        super().__init__()
        self.saves, self.num_ranks = saves, num_ranks
        self.at += 2.0
        self.start(1)
        for step in range(1, 13):
            self.step(1, step)
        self.at += STEP / 2
        struck = {"incident": 0, "fault": "kill-process", "is_loss": True, "ranks": list(ranks), "target": target}
        self.tell("injected", step=13, **struck)
        self.tell("verified", step=13, incident=0, evidence={"summary": "gone"})
        self.tell("undone", step=13, incident=0)
        self.restarted_at = self.at + RESTART

    def start(self, number, *, ranks=None, world_size=None):
        ranks = range(self.num_ranks) if ranks is None else ranks
        self.tell("attempt_started", attempt_number=number, world_size=world_size or self.num_ranks)
        for rank in ranks:
            started = {"started_pid": 10 * number + rank, "started_rank": rank, "rank_attempt": number}
            self.tell("process_started", role="rank", **started)

    def step(self, number, step, seconds=STEP, *, at=None, **figures):
        """A step of an attempt, and what it saves; `at` is when it begins, where that is not now."""
        began = self.at if at is None else at
        self.at = began + seconds
        clock = {"began_monotonic": began, "committed_monotonic": self.at}
        self.tell("step_committed", pid=10 * number, step=step, epoch=1, **clock, **figures)
        if self.saves and step % EVERY == 0:
            self.tell("checkpoint_written", pid=10 * number, step=step, blocking_seconds=0.001, writing_seconds=0.0)

    def ended(self, number, *, exit_code=1, ranks=None):
        for rank in range(self.num_ranks) if ranks is None else ranks:
            pid = 10 * number + rank
            self.tell(
                "process_exited", role="rank", exited_pid=pid, exited_rank=rank, exit=exit_code, rank_attempt=number
            )

    def orphans_until(self, last):
        """Attempt 1 trains on alone until attempt 2 is there; returns the next step of it."""
        step = 13
        while self.at + STEP < self.restarted_at and step <= last:
            self.step(1, step)
            step += 1
        self.at = self.restarted_at
        self.start(2)
        return step


def side_by_side(num_steps, **how):
    """Both train for so many steps, in turn; then the older one ends."""
    log = Generations(**how)
    older = log.orphans_until(1000)
    younger = older - older % EVERY
    for number in range(num_steps):
        log.step(2, younger + number)
        log.step(1, older + number, at=log.at - STEP / 2)
    log.ended(1)
    for step in range(younger + num_steps, younger + 60):
        log.step(2, step)
    log.ended(2, exit_code=0)
    return log.end()


def test_an_older_rank_that_saves_beside_the_new_attempt_is_a_violation():
    summary = summarized(side_by_side(20))
    assert (summary["verdict"], summary["exit_code"]) == ("fail", 1)
    assert summary["overlapping_saves"] == 4 and summary["overlapping_steps"] == 20
    assert summary["generations_overlap_seconds"] == pytest.approx(20 * 1.5 * STEP, abs=2 * STEP)
    assert "rank 0 and 1" not in summary["reasons"][0]
    assert "ranks 0 and 1 of attempt 1 still trained when attempt 2 took its first step" in summary["reasons"][0]
    assert summary["fruitless_attempts"] is None
    assert "20 steps more" in summary["reasons"][0] and "saved 4 checkpoints" in summary["reasons"][0]


def test_an_older_rank_that_trains_for_longer_than_a_save_interval_is_a_violation_too():
    """It saves no more, so nothing it does is seen but its steps."""
    events = [
        event
        for event in side_by_side(20)
        if not (event.kind == "checkpoint_written" and event.pid == 10 and event.step > 10)
    ]
    (overlap,) = build(events).overlaps
    assert (overlap.saves, overlap.steps, overlap.interval_steps, overlap.is_violation) == (0, 20, EVERY, True)
    assert summarized(events)["verdict"] == "fail"


def fenced():
    """The older one ends at its next save, without saving: a fence in the script."""
    log = Generations()
    older = log.orphans_until(1000)
    younger = older - older % EVERY
    number = 0
    while True:
        log.step(2, younger + number)
        if (older + number) % EVERY == 0:
            break
        log.step(1, older + number, at=log.at - STEP / 2)
        number += 1
    log.ended(1)
    for step in range(younger + number + 1, 100):
        log.step(2, step)
    log.ended(2, exit_code=0)
    return log.end()


def test_an_older_rank_that_ends_at_its_next_save_is_a_caveat():
    summary = summarized(fenced())
    assert summary["verdict"] == "pass", summary["reasons"]
    assert summary["overlapping_saves"] == 0 and 0 < summary["overlapping_steps"] < EVERY
    assert any("Ranks 0 and 1 of attempt 1 still trained" in caveat for caveat in summary["caveats"])
    assert summary["incidents"][0]["recovered"] is True


def test_steps_that_a_rank_does_not_show_before_the_new_attempt_are_not_counted_after_it():
    """Rank 1 shows only some of its steps: the last one of those may have been long before."""
    events = list(fenced())
    told = [event for event in events if event.kind == "step_committed" and event.pid == 10]
    for shown in (told[-8], told[-1]):
        at = shown.fields["committed_monotonic"] + STEP / 8
        look = {"sums": "00000001", "tensors": ["weight"]}
        events.append(Event("state_checksums", "rank", at, at, 11, rank=1, step=shown.step, fields=look))
    (overlap,) = build(events).overlaps
    (alone,) = build(fenced()).overlaps
    assert overlap.steps == alone.steps and not overlap.is_violation


def test_an_older_rank_that_only_hangs_is_a_caveat_with_its_seconds():
    log = Generations()
    log.at = log.restarted_at
    log.start(2)
    log.step(2, 11, seconds=1.5)
    log.ended(1)
    for step in range(12, 60):
        log.step(2, step)
    log.ended(2, exit_code=0)
    summary = summarized(log.end())
    assert summary["verdict"] == "pass", summary["reasons"]
    assert summary["generations_overlap_seconds"] == pytest.approx(1.5)
    words = "were still there when attempt 2 took its first step, for 1.50 s more"
    assert any(words in caveat for caveat in summary["caveats"]), summary["caveats"]


@pytest.mark.parametrize(("seconds", "is_violation"), [(0.5, False), (2.0, True)])
def test_without_a_save_seen_it_is_seconds_that_count(seconds, is_violation):
    log = Generations(saves=False)
    older = log.orphans_until(1000)
    for number in range(4):
        log.step(2, 11 + number, seconds)
        log.step(1, older + number, seconds, at=log.at - seconds / 2)
    log.ended(1)
    (overlap,) = build(log.end()).overlaps
    assert (overlap.training_seconds > WITHOUT_SAVES_SECONDS) == is_violation == overlap.is_violation


def test_the_save_of_a_step_that_was_over_before_is_none_beside_the_new_attempt():
    """It is reported when the next step begins, here after the new attempt's first step has begun."""
    log = Generations()
    older = log.orphans_until(1000)
    last = older + (-older) % EVERY
    for step in range(older, last + 1):
        log.step(1, step)
    saved = next(event for event in reversed(log.events) if event.kind == "checkpoint_written")
    log.step(2, 11, at=log.at + STEP / 10)
    log.events.remove(saved)
    log.tell("checkpoint_written", pid=10, step=last, blocking_seconds=0.001, writing_seconds=0.0)
    log.ended(1)
    assert build(log.end()).overlaps[0].saves == 0


@pytest.mark.parametrize(("writing_seconds", "is_of_a_late_step", "saves"), [(3.0, False, 0), (3.0, True, 1)])
def test_what_is_still_written_in_the_background_had_begun_before(writing_seconds, is_of_a_late_step, saves):
    log = Generations()
    older = log.orphans_until(1000)
    last = older - 1
    log.step(2, 11)
    if is_of_a_late_step:
        last = older + (-older) % EVERY
        for step in range(older, last):
            log.step(1, step)
        log.saves = False
        log.step(1, last)
    log.at += writing_seconds
    log.tell("checkpoint_written", pid=10, step=last, blocking_seconds=0.001, writing_seconds=writing_seconds)
    log.ended(1)
    assert build(log.end()).overlaps[0].saves == saves


def test_the_look_of_another_rank_at_its_end_is_no_step_that_late():
    log = Generations()
    older = log.orphans_until(1000)
    log.step(2, 11)
    log.step(1, older, at=log.at - STEP / 2)
    log.at += 2.0
    look = {"sums": "00000001", "tensors": ["weight"]}
    log.events.append(Event("state_checksums", "rank", log.at, log.at, 11, rank=1, step=older, fields=look))
    log.ended(1)
    (overlap,) = build(log.end()).overlaps
    assert (overlap.steps, overlap.training_seconds) == (1, pytest.approx(1.5 * STEP))


def test_a_rank_whose_leader_is_gone_is_seen_to_train_by_what_it_holds():
    log = Generations()
    log.ended(1, ranks=[0])
    log.at = log.restarted_at
    log.start(2)
    for number in range(20):
        log.step(2, 11 + number)
        look = {"sums": "00000001", "tensors": ["weight"]}
        if number in (0, 4, 16):
            step = 40 + number
            log.events.append(Event("state_checksums", "rank", log.at, log.at, 11, rank=1, step=step, fields=look))
    log.ended(1, ranks=[1])
    (overlap,) = build(log.end()).overlaps
    assert (overlap.ranks, overlap.steps, overlap.is_violation) == ((1,), 17, True)


def test_an_ordinary_restart_has_no_overlap():
    log = Generations(target="rank=1", ranks=[1])
    log.ended(1, exit_code=-9, ranks=[1])
    log.ended(1, exit_code=-15, ranks=[0])
    log.at = log.restarted_at
    log.start(2)
    for step in range(11, 60):
        log.step(2, step)
    log.ended(2, exit_code=0)
    summary = summarized(log.end())
    assert (summary["verdict"], summary["generations_overlap_seconds"]) == ("pass", 0.0), summary["reasons"]
    assert not any("attempt 1" in caveat for caveat in summary["caveats"])


def test_a_rank_that_was_not_started_again_is_a_member_of_the_new_attempt():
    """Its launcher restarts rank 0 alone; rank 1 trains on, and the new attempt has two ranks."""
    log = Generations(target="rank=0", ranks=[0])
    log.ended(1, exit_code=-9, ranks=[0])
    log.at = log.restarted_at
    log.start(2, ranks=[0])
    for step in range(11, 60):
        log.step(2, step)
    log.ended(1, exit_code=0, ranks=[1])
    log.ended(2, exit_code=0, ranks=[0])
    assert build(log.end()).overlaps == ()


def test_a_rank_beyond_the_new_world_size_is_an_orphan():
    log = Generations(target="rank=0", ranks=[0])
    log.ended(1, exit_code=-9, ranks=[0])
    log.at = log.restarted_at
    log.start(2, ranks=[0], world_size=1)
    for step in range(11, 60):
        log.step(2, step)
    log.ended(1, exit_code=0, ranks=[1])
    assert [one.ranks for one in build(log.end()).overlaps] == [(1,)]


def test_replica_groups_are_started_again_one_by_one():
    log = Generations()
    for event in log.events:
        if event.kind == "step_committed":
            event.fields["replica"] = 0
    older = log.orphans_until(1000)
    for number in range(30):
        log.step(2, older + number, replica=1)
        log.step(1, older + number, at=log.at - STEP / 2, replica=0)
    assert build(log.end()).overlaps == ()


def test_two_trainings_side_by_side_from_the_beginning_are_no_generations():
    log = Log()
    for number in (1, 2):
        log.attempt(number)
    for step in range(1, 40):
        log.steps(1, step, step)
        log.steps(2, step, step)
    assert build(log.end()).overlaps == ()


def test_an_orphan_that_lives_through_several_attempts_is_told_once():
    log = Generations()
    log.orphans_until(1000)
    log.step(2, 11)
    log.ended(2)
    log.at += RESTART
    log.start(3)
    for step in range(12, 40):
        log.step(3, step)
    log.ended(1)
    assert [one.attempt for one in build(log.end()).overlaps] == [2]


def test_the_recovery_from_the_loss_of_a_store_is_the_first_step_of_the_new_attempt():
    events = fenced()
    (incident,) = build(events).incidents
    assert incident.committed_epoch == 2
    assert incident.recovery_seconds == pytest.approx(RESTART + STEP)
    # The older ranks' own steps are none of it, and their end is no loss of another cause.
    assert summarized(events)["unplanned_losses"] == []


def test_the_live_view_waits_for_the_new_attempt_and_says_that_training_continued():
    stream = io.StringIO()
    with PlainView(stream) as view:
        for event in fenced():
            view.feed(event)
    lines = [line for line in stream.getvalue().splitlines() if "(first step begun after it committed)" in line]
    assert len(lines) == 1 and f"training continued after kill-process on the store, {RESTART + STEP:.2f} s" in lines[0]


def test_orphans_that_train_to_the_end_are_no_recovery():
    log = Generations(target="role=launcher")
    for step in range(13, 60):
        log.step(1, step)
    log.ended(1, exit_code=0)
    log.tell("job_failed", reason="the command was killed by SIGKILL")
    summary = summarized(log.end("failed"))
    assert (summary["verdict"], summary["incidents"][0]["recovered"]) == ("fail", False)
    assert summary["incidents"][0]["recovery_seconds"] is None and summary["unrecovered_incidents"] == 1
    assert any("no later attempt took a step" in reason for reason in summary["reasons"])


def test_a_rank_of_a_killed_launcher_s_target_counts_as_before():
    """A fault on ranks is over with the next step, whoever takes it."""
    log = Generations(target="rank=1", ranks=[1])
    log.step(1, 13, at=log.at + STEP / 2)
    (incident,) = build(log.events).incidents
    assert incident.committed_step == 13 and not incident.is_of_launcher


def test_the_incident_before_two_generations_has_not_recovered_anywhere():
    summary = summarize(side_by_side(20, target="role=store"))
    (incident,) = summary.incidents
    assert (incident.recovered, incident.violations) == (False, ("generations_overlap",))
    assert incident.recovery_seconds is None and incident.continued_seconds is not None
    assert summary.unrecovered_incidents == 1
    assert "recovered in" not in github.markdown(summary, None) + junit.render(summary)
    assert "Training continued" in (wording.recovery_words(incident) or "")


def test_what_the_command_left_running_is_in_the_report():
    log = Generations(target="role=launcher")
    log.step(1, 13)
    log.tell("orphans_ended", num_processes=3, ranks=[0, 1], pids=[10, 11, 12])
    log.ended(1, exit_code=-9)
    log.tell("job_failed", reason="the command was killed by SIGKILL")
    summary = summarized(log.end("failed"))
    assert (summary["orphaned_processes"], summary["orphaned_ranks"]) == (3, [0, 1])
    assert any("left 3 processes running at its end, ranks 0 and 1 among them" in one for one in summary["caveats"])
