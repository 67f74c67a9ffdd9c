"""Trainings by kind that continue a checkpoint: the right ones raise no alarm, and of wrong ones it is said what is.

The job is killed at step 35 and started again, which goes on after step 30. Each script keeps a log of what it did.
"""

import json
import os
import signal
import sys

import pytest

from harness.analysis.resume.read import read_resume_figures
from mecefo_runtime.system.job_records import CheckpointWritten
from mecefo_runtime.system.records import parse
from tests.external.jobs import SCRIPTS, STAY, run_job

KINDS = SCRIPTS / "kinds"
# Of the 44 steps and 4 that are taken twice.
NUM_PASSES = 48


def kill(held):
    os.kill(held.session.process.pid, signal.SIGKILL)
    return STAY


def killed_and_started_again(folder, script, kind="", bug="", num_ranks=1):
    """What is found of the restart, and by rank, step and start what the script says it did."""
    command = [sys.executable, str(KINDS / "mini.py"), str(num_ranks), "0", str(KINDS / f"{script}.py")]
    variables = {"KIND": kind, "BUG": bug}
    holds = [(num_ranks - 1, 35, "forward")]
    first = run_job(folder, command, holds=holds, on_hold=kill, environment={**variables, "EARLIER": "0"})
    assert first.exit_code == 1 and [held.place for held in first.held] == holds, first.stderr
    later = run_job(folder, command, environment={**variables, "EARLIER": "1"}, states_of=first)
    assert later.exit_code == 0, later.stderr
    assert "chaos:" not in first.stderr + later.stderr
    records = sorted(map(parse, first.events + later.events), key=lambda one: one.monotonic_seconds)
    saved = [one for one in records if isinstance(one, CheckpointWritten)]
    figures = read_resume_figures(records, [], saved, first_fault_seconds=None, are_steps_counted=True)
    lines = map(json.loads, (folder / "truth.jsonl").read_text().splitlines())
    truth = {(one["rank"], one["step"], int(one["start"])): one for one in lines if one["event"] == "done"}
    for one in records:
        own = truth.get((one.rank, one.step, one.attempt - 1), {})
        if one.kind == "step_seen" and "samples" in own and one.indices and kind != "scaler":
            assert [index for batch in one.indices for index in batch] == own["samples"]
    return figures, truth


# Some steps of the scaler's are left out, and are none.
RIGHT = [
    *(("loop", kind, 1) for kind in ("", "accumulation", "microbatches", "summed", "workers", "start_index", "sgd")),
    *(("loop", kind, 1) for kind in ("evaluated", "evaluated_at_start", "evaluated_in_training_mode", "ema", "metric")),
    *(("loop", kind, 1) for kind in ("augmented", "augmented_workers", "compiled", "clipped", "thread", "rotation")),
    *(("loop", kind, 2) for kind in ("", "distributed", "padding", "epochs", "persistent", "no_set_epoch", "norm")),
    *(("others", kind, 1) for kind in ("nanogpt", "seeded", "lbfgs", "stream")),
    ("loop", "unsaved", 1),
    ("sharded", "sync", 2),
    ("sharded", "async", 2),
    ("accelerated", "", 1),
    ("accelerated", "", 2),
    ("trainer", "", 1),
    ("trainer", "jit", 1),
    ("lightned", "", 1),
]
EVERY_CHANGE = [("loop", "evaluated_with_grad", 1), ("loop", "scaler", 1)]


@pytest.mark.parametrize(
    ("script", "kind", "num_ranks"),
    [
        *(pytest.param(*one, marks=pytest.mark.external) for one in EVERY_CHANGE),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in RIGHT),
    ],
)
def test_a_right_training_raises_no_alarm(tmp_path, script, kind, num_ranks):
    figures, _ = killed_and_started_again(tmp_path, script, kind, num_ranks=num_ranks)
    (one,) = figures.resumes
    assert (figures.resume_differs, one.judged, one.unobserved) == (0, (), ())
    assert {"batches", "rates", "random", "parameters"} <= {*one.kinds}
    assert figures.samples_repeated in (0, None) and figures.samples_missed in (0, None)
    if script == "loop" and kind != "start_index":
        # Its own sampler is not known.
        assert figures.samples_repeated == 0


