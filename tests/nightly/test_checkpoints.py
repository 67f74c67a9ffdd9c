"""Further checkpoints of real jobs."""

from __future__ import annotations

import pytest

from tests.integration.runs import ChaosRun, event_logs
from tests.integration.test_checkpoints import EXPERIMENT

pytestmark = pytest.mark.nightly


def test_a_checkpoint_of_another_job_is_refused(saved, tmp_path):
    _, folder = saved
    (tmp_path / "run").mkdir()
    text = EXPERIMENT.format(data_parallel=2, microbatches=4, folder=folder, resume="true")
    path = tmp_path / "run" / "experiment.yaml"
    path.write_text(f"seed: 5\n{text}")
    with ChaosRun(tmp_path / "run", ["run", str(path)]) as run:
        assert run.wait() == 4
        assert "seed is 0, not 5" in run.stderr
        assert not event_logs(run.out), "something was started"
