"""Checkpoints of real jobs: written beside training, read under another layout, refused when damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mecefo_runtime.checkpoint.checkpoint import verify
from tests.integration.runs import (
    PATIENT,
    Finished,
    assert_holders_agree,
    assert_survived,
    paced,
    run_chaos,
    saved_before,
)

pytestmark = pytest.mark.integration

STEPS = 24
EXPERIMENT = """
name: checkpoints
twin: false
job:
  nodes: 2
  gpus_per_node: 2
  steps: 24
  dilation: off
  strategy: exact
  data_parallel: {data_parallel}
  microbatches_per_replica: {microbatches}
  checkpoint: {{every_steps: 10, folder: "{folder}", keep: 9, resume: {resume}}}
"""


def train(folder: Path, checkpoints: Path, *, data_parallel: int = 2, resume: bool = False) -> Finished:
    folder.mkdir()
    text = EXPERIMENT.format(
        data_parallel=data_parallel,
        microbatches=8 // data_parallel,
        folder=checkpoints,
        resume="true" if resume else "false",
    )
    path = folder / "experiment.yaml"
    path.write_text(text)
    return run_chaos(folder, str(path), patch=PATIENT)


def losses_of(run: Finished, after: int = 0) -> list[float]:
    return [event.fields["loss"] for event in run.of("step_committed") if (event.step or 0) > after]


def assert_every_unit_was_written_once(run: Finished, *steps: int) -> None:
    """That the checkpoints of `steps` are whole, and training hardly waited for them."""
    for step in steps:
        written = [event for event in run.of("checkpoint_written") if event.step == step]
        units = sorted(unit for event in written for unit in event.fields["units"])
        assert units == ["embedding", "head", *(f"layer.{layer}" for layer in range(4))]
        assert all(event.fields["blocking_seconds"] <= event.fields["writing_seconds"] + 1 for event in written)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(the run that wrote them, a folder of checkpoints of steps 10 and 20)."""
    folder = tmp_path_factory.mktemp("saved")
    run = train(folder / "run", folder / "checkpoints")
    assert run.summary["steps_committed"] == STEPS
    return run, folder / "checkpoints"


@pytest.mark.nightly
def test_every_unit_is_written_once_and_training_hardly_waits(saved):
    run, folder = saved
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000020"]
    assert_every_unit_was_written_once(run, 10, 20)
    assert not run.of("warning")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "data_parallel",
    [pytest.param(1, id="one replica of four stages"), pytest.param(4, id="four replicas of one stage")],
)
def test_a_job_goes_on_under_another_layout_with_the_same_losses(saved, tmp_path, data_parallel):
    first, folder = saved
    copy = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000010", copy / "step-00000010")
    second = train(tmp_path / "run", copy, data_parallel=data_parallel, resume=True)
    (restored,) = second.of("checkpoint_restored")
    assert restored.step == 10
    assert [event.step for event in second.of("step_committed")] == list(range(11, STEPS + 1))
    assert losses_of(second) == pytest.approx(losses_of(first, after=10), rel=1e-5)
    assert second.summary["steps_lost"] == 0
    assert_holders_agree(second)


def damage(folder: Path) -> Path:
    """Flip one bit in the middle of the largest file of `folder`."""
    path = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return path


@pytest.mark.nightly
def test_a_damaged_checkpoint_is_refused_by_name_and_an_older_one_taken(saved, tmp_path):
    first, folder = saved
    copy = tmp_path / "checkpoints"
    shutil.copytree(folder, copy)
    path = damage(copy / "step-00000020")
    second = train(tmp_path / "run", copy, resume=True)
    assert any(str(path) in event.fields["message"] for event in second.of("warning"))
    assert [event.step for event in second.of("checkpoint_restored")] == [20, 10]
    assert losses_of(second) == pytest.approx(losses_of(first, after=10), rel=1e-5)


@pytest.mark.nightly
def test_when_all_are_damaged_the_job_stops_and_says_which_file(saved, tmp_path):
    _, folder = saved
    copy = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000010", copy / "step-00000010")
    path = damage(copy / "step-00000010")
    run = train(tmp_path / "run", copy, resume=True)
    assert run.summary["steps_committed"] == 0
    (failed,) = run.of("job_failed")
    assert str(path) in failed.fields["reason"]
    assert run.exit_code != 0


def test_losing_every_holder_of_a_layer_goes_back_to_the_newest_checkpoint(tmp_path):
    text = EXPERIMENT.format(data_parallel=2, microbatches=1, folder=tmp_path / "checkpoints", resume="false")
    kill = "faults: [{kind: kill-process, on: stage=0, at: {step: 16}, repair: 1step}]\n"
    path = tmp_path / "experiment.yaml"
    path.write_text(text.replace("twin: false", "twin: true") + kill)
    run = run_chaos(tmp_path, str(path), patch=PATIENT + saved_before(16, 10))
    assert_every_unit_was_written_once(run, 10, 20)
    (restored,) = run.of("checkpoint_restored")
    assert restored.step == 10
    assert run.summary["steps_lost"] == 5
    assert run.summary["steps_committed"] == STEPS
    assert run.summary["loss_deviation_ratio"] < 1e-5
    # Whoever has to go back loses steps: that alone fails no run (`builtin_gates`).
    assert run.exit_code == 0
    assert "steps_lost == 0" not in [gate["expression"] for gate in run.summary["gates"]]


@pytest.mark.nightly
def test_a_node_lost_while_a_checkpoint_is_written_costs_that_checkpoint_at_most(tmp_path):
    text = EXPERIMENT.format(data_parallel=2, microbatches=4, folder=tmp_path / "checkpoints", resume="false")
    kill = "faults: [{kind: kill-node, on: node=1, at: {step: 10, phase: checkpoint}, repair: 3steps}]\n"
    path = tmp_path / "experiment.yaml"
    path.write_text(text.replace("twin: false", "twin: true") + kill)
    # Eleven steps are left for the node to start in.
    run = run_chaos(tmp_path, str(path), patch=PATIENT + paced(0.2))
    assert_survived(run, STEPS, at=10, phase="checkpoint")
    assert run.summary["loss_deviation_ratio"] < 1e-5
    newest = max(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert verify(tmp_path / "checkpoints" / newest).step == 20