WRONG = [
    ("loop", "", "random_of_rank_1", 2, {("random", (1,))}),
    ("loop", "", "random", 1, {("random", (0,))}),
    ("loop", "", "scheduler", 1, {("rates", (0,))}),
    ("loop", "", "moments", 1, {("optimizer", (0,))}),
    ("loop", "sgd", "moments", 1, {("optimizer", (0,))}),
    ("loop", "sgd", "optimizer", 1, {("optimizer", (0,)), ("rates", (0,))}),
    ("loop", "scaler", "scaler", 1, {("scaler", (0,))}),
    ("loop", "norm", "buffers", 2, {("buffers", (0, 1))}),
    ("loop", "", "layer", 1, {("parameters", (0,))}),
    ("loop", "", "too_far", 1, {("batches", (0,))}),
    ("loop", "", "too_little", 1, {("batches", (0,))}),
    ("loop", "", "length", 2, {("batches", (0, 1))}),
    ("loop", "", "command_line_rate", 1, {("rates", (0,))}),
    ("loop", "", "step_twice", 1, {("batches", (0,))}),
    ("loop", "epochs", "set_epoch", 2, {("batches", (0, 1))}),
    ("loop", "accumulation", "remainder", 1, {("batch_size", (0,)), ("random", (0,))}),
    ("loop", "start_index", "too_far", 1, {("batches", (0,))}),
    ("others", "nanogpt", "draws", 1, {("batches", (0,)), ("random", (0,))}),
    ("others", "gan", "generator", 1, {("optimizer", (0,))}),
    ("others", "stream", "place", 1, {("batches", (0,))}),
    ("sharded", "sync", "shard", 2, {("optimizer", (0, 1))}),
    ("accelerated", "", "random", 1, {("random", (0,))}),
    ("accelerated", "", "skip", 1, {("batches", (0,))}),
    ("trainer", "", "skip", 1, {("batches", (0,)), ("random", (0,))}),
    ("lightned", "", "middle", 1, {("batches", (0,))}),
]
RANK_1 = {("optimizer", (1,)), ("optimizer_steps", (1,)), ("rates", (1,))}


@pytest.mark.parametrize(
    ("script", "kind", "bug", "num_ranks", "expected"),
    [
        pytest.param("loop", "", "order", 1, {("batches", (0,))}, marks=pytest.mark.external),
        pytest.param("loop", "epochs", "optimizer_of_rank_1", 2, RANK_1, marks=pytest.mark.external),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in WRONG),
    ],
)
def test_what_was_not_restored_is_found(tmp_path, script, kind, bug, num_ranks, expected):
    figures, truth = killed_and_started_again(tmp_path, script, kind, bug, num_ranks)
    (one,) = figures.resumes
    assert {(difference.kind, difference.ranks) for difference in one.judged} == expected
    assert figures.resume_differs == len(expected)
    if bug == "order":
        assert figures.first_differing_step == one.resumed_after + 1 == 31
        kept = {step: line for (_, step, _), line in sorted(truth.items(), key=lambda item: item[0][2])}
        used = [sample for line in kept.values() for sample in line["samples"]]
        assert figures.samples_repeated == len(used) - len(set(used)) > 0


@pytest.mark.nightly
def test_of_a_training_whose_batches_are_not_all_seen_nothing_is_said(tmp_path):
    for bug in ("", "random"):
        (folder := tmp_path / f"gan{bug}").mkdir()
        figures, _ = killed_and_started_again(folder, "others", "gan", bug)
        (one,) = figures.resumes
        assert (figures.resume_differs, one.judged) == (None, ())
        assert [reason.code for reason in one.unobserved] == ["batches_not_seen"]
