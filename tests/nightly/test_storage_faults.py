"""Further damage to checkpoints."""

from __future__ import annotations

import pytest

from chaos.host.small_disk import may_mount
from mecefo_runtime.checkpoint.checkpoint import verify
from tests.integration.runs import assert_sound
from tests.integration.test_storage_faults import (
    DO_NOTHING,
    STEPS,
    evidence_of,
    kill_a_stage,
    messages,
    restored_steps,
    train,
)

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


def test_data_and_checkpoints_that_come_late_make_the_steps_late(tmp_path):
    run = train(
        tmp_path,
        "{kind: slow-data, on: rank=1, at: {step: 8, phase: data}, delay: 300ms, jitter: 50ms}",
        "{kind: slow-checkpoint, on: node=1, at: {step: 16}, delay: 400ms}",
    )
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, STEPS)
    data, checkpoint = evidence_of(run, 0), evidence_of(run, 1)
    assert isinstance(data["sleeps"], dict) and isinstance(checkpoint["sleeps"], dict)
    assert [sleep["step"] for sleep in data["sleeps"]["1"]] == [8, 9, 10, 11, 12], "held before it, it sleeps at once"
    assert {rank: [sleep["step"] for sleep in told] for rank, told in checkpoint["sleeps"].items()} == {
        "2": [18],
        "3": [18],
    }
    committed = {event.step: event.fields["committed_monotonic"] for event in run.of("step_committed")}
    for step in range(9, 13):
        assert committed[step] - committed[step - 1] > 0.15
    assert run.one("undone", 0).fields["evidence"]["ranks"] == [1]


def test_faults_that_do_nothing_are_inconclusive(tmp_path):
    faults = ["{kind: flip-checkpoint-bit, at: {step: 10}}", "{kind: slow-data, on: rank=1, at: {step: 11}}"]
    if may_mount():
        faults.append("{kind: fill-disk, at: {step: 9}}")
    run = train(tmp_path, *faults, patch=DO_NOTHING)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]
    assert not any(incident["verified"] for incident in run.summary["incidents"])
    flip, slow, *fill = (incident["unverified_reason"] for incident in run.summary["incidents"])
    assert "still takes" in flip
    assert "before its effect was seen" in slow or "reported nothing" in slow
    assert all("its disk is not full" in reason for reason in fill)
    assert run.summary["steps_committed"] == STEPS
    assert run.of("residue")[0].fields["undo_pending"] == []
