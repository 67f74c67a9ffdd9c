"""Where a later attempt of a command continues, what is unknown where nobody knows that, and whose losses count."""

import pytest

from mecefo_runtime.system.events import BASELINE_JOB, Event
from tests.harness.analysis.test_attempts import KILLED, LAST, RESTART, RESUMED, STARTUP, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

AFTER = RESUMED - 1
GATES = ("steps_lost <= 2", "loss_curve_max_deviation <= 1%", "loss_deviation <= 1%")


def loss_of(step):
    return 1.0 + 1.0 / step


def losses(log, number, first, last, ratio=1.0, wrong=()):
    """Steps with the loss of the fault-free job, times `ratio`; those of `wrong` are not finite."""
    for step in range(first, last + 1):
        loss = float("nan") if step in wrong else ratio * loss_of(step)
        log.steps(number, step, step, loss=loss)


def counted(log, number, *ranks, step, by="parameters", **fields):
    for rank in ranks:
        told = {"count_kept_by": by, **fields}
        at = log.at
        log.events.append(Event("steps_counted", "rank", at, at, 10 * number + rank, rank=rank, step=step, fields=told))


def resumed(*counts, first=RESUMED, ratio=1.0, until=LAST, wrong=(), baseline=True, last=LAST, gates=GATES):
    """Attempt 1 is killed in step 13; attempt 2 tells of its count by `counts` and commits from `first` on.

    Its losses up to the step `until` are `ratio` times those of the baseline.
    """
    log = Log()
    log.events[0].fields.update(gates=list(gates))
    log.events[0].fields["experiment"]["twin"] = baseline
    log.at += STARTUP
    log.attempt(1)
    losses(log, 1, 1, KILLED - 1, wrong=wrong)
    log.kill(1)
    log.at += RESTART
    log.attempt(2)
    for count in counts:
        count(log)
    losses(log, 2, first, min(until, last), ratio)
    losses(log, 2, until + 1, last)
    log.tell("job_ended", outcome="completed")
    if baseline:
        began = len(log.events)
        log.tell("job_started", num_ranks=2, nodes=1, steps=None, runtime="command", command="torchrun t.py")
        log.tell("attempt_started", attempt_number=1, world_size=2)
        losses(log, 3, 1, LAST)
        log.tell("job_ended", outcome="completed")
        for index in range(began, len(log.events)):
            one = log.events[index]
            log.events[index] = Event(
                one.kind, "x", one.time_seconds, one.monotonic_seconds, one.pid, job=BASELINE_JOB, step=one.step,
                fields=one.fields,
            )  # fmt: skip
    log.tell("residue", processes=[], undo_pending=[])
    log.tell("run_ended", reason="completed")
    return log.events


def says(*ranks, step=RESUMED, **fields):
    return lambda log: counted(log, 2, *ranks, step=step, **fields)


def gates_of(summary):
    return {gate["expression"]: gate["passed"] for gate in summary["gates"]}


def test_a_resumed_job_with_the_losses_of_its_baseline_passes():
    summary = summarized(resumed(says(0, 1, resumed_after=AFTER)))
    assert summary["verdict"] == "pass", summary["reasons"]
    assert not any("optimizer" in one or "continued" in one for one in summary["caveats"])
    assert (summary["steps_lost"], summary["steps_committed"]) == (2, LAST)
    assert (summary["loss_deviation_ratio"], summary["loss_curve_max_deviation_ratio"]) == (0.0, 0.0)


def test_the_losses_that_were_kept_are_compared_and_not_those_of_work_that_was_thrown_away():
    """What was done again went otherwise, to the end: only the second pass shows it."""
    summary = summarized(resumed(says(0, 1, resumed_after=AFTER), ratio=1.1, last=KILLED - 1))
    assert summary["loss_curve_max_deviation_ratio"] == pytest.approx(0.1)
    assert summary["loss_deviation_ratio"] > 0.01
    assert gates_of(summary) == {
        "steps_lost <= 2": True,
        "loss_curve_max_deviation <= 1%": False,
        "loss_deviation <= 1%": False,
        "unrecovered_incidents == 0": True,
    }
    assert summary["verdict"] == "fail"


def test_steps_beyond_the_end_of_the_last_attempt_are_compared_with_nothing():
    log = resumed(says(0, 1, resumed_after=AFTER), last=RESUMED)
    summary = summarized(log)
    # Ten steps up to the eleventh; the twelfth was thrown away.
    assert summary["final_loss"] == pytest.approx(sum(map(loss_of, range(2, RESUMED + 1))) / 10)


def test_a_loss_that_is_not_finite_stays_as_evidence_when_its_step_was_done_again():
    summary = summarized(resumed(says(0, 1, resumed_after=AFTER), wrong=(KILLED - 1,)))
    assert summary["first_non_finite_loss_step"] == KILLED - 1
    assert summary["loss_curve_max_deviation_ratio"] == 0.0
    assert "not finite from step 12 on" in " ".join(summary["reasons"])


