"""Real jobs of which more is lost than their peers hold: the state comes back from the memory of the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.runs import PATIENT, Finished, assert_holders_agree, run_chaos

pytestmark = pytest.mark.integration

MAX_DEVIATION_RATIO = 1e-3
EXPERIMENT = """
name: snapshots
job:
  {{nodes: {nodes}, gpus_per_node: {gpus}, data_parallel: 2, pipeline: 2, steps: {steps}, dilation: off,
    strategy: exact, snapshots: {{every: {every}, protection: {protection}, memory: 256MiB}}}}
faults:
{faults}
"""


def run(folder: Path, *faults: str, **settings: object) -> Finished:
    path = folder / "experiment.yaml"
    listed = "\n".join(f"  - {{{fault}}}" for fault in faults)
    told = {"nodes": 2, "gpus": 2, "every": 1, "protection": "xor", "steps": 30, **settings}
    path.write_text(EXPERIMENT.format(faults=listed, **told))
    return run_chaos(folder, str(path), patch=PATIENT)


def test_every_training_process_is_killed_at_once_and_no_step_that_all_had_is_lost(tmp_path):
    finished = run(tmp_path, "kind: kill-job, at: {step: 12, phase: backward}")
    (restored,) = finished.of("snapshot_restored")
    # These steps take less time than a snapshot does on a busy machine.
    assert 1 <= restored.step <= 11
    assert restored.fields["rebuilt_nodes"] == []
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["steps_lost"] == 11 - restored.step
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    assert_holders_agree(finished)
    assert not finished.of("checkpoint_restored")


def test_two_nodes_with_all_that_hold_a_stage_are_lost_and_rebuilt_by_the_others(tmp_path):
    """One rank a node, two replicas of two stages: nodes 0 and 2, or 0 and 1, have a stage to themselves."""
    finished = run(
        tmp_path,
        "kind: kill-node, on: stage=0, at: {step: 12, phase: backward}, repair: 8steps",
        nodes=4,
        gpus=1,
        protection="pq",
    )
    # A source that is gone by the time it is asked is found to be gone, and the next best is taken.
    restored = finished.of("snapshot_restored")[-1]
    assert 1 <= restored.step <= 11
    (injected,) = finished.of("injected")
    assert restored.fields["rebuilt_nodes"] == sorted({process["node"] for process in injected.fields["processes"]})
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


def test_snapshots_that_are_lost_are_taken_again_and_nobody_misses_a_step(tmp_path):
    finished = run(
        tmp_path,
        "kind: kill-smp, on: node=1, at: {step: 8}",
        "kind: kill-job, at: {step: 150, phase: backward}",
        steps=160,
    )
    assert [incident["verified"] for incident in finished.summary["incidents"]] == [True, True]
    (restored,) = finished.of("snapshot_restored")
    # The new process was asked, some steps later, and all have begun another one.
    assert 8 <= restored.step < 150
    assert finished.summary["steps_committed"] == 160
