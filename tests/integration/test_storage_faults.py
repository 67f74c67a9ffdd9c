"""Faults of checkpoints, disks and loaders on real jobs, and what the job makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.host.small_disk import may_mount
from mecefo_runtime.checkpoint.checkpoint import complete, verify
from tests.integration.runs import IN_RANKS, PATIENT, Finished, assert_sound, run_chaos
from tests.integration.test_negative_controls import IN_COMMAND

pytestmark = pytest.mark.integration

STEPS = 24
EXPERIMENT = """
name: storage
twin: false
job:
  nodes: 2
  gpus_per_node: 2
  steps: 24
  dilation: off
  strategy: exact
  checkpoint: {every_steps: 6, folder: CHECKPOINTS, keep: 9}
faults:
"""
# In all of its processes, but it does nothing in the others.
DO_NOTHING = f"""{IN_COMMAND}
    import chaos.faults.storage.checkpoint, chaos.faults.storage.disk

    chaos.faults.storage.checkpoint.FlipCheckpointBit._damage = lambda self, path, details: None
    chaos.faults.storage.disk._fill = lambda ballast, limit_bytes: ballast.touch()
{IN_RANKS}
    import chaos.in_process.slow

    chaos.in_process.slow.DelayPhase._sleep = lambda self, step, phase: None
"""


def train(folder: Path, *faults: str, patch: str = "") -> Finished:
    path = folder / "experiment.yaml"
    text = EXPERIMENT.replace("CHECKPOINTS", str(folder / "checkpoints"))
    path.write_text(text + "".join(f"  - {fault}\n" for fault in faults))
    return run_chaos(folder, str(path), patch=PATIENT + patch)


def kill_a_stage(step: int) -> str:
    return f"{{kind: kill-process, on: stage=0, at: {{step: {step}}}, repair: 1step}}"


def evidence_of(run: Finished, incident: int) -> dict[str, object]:
    evidence: dict[str, object] = run.one("verified", incident).fields["evidence"]
    return evidence


def restored_steps(run: Finished) -> list[int | None]:
    return [event.step for event in run.of("checkpoint_restored")]


def messages(run: Finished, kind: str = "warning", field: str = "message") -> str:
    return "\n".join(str(event.fields[field]) for event in run.of(kind))


@pytest.mark.nightly
def test_a_flipped_bit_is_found_when_the_checkpoint_is_needed_and_an_older_one_taken(tmp_path):
    run = train(tmp_path, "{kind: flip-checkpoint-bit, at: {step: 15}}", kill_a_stage(16))
    evidence = evidence_of(run, 0)
    assert evidence["step"] == 12
    # Its size is right: it is taken for whole until its bytes are read.
    assert restored_steps(run) == [12, 6]
    assert str(evidence["struck"]) in messages(run)
    assert run.summary["steps_committed"] == STEPS
    assert run.summary["unrecovered_incidents"] == 0
    assert run.of("residue")[0].fields["undo_pending"] == []
    # Written anew on the way, or put back: none is left damaged.
    assert [verify(found.path).step for found in complete(tmp_path / "checkpoints")] == [24, 18, 12, 6]
    assert not (run.folder / "kept").exists()


@pytest.mark.nightly
@pytest.mark.skipif(not may_mount(), reason="takes the right to mount (CAP_SYS_ADMIN)")
def test_a_full_disk_costs_checkpoints_and_no_step_and_the_next_one_is_written(tmp_path):
    run = train(tmp_path, "{kind: fill-disk, at: {step: 10}, for: 4steps}")
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, STEPS)
    evidence = evidence_of(run, 0)
    failed = evidence["checkpoint_failed"]
    assert isinstance(failed, dict) and failed["step"] == 12
    assert evidence["free_bytes"] == 0
    # Of the steps after it; step 18's may have been under way when the disk was taken away.
    steps = [found.step for found in complete(tmp_path / "checkpoints")]
    assert steps[0] == 24 and steps[-1] == 6 and 12 not in steps
    for step in steps:
        verify(tmp_path / "checkpoints" / f"step-{step:08}")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.nightly
def test_before_the_first_checkpoint_the_run_is_inconclusive_and_says_why(tmp_path):
    run = train(tmp_path, "{kind: truncate-checkpoint, at: {step: 3}}")
    assert run.exit_code == 5
    (incident,) = run.summary["incidents"]
    assert "no complete checkpoint" in incident["unverified_reason"]
