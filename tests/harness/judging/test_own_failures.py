"""What a command does by itself: a rank that fails while the launcher ends well, an early end, a job that fails."""

from dataclasses import replace
from typing import get_args

import pytest

from harness.analysis.command.failure_cause import PIPE, FailureCause
from harness.analysis.command.unseen import Unseen, unseen_words
from mecefo_runtime.system.json_values import to_json
from tests.harness.analysis.test_attempts import KILLED, LAST, RESTART, RESUMED, STARTUP, STEP, Log, restarted
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit


class Quiet(Log):
    """A run without a fault, `num_ranks` ranks, of which rank 0 tells the steps."""

    def __init__(self, steps=None, faults=()):
        super().__init__()
        started = self.events[0].fields["experiment"]
        started["faults"] = list(faults)
        if not faults:
            self.events[1].fields["incidents"] = []
        self.events[-1].fields["steps"] = steps

    def exit(self, number, rank, code):
        told = {"role": "rank", "exited_pid": 10 * number + rank, "exited_rank": rank, "rank_attempt": number}
        self.tell("process_exited", exit=code, **told)

    def finish(self, number, rank, step, code=0):
        self.tell("rank_finished", pid=10 * number + rank, step=step)
        self.events[-1] = self._of_rank(rank)
        self.exit(number, rank, code)

    def raised(self, number, rank, step, last_step=None, **fields):
        told = {"exception": "ValueError", "message": "by itself", "file": "/me/train.py", "line": 35}
        told |= {"failure": "own", "last_step": step if last_step is None else last_step}
        self.tell("rank_raised", pid=10 * number + rank, step=step, **{**told, **fields})
        self.events[-1] = self._of_rank(rank)

    def _of_rank(self, rank):
        return replace(self.events[-1], rank=rank)

    def baseline(self, last, world_size=2, first=1):
        """The fault-free baseline, after the job."""
        begin = len(self.events)
        self.tell("job_started", num_ranks=2, nodes=1, steps=None, runtime="command", command="torchrun t.py")
        self.tell("attempt_started", attempt_number=1, world_size=world_size)
        self.steps(9, first, last)
        self.tell("job_ended", outcome="completed")
        self.events[begin:] = [replace(event, job="twin") for event in self.events[begin:]]


RAISED = "rank 0 raised ValueError: by itself (train.py:35) at step 20"


def failed_rank(last=20, code=1, steps=None, other=None):
    """Rank 0 raises after step `last`, rank 1 ends well at step `other`, and so does the launcher."""
    log = Quiet(steps)
    log.attempt(1)
    log.steps(1, 1, last)
    log.raised(1, 0, last)
    log.exit(1, 0, code)
    if other is not None:
        log.finish(1, 1, other)
    return log


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (lambda: failed_rank(other=60), f"{RAISED}, and was not started again: rank 1 came to step 60"),
        (lambda: failed_rank(steps=60), f"{RAISED}, and was not started again: job.steps is 60"),
        (lambda: failed_rank(code=None, other=60), f"{RAISED}, and was not started again: rank 1 came to step 60"),
    ],
)
def test_a_rank_that_fails_with_steps_to_come_is_the_jobs_failure_whatever_the_launcher_says(log, words):
    summary = summarized(log().end())
    assert (summary["verdict"], summary["exit_code"], summary["reasons"][0]) == ("fail", 1, words)


def test_a_baseline_tells_that_steps_were_to_come():
    log = failed_rank()
    log.tell("job_ended", outcome="completed")
    log.baseline(60)
    events = [event for event in log.end() if event.kind != "job_ended" or event.job == "twin"]
    events += [event for event in log.events if event.kind == "job_ended" and event.job == "main"][:1]
    summary = summarized(events)
    assert summary["verdict"] == "fail"
    assert summary["reasons"][0] == f"{RAISED}, and was not started again: the fault-free baseline came to step 60"