def test_an_optimizer_that_was_not_restored_is_told_and_nothing_else_is_wrong_with_the_count():
    fresh = {"optimizer_steps": 0, "is_optimizer_fresh": True}
    summary = summarized(resumed(says(0, 1, resumed_after=AFTER, **fresh)))
    assert (summary["verdict"], summary["steps_lost"], summary["steps_from_scratch"]) == ("pass", 2, 0)
    (told,) = (caveat for caveat in summary["caveats"] if "optimizer" in caveat)
    assert "Attempt 2 continued without the state of its optimizer: that was empty, and its count" in told
    assert f"parameters are those of step {AFTER}" in told
    # Of an optimizer without a count there is none to speak of.
    summary = summarized(resumed(says(0, 1, resumed_after=AFTER, is_optimizer_fresh=True)))
    assert "empty, while the parameters" in " ".join(summary["caveats"])


@pytest.mark.parametrize("by", ["parameters", "optimizer", "nothing_loaded"])
def test_who_begins_anew_with_a_new_optimizer_is_told_to_have_begun_anew(by):
    counts = says(0, 1, step=1, by=by, resumed_after=0, optimizer_steps=0, is_optimizer_fresh=True)
    summary = summarized(resumed(counts, first=1))
    assert summary["steps_from_scratch"] == summary["steps_lost"] == KILLED - 1
    assert "started again from step 1" in summary["reasons"][0]
    assert not any("without the state" in caveat for caveat in summary["caveats"])


def test_where_nobody_knows_where_it_continued_nothing_is_compared_and_nothing_is_called_recomputed():
    summary = summarized(resumed(says(0, 1, step=1, by="nobody"), first=1))
    unknown = ("steps_lost", "steps_repeated", "steps_committed", "baseline_loss", "loss_deviation_ratio")
    assert {key: summary[key] for key in unknown} == dict.fromkeys(unknown)
    assert (summary["steps_unknown_because"], summary["steps_from_scratch"]) == ("not_counted", 0)
    assert gates_of(summary) == {**dict.fromkeys(GATES), "unrecovered_incidents == 0": True}
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    # What it ended with is known all the same.
    assert summary["final_loss"] == pytest.approx(sum(map(loss_of, range(LAST - 9, LAST + 1))) / 10)
    assert not any("recomputed" in reason or "step 1" in reason for reason in summary["reasons"])
    assert any("the numbers of the steps after the restart are not known" in one for one in summary["caveats"])


def test_one_rank_does_not_speak_for_all():
    counts = says(0, resumed_after=AFTER), says(1, resumed_after=5, step=6)
    summary = summarized(resumed(*counts, gates=()))
    assert (summary["verdict"], summary["steps_unknown_because"]) == ("inconclusive", "ranks_differ")
    assert (summary["steps_lost"], summary["loss_deviation_ratio"]) == (None, None)
    assert "rank 0 after step 10, rank 1 after step 5" in summary["reasons"][0]


@pytest.mark.parametrize(
    "counts",
    [
        # Rank 0 loads and sends what it loaded to the other, whose part of it was never seen.
        (says(0, resumed_after=AFTER), says(1, by="nothing_loaded", resumed_after=0)),
        (says(0, resumed_after=AFTER), says(1, by="optimizer", resumed_after=0, optimizer_steps=0)),
        (says(0, resumed_after=AFTER), says(1, by="nobody")),
        # Groups of torchft come back each by itself, where the others are.
        (says(0, by="torchft", resumed_after=AFTER), says(1, by="torchft", resumed_after=20)),
    ],
)
def test_ranks_that_know_less_contradict_nobody(counts):
    summary = summarized(resumed(*counts))
    assert (summary["verdict"], summary["steps_lost"]) == ("pass", 2), summary["reasons"]


def test_what_an_old_process_says_late_is_not_of_the_new_attempt():
    late = lambda log: counted(log, 1, 1, step=KILLED, by="optimizer", resumed_after=0)  # noqa: E731
    summary = summarized(resumed(late, says(0, 1, resumed_after=AFTER)))
    assert (summary["verdict"], summary["steps_lost"]) == ("pass", 2), summary["reasons"]


def test_gates_on_the_loss_of_steps_see_each_pass_of_them():
    gates = ("training_loss max after <= 2.5", "training_loss max <= 2.5")
    again = {"first": 6, "until": KILLED - 1, "gates": gates, "baseline": False}
    summary = summarized(resumed(says(0, 1, step=6, resumed_after=5), ratio=3.0, **again))
    assert list(gates_of(summary).values())[:2] == [False, False]
    fine = summarized(resumed(says(0, 1, step=6, resumed_after=5), **again))
    assert list(gates_of(fine).values())[:2] == [True, True]
