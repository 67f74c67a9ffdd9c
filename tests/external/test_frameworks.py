"""Trainers that others wrote: their scripts as of a tutorial, no line changed."""

from statistics import fmean

import pytest

from tests.external.jobs import python, run_job

pytestmark = pytest.mark.external


@pytest.mark.parametrize("accumulation", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_hugging_face_trainer(tmp_path, accumulation):
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    job = run_job(
        tmp_path, python("transformer.py", str(accumulation)), holds=[(0, 4, "forward"), (0, 3, "checkpoint")]
    )
    assert (job.exit_code, job.hellos) == (0, [(0, 0, 1)]), job.stderr
    assert job.steps == [1, 2, 3, 4, 5, 6]
    for event in job.of("step_committed"):
        assert (event.fields["samples"], event.fields["tokens"]) == (4 * accumulation, 32 * accumulation)
    # It logs every step, and evaluates after the third: held after both, before the fourth has done anything.
    (at_save,) = (held for held in job.held if held.phase == "checkpoint")
    (at_forward,) = (held for held in job.held if held.phase == "forward")
    assert sum("'grad_norm'" in line for line in at_forward.printed) == 3
    assert sum("'eval_loss'" in line for line in at_forward.printed) == 1
    assert len(at_save.printed) <= len(at_forward.printed)
    logged = [float(line.split("'")[3]) for line in job.lines if line.startswith("{'loss'")]
    told = [event.fields["loss"] for event in job.of("step_committed")]
    assert told == pytest.approx(logged, abs=0.01)


@pytest.mark.parametrize("accumulation", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_lightning_trainer(tmp_path, accumulation):
    pytest.importorskip("lightning")
    holds = [(0, 1, "forward"), (0, 4, "forward"), (0, 4, "optimizer")]
    job = run_job(tmp_path, python("lightned.py", str(accumulation)), holds=holds)
    assert (job.exit_code, job.hellos) == (0, [(0, 0, 1)]), job.stderr
    assert job.steps == [1, 2, 3, 4, 5, 6]
    assert {event.fields["samples"] for event in job.of("step_committed")} == {8 * accumulation}
    # The loss of a step is the mean of what it logs for its batches.
    logged = [float(line.split()[1]) for line in job.lines if line.startswith("train_loss")]
    means = [fmean(logged[first : first + accumulation]) for first in range(0, 6 * accumulation, accumulation)]
    assert [event.fields["loss"] for event in job.of("step_committed")] == pytest.approx(means, rel=1e-5)
    # It says so before each forward.
    said = {held.place: held.printed.count("training step") for held in job.held}
    assert said == {
        (0, 1, "forward"): 1,
        (0, 4, "forward"): 3 * accumulation + 1,
        (0, 4, "optimizer"): 4 * accumulation,
    }


@pytest.mark.nightly
def test_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    job = run_job(tmp_path, python("accelerated.py"), holds=[(0, 3, "optimizer")])
    assert (job.exit_code, job.steps) == (0, [1, 2, 3, 4, 5, 6]), job.stderr
    assert {event.fields["samples"] for event in job.of("step_committed")} == {16}
    assert [held.place for held in job.held] == [(0, 3, "optimizer")]
