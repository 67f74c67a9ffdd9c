"""Further damage to checkpoints."""

from __future__ import annotations

import pytest

from mecefo_runtime.checkpoint.checkpoint import verify
from tests.integration.test_storage_faults import STEPS, evidence_of, kill_a_stage, messages, restored_steps, train

pytestmark = pytest.mark.nightly


def test_a_checkpoint_that_cannot_be_read_is_passed_over_by_name(tmp_path):
    run = train(tmp_path, "{kind: hide-checkpoint, at: {step: 15}}", kill_a_stage(16))
    assert restored_steps(run) == [6]
    assert f"passed over: {evidence_of(run, 0)['struck']}" in messages(run)
    assert run.summary["steps_committed"] == STEPS
    assert run.of("residue")[0].fields["undo_pending"] == []
    assert verify(tmp_path / "checkpoints" / "step-00000012").step == 12


@pytest.mark.parametrize("kind", ["truncate-checkpoint", "remove-checkpoint-shard"])
def test_without_another_one_the_job_stops_and_names_the_damaged_file(tmp_path, kind):
    run = train(tmp_path, f"{{kind: {kind}, at: {{step: 10}}}}", kill_a_stage(11))
    (reason,) = messages(run, "job_failed", "reason").splitlines()
    assert "no checkpoint can be used" in reason
    assert str(evidence_of(run, 0)["struck"]) in reason
    assert run.exit_code == 1, "a job that dies is the result of a run"
    assert verify(tmp_path / "checkpoints" / "step-00000006").step == 6, "it was not put back"