@pytest.mark.parametrize(
    ("code", "step", "left"),
    [(-6, 60, "no step was left"), (1, 60, "no step was left"), (-11, None, "whether steps were left is not known")],
)
def test_one_that_fails_after_the_last_step_is_a_caveat(code, step, left):
    log = Quiet()
    log.attempt(1)
    log.steps(1, 1, 60)
    log.exit(1, 0, code)
    if step is not None:
        log.finish(1, 1, step)
    summary = summarized(log.end())
    assert summary["verdict"] == "pass", summary["reasons"]
    assert any("Rank 0" in one and left in one for one in summary["caveats"]), summary["caveats"]


def test_an_abort_of_a_script_that_was_through_is_no_failure_though_others_had_more_steps():
    log = Quiet()
    log.attempt(1)
    log.steps(1, 1, 60)
    log.finish(1, 1, 58, code=-6)
    log.finish(1, 0, 60)
    assert summarized(log.end())["verdict"] == "pass"


def test_who_is_started_again_has_not_failed_for_good():
    """A requeue wrapper, whose first start ends with a code of its own."""
    log = Quiet()
    log.attempt(1)
    log.steps(1, 1, 30)
    log.exit(1, 0, 99)
    log.exit(1, 1, 99)
    log.at += RESTART
    log.attempt(2)
    log.steps(2, 31, 60)
    log.finish(2, 0, 60)
    log.finish(2, 1, 60)
    summary = summarized(log.end())
    assert summary["verdict"] == "pass", summary["reasons"]
    assert not any("not started again" in one or "-> " in one for one in summary["caveats"])


def test_what_a_fault_takes_is_no_failure_of_the_rank_and_fewer_ranks_are_a_caveat():
    log = Log()
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    for event in log.events:
        if event.kind == "process_exited":
            event.fields.update(exited_rank=1, exit=-9)
    log.steps(1, KILLED, LAST)
    summary = summarized(log.end())
    assert summary["verdict"] == "pass", summary["reasons"]
    assert any("Ranks: 2 -> 1 for good" in one for one in summary["caveats"])


def test_a_smaller_rendezvous_is_a_caveat_and_one_that_grew_back_is_none():
    events = restarted()
    starts = [event for event in events if event.kind == "attempt_started"]
    assert not any("for good" in one for one in summarized(events)["caveats"])
    starts[-1].fields["world_size"] = 1
    summary = summarized(events)
    assert summary["verdict"] == "pass"
    assert any("Ranks: 2 -> 1 for good" in one for one in summary["caveats"])


# ---- how long a job should be ----


def lengthened(steps=None, baseline=None, world_size=2, first=1, last=LAST):
    """A job that was restarted and ended at `last`, with what says how long it should be."""
    log = Quiet(steps, faults=[{"kind": "kill-process"}])
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    log.at += RESTART
    log.attempt(2)
    log.steps(2, RESUMED, last)
    if baseline is not None:
        log.tell("job_ended", outcome="completed")
        log.baseline(baseline, world_size, first)
        log.tell("residue", processes=[], undo_pending=[])
        log.tell("run_ended", reason="completed")
        return log.events
    return log.end()


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"steps": 60}, f"the command ended by itself after step {LAST}: job.steps is 60"),
        ({"baseline": 60}, f"the command ended by itself after step {LAST}: the fault-free baseline came to step 60"),
        ({"steps": LAST, "baseline": 60}, "the fault-free baseline came to step 60"),
        ({"last": KILLED - 2}, f"after step {KILLED - 2}: attempt 1 had come to step {KILLED - 1}"),
    ],
)
def test_a_job_that_ends_too_early_proves_nothing(knobs, reason):
    summary = summarized(lengthened(**knobs))
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert any(reason in one for one in summary["reasons"]), summary["reasons"]
    assert not any("Nothing says how long" in one for one in summary["caveats"])


