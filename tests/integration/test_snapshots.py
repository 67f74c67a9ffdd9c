"""Real jobs of which more is lost than their peers hold: the state comes back from the memory of the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mecefo_runtime.job.snapshot_interval import SnapshotCosts, interval_steps
from tests.integration.runs import PATIENT, SLOW_UNTIL_BACK, Finished, assert_holders_agree, paced, run_chaos

pytestmark = pytest.mark.integration

MAX_DEVIATION_RATIO = 1e-3
EXPERIMENT = """
name: snapshots
job:
  {{nodes: {nodes}, gpus_per_node: {gpus}, data_parallel: 2, pipeline: 2, steps: {steps}, dilation: off,
    microbatches_per_replica: {microbatches}, strategy: {strategy}, sharded_optimizer: {sharded},
    snapshots: {{every: {every}, protection: {protection}, memory: 256MiB}}}}
faults:
{faults}
"""


def run(folder: Path, *faults: str, patch: str = PATIENT, **settings: object) -> Finished:
    path = folder / "experiment.yaml"
    listed = "\n".join(f"  - {{{fault}}}" for fault in faults)
    told = {"nodes": 2, "gpus": 2, "every": 1, "protection": "xor", "steps": 30, "strategy": "exact", "sharded": False}
    told |= {"microbatches": 3} | settings
    path.write_text(EXPERIMENT.format(faults=listed, **told))
    return run_chaos(folder, str(path), patch=patch)


@pytest.mark.nightly
def test_every_training_process_is_killed_in_the_middle_of_a_copy_and_the_older_one_is_taken(tmp_path):
    finished = run(tmp_path, "kind: kill-job, at: {step: 12, phase: snapshot}")
    (injected,) = finished.of("injected")
    assert injected.fields["held_ranks"] == [0, 1, 2, 3]
    # These steps take less time than a snapshot does on a busy machine: some have none.
    copied = injected.step
    assert 12 <= copied < 30
    (restored,) = finished.of("snapshot_restored")
    assert 1 <= restored.step < copied
    assert restored.fields["rebuilt_nodes"] == []
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["steps_lost"] == copied - restored.step
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    assert_holders_agree(finished)
    assert not finished.of("checkpoint_restored")


@pytest.mark.nightly
def test_two_nodes_with_all_that_hold_a_stage_are_lost_while_both_encode_and_rebuilt_by_the_others(tmp_path):
    """One rank a node, two replicas of two stages: two nodes have a stage to themselves."""
    finished = run(
        tmp_path,
        "kind: kill-node, on: stage=0, at: {step: 12, phase: encode}, repair: 8steps",
        nodes=4,
        gpus=1,
        protection="pq",
    )
    # A source that is gone by the time it is asked is found to be gone, and the next best is taken.
    restored = finished.of("snapshot_restored")[-1]
    (injected,) = finished.of("injected")
    assert injected.fields["held_nodes"] == injected.fields["nodes"]
    assert 1 <= restored.step < injected.step
    assert restored.fields["rebuilt_nodes"] == sorted({process["node"] for process in injected.fields["processes"]})
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


def test_a_flipped_bit_is_found_and_what_it_damaged_comes_from_the_parity(tmp_path):
    both = "at: {step: 12, phase: snapshot}"
    finished = run(tmp_path, f"kind: flip-snapshot-bit, on: node=1, {both}", f"kind: kill-job, {both}", steps=20)
    assert [incident["verified"] for incident in finished.summary["incidents"]] == [True, True]
    (flipped,) = finished.one("verified").fields["evidence"]["parts"]
    # Said where it was found, and as the reason why it was not used.
    assert any(flipped["refused"] in str(warning.fields["message"]) for warning in finished.of("warning"))
    said = [regrouped.fields.get("passed_over", {}).get("snapshot", "") for regrouped in finished.of("regrouped")]
    assert any(flipped["refused"] in reason for reason in said)
    tried, restored = finished.of("snapshot_restored")
    assert (tried.fields["rebuilt_nodes"], restored.fields["rebuilt_nodes"]) == ([], [1])
    assert restored.step == tried.step == flipped["step"]
    assert finished.summary["steps_committed"] == 20
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    assert_holders_agree(finished)


@pytest.mark.nightly
def test_a_node_is_lost_and_another_ones_memory_is_damaged_and_nothing_damaged_is_rebuilt_from(tmp_path):
    at = "at: {step: 12, phase: snapshot}"
    kill = f"kind: kill-node, on: node=0, {at}, repair: 8steps"
    finished = run(
        tmp_path, f"kind: flip-snapshot-bit, on: node=1, {at}", kill, nodes=4, gpus=1, protection="pq", strategy="reft"
    )
    assert [incident["verified"] for incident in finished.summary["incidents"]] == [True, True]
    restored = finished.of("snapshot_restored")[-1]
    assert restored.fields["rebuilt_nodes"] == [0, 1]
    (flipped,) = finished.one("verified").fields["evidence"]["parts"]
    assert restored.step == flipped["step"]
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


@pytest.mark.nightly
@pytest.mark.parametrize("phase", ["snapshot", "encode"])
@pytest.mark.parametrize(
    "fault",
    ["kill-process, on: rank=2, repair: 8steps", "kill-node, on: node=1, repair: 8steps", "kill-smp, on: node=1"],
)
def test_any_kill_strikes_in_the_middle_of_a_copy_or_of_an_encoding(tmp_path, fault, phase):
    finished = run(tmp_path, f"kind: {fault}, at: {{step: 12, phase: {phase}}}")
    (incident,) = finished.summary["incidents"]
    assert incident["verified"]
    injected = finished.one("injected")
    if phase == "encode":
        assert injected.fields["held_nodes"] == [1] and not injected.fields["held_ranks"]
    else:
        assert injected.fields["held_ranks"] == ([2] if "rank=2" in fault else [2, 3])
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


def test_reft_starts_all_ranks_again_from_memory_and_rebuilds_what_a_lost_node_had(tmp_path):
    fault = "kind: kill-node, on: node=1, at: {step: 12, phase: backward}, repair: 8steps"
    finished = run(tmp_path, fault, nodes=4, gpus=1, strategy="reft", microbatches=1, patch=PATIENT + paced(0.15, 12))
    assert next(event.kind for event in finished.events if event.kind in ("restarting", "rejoined")) == "restarting"
    (incident,) = finished.summary["incidents"]
    told = incident["state_restored"]
    assert finished.summary["state_restores"] == [told]
    assert (told["rung"], told["steps_lost"]) == ("parity", 11 - told["step"])
    assert set(told["sources"]) == {"snapshot", "parity"}
    assert told["passed_over"] == {
        "peer": "the strategy ends all ranks after a loss",
        "snapshot": f"that of step {told['step']} lacks what node 1 kept",
    }
    assert finished.summary["steps_committed"] == 30
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    assert_holders_agree(finished)


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_nodes_are_lost_one_after_the_other_and_each_time_the_others_protect_what_is_left_anew(tmp_path):
    """With XOR each of the two losses is one too many, were it not for that: no snapshot is taken in between."""
    finished = run(
        tmp_path,
        "kind: kill-node, on: node=1, at: {step: 52}, repair: 4steps",
        "kind: kill-node, on: node=3, at: {step: 66}, repair: 4steps",
        "kind: kill-job, at: {step: 77, phase: backward}",
        nodes=4,
        gpus=1,
        every=40,
        steps=80,
        patch=PATIENT + paced(0.15),
    )
    unprotected, protected = finished.of("snapshots_unprotected"), finished.of("snapshots_protected")
    assert [(one.step, one.fields["nodes"]) for one in unprotected] == [(40, [1]), (40, [3])]
    assert [(one.step, one.fields["is_reencoded"]) for one in protected] == [(40, True), (40, True)]
    (restored,) = finished.of("snapshot_restored")
    assert restored.step == 40
    assert finished.summary["steps_committed"] == 80
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


@pytest.mark.nightly
def test_the_interval_follows_from_the_cost_and_the_losses_and_is_in_the_log(tmp_path):
    finished = run(
        tmp_path,
        "kind: kill-job, at: {step: 60, phase: backward}",
        every="auto, mtbf: 10min",
        steps=70,
        protection="xor",
    )
    first, *_ = chosen = finished.of("snapshot_interval")
    costs = {name: first.fields[name] for name in ("stopped_seconds", "complete_seconds", "step_seconds")}
    assert all(costs.values()) and first.fields["mtbf_seconds"] == 600.0
    assert first.fields["every_steps"] == interval_steps(SnapshotCosts(**costs), 600.0)
    (restored,) = finished.of("snapshot_restored")
    # What all have is one that was due by an interval that was in force; the first one is taken at once.
    due = [event.fields["every_steps"] for event in chosen if event.step < restored.step]
    assert restored.step == first.step - 1 or not due or any(restored.step % every == 0 for every in due)
    assert finished.summary["steps_committed"] == 70
    # The new ranks have found theirs anew.
    assert any(event.step > restored.step and event.monotonic_seconds > restored.monotonic_seconds for event in chosen)


def test_with_a_sharded_optimizer_only_parity_has_what_a_lost_node_had(tmp_path):
    """Its peers have its parameters, and not its moments. It comes back, and gets its share from those that live."""
    finished = run(
        tmp_path,
        "kind: kill-node, on: node=1, at: {step: 12, phase: reduce}, repair: 2steps",
        nodes=4,
        gpus=1,
        steps=36,
        microbatches=1,
        patch=PATIENT + paced(0.12, 12) + SLOW_UNTIL_BACK,
        sharded=True,
    )
    # The last one of one that failed: a source that is gone by the time it is asked is not asked again.
    restored = finished.of("snapshot_restored")[-1]
    assert restored.fields["rebuilt_nodes"] == [1]
    assert 1 <= restored.step <= 11
    assert finished.summary["steps_committed"] == 36
    assert finished.summary["steps_lost"] == 11 - restored.step
    assert finished.of("rejoined")
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    assert_holders_agree(finished)
