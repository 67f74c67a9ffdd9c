"""Further checkpoints of real jobs."""

from __future__ import annotations

import shutil

import pytest

from tests.integration.runs import ChaosRun, assert_holders_agree
from tests.integration.test_checkpoints import EXPERIMENT, STEPS, losses_of, train

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("data_parallel", [4], ids=["four replicas of one stage"])
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


def test_a_checkpoint_of_another_job_is_refused(saved, tmp_path):
    _, folder = saved
    (tmp_path / "run").mkdir()
    text = EXPERIMENT.format(data_parallel=2, microbatches=4, folder=folder, resume="true")
    path = tmp_path / "run" / "experiment.yaml"
    path.write_text(f"seed: 5\n{text}")
    with ChaosRun(tmp_path / "run", ["run", str(path)]) as run:
        assert run.wait() == 4
        assert "seed is 0, not 5" in run.stderr
        assert not list(run.out.glob("*/*/events.jsonl")), "something was started"