@pytest.mark.parametrize("knobs", [{"steps": LAST}, {"baseline": LAST}, {"steps": 20}, {"baseline": LAST - 4}])
def test_one_that_came_as_far_as_it_should_passes_without_a_word(knobs):
    """Early stopping, too: at the same step as the baseline, or later."""
    summary = summarized(lengthened(**knobs))
    assert summary["verdict"] == "pass", summary["reasons"]
    assert not any("how long" in one for one in summary["caveats"])


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({}, "--baseline-run"),
        # With other ranks an epoch has other steps; one that began elsewhere is another job.
        ({"baseline": 60, "world_size": 4}, "The fault-free baseline ran with 4 ranks. Give --steps."),
        ({"baseline": 60, "first": 31}, "--baseline-run"),
    ],
)
def test_where_nothing_says_how_long_a_job_should_be_a_caveat_says_that(knobs, words):
    summary = summarized(lengthened(**knobs))
    assert summary["verdict"] == "pass", summary["reasons"]
    (said,) = [one for one in summary["caveats"] if "Nothing says how long the job should be" in one]
    assert f"after step {LAST}" in said and words in said


def idle(phase, step=KILLED):
    """The second attempt takes no step, and all its ranks end well."""
    log = Quiet(faults=[{"kind": "kill-process"}])
    log.at += STARTUP
    log.attempt(1)
    log.steps(1, 1, KILLED - 1)
    log.kill(1)
    for event in log.events:
        if event.kind == "injected":
            event.fields["phase"] = phase
    log.at += RESTART
    log.attempt(2)
    log.exit(2, 0, 0)
    log.exit(2, 1, 0)
    return log.end()


def test_a_restart_that_takes_no_step_though_one_was_under_way_has_not_recovered():
    summary = summarized(idle("forward"))
    assert (summary["verdict"], summary["exit_code"], summary["attempts"]) == ("fail", 1, 2)
    assert any("attempt 2 took no step and ended with exit code 0" in one for one in summary["reasons"])
    assert not any("pipe" in one for one in summary["reasons"])


@pytest.mark.parametrize("phase", ["checkpoint", "data"])
def test_a_restart_that_had_nothing_left_to_do_proves_nothing(phase):
    assert summarized(idle(phase))["verdict"] == "inconclusive"


# ---- a job that fails by itself ----


def failing(*, ranks=True, steps=0, exit_code=1, faults=()):
    log = Quiet(faults=faults)
    if ranks:
        log.attempt(1)
    log.steps(1, 1, steps)
    log.tell("job_failed", reason="it said why", exit=exit_code)
    return log.end("failed")


@pytest.mark.parametrize(
    ("knobs", "code", "reason"),
    [
        ({"steps": 5}, 1, "the job failed by itself: it said why"),
        ({}, 1, "the job failed by itself: it said why"),
        ({"faults": [{"kind": "x"}]}, 1, "the job failed by itself, before any fault was injected: it said why"),
        # It hung after some steps.
        ({"steps": 5, "exit_code": None}, 1, "the job failed by itself: it said why"),
        # No rank was there. Logs of older versions have job_failed also for a command that ended well without a step.
        ({"ranks": False}, 3, "the job never began to train: it said why"),
        ({"ranks": False, "exit_code": 0}, 3, "the job never began to train: it said why"),
        ({"exit_code": 0}, 3, "the job never began to train: it said why"),
        ({"exit_code": None}, 3, "the job never began to train: it said why"),
    ],
)
def test_a_job_that_fails_by_itself_is_its_own_failure_once_a_rank_has_reported(knobs, code, reason):
    summary = summarized(failing(**knobs))
    assert (summary["exit_code"], summary["reasons"][0]) == (code, reason)


@pytest.mark.parametrize("why", get_args(Unseen))
@pytest.mark.parametrize("faults", [(), ({"kind": "kill-process"},)])
def test_a_command_that_ends_well_without_a_step_is_inconclusive_and_has_not_failed(why, faults):
    log = Quiet(faults=faults)
    log.tell("no_step_seen", why=why)
    summary = summarized(log.end())
    assert (summary["verdict"], summary["exit_code"], summary["job_outcome"]) == ("inconclusive", 5, "completed")
    assert summary["reasons"][0] == f"the command ended with exit code 0, and {unseen_words(why)}"
    assert not any("failed" in reason for reason in summary["reasons"])


def test_a_fault_in_a_command_without_a_step_is_undecided():
    log = Quiet(faults=[{"kind": "pause-process"}])
    log.tell("injected", incident=0, fault="pause-process", goes_on=True, target="role=launcher")
    log.tell("verified", incident=0, evidence={"summary": "stopped"})
    log.at += 1.0
    log.tell("undone", incident=0)
    log.tell("no_step_seen", why="no_agent")
    summary = summarized(log.end())
    assert (summary["exit_code"], summary["incidents"][0]["recovered"]) == (5, None)


@pytest.mark.parametrize("is_pipe", [True, False])
def test_an_exception_that_a_command_printed_is_named_although_it_ended_well(is_pipe):
    log = Quiet()
    cause = FailureCause("rank_raised", exception="SyntaxError", message="invalid syntax", file="/x/train.py", line=3)
    log.tell("no_step_seen", why="no_step", cause=to_json(cause), is_pipe=is_pipe)
    reason = summarized(log.end())["reasons"][0]
    assert reason.startswith("the command ended with exit code 0, but printed SyntaxError: invalid syntax (train.py:3)")
    assert (PIPE in reason) is is_pipe


def test_a_rank_that_raised_has_failed_also_where_the_command_ended_well():
    log = Quiet()
    log.attempt(1)
    log.raised(1, 0, None)
    log.tell("job_failed", reason="it said why", exit=0, cause={"code": "rank_raised"})
    assert summarized(log.end("failed"))["exit_code"] == 1


def test_a_job_that_raised_before_anything_else_was_heard_of_it_has_reported():
    log = Quiet()
    log.raised(1, 0, None)
    log.tell("job_failed", reason="it said why", exit=1)
    assert summarized(log.end("failed"))["exit_code"] == 1


def test_whom_torchrun_blames_for_an_abort_after_the_last_step_is_no_diagnosis_of_a_pause_that_was_over():
    log = Quiet(faults=[{"kind": "pause-process"}])
    log.attempt(1)
    log.steps(1, 1, KILLED - 1)
    log.tell("injected", step=KILLED, incident=0, fault="pause-process", goes_on=True, ranks=[1], target="rank=1")
    log.tell("verified", step=KILLED, incident=0, evidence={"summary": "stopped"})
    log.at += 1.0
    log.tell("undone", step=KILLED, incident=0)
    log.steps(1, KILLED, 60)
    log.finish(1, 1, 60)
    log.finish(1, 0, 60, code=-6)
    log.tell("culprit_named", ranks=[0], how="torchrun")
    log.at += STEP
    summary = summarized(log.end())
    assert summary["false_accusations"] == 0
    assert summary["verdict"] == "pass", summary["reasons"]


@pytest.mark.parametrize(("saved", "fruitless"), [(20, 0), (15, 1)], ids=["all was saved", "five steps stay lost"])
def test_a_start_that_finds_all_steps_saved_is_no_attempt_without_progress(saved, fruitless):
    """The first start is aborted while it leaves, after its last step."""
    log = Quiet()
    log.attempt(1)
    log.steps(1, 1, 20)
    log.tell("checkpoint_written", pid=10, step=saved, blocking_seconds=0.001, writing_seconds=0.0)
    for rank in (0, 1):
        log.exit(1, rank, -6)
    log.at += RESTART
    log.attempt(2)
    for rank in (0, 1):
        log.exit(2, rank, 0)
    log.tell("job_ended", outcome="completed")
    assert summarized(log.events)["fruitless_attempts"] == fruitless
