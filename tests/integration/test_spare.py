"""SPARe on real processes: a lost replica is masked exactly, and a wipe-out goes back to memory."""

import pytest

from mecefo_runtime.system.events import BASELINE_JOB
from tests.integration.runs import PATIENT, SLOW_UNTIL_BACK, assert_holders_agree, assert_survived, run_chaos

pytestmark = pytest.mark.integration

# As in test_exact: the order of float32 sums.
MAX_DEVIATION_RATIO = 1e-5
# Replicas 0 and 3 hold shard 0: each shard is held by two.
JOB = """{nodes: 4, gpus_per_node: 1, data_parallel: 4, pipeline: 1, microbatches_per_replica: 1, steps: 30,
  dilation: off, strategy: spare%s}"""


def experiment(folder, faults, *settings):
    path = folder / "spare.yaml"
    path.write_text(f"name: spare\njob: {JOB % ''.join(settings)}\nfaults:\n{faults}")
    return str(path)


def test_a_masked_replica_moves_no_state_and_changes_no_loss(tmp_path):
    faults = "  - {kind: kill-node, on: node=1, at: {step: 6, phase: reduce}, repair: 3steps}\n"
    run = run_chaos(tmp_path, experiment(tmp_path, faults), patch=PATIENT + SLOW_UNTIL_BACK)
    assert_survived(run, 30, at=6, phase="reduce")
    assert_holders_agree(run, BASELINE_JOB)
    assert [event.fields.get("stack_depth") for event in run.of("layout")] == [None, 2, None]
    assert run.of("layout")[1].fields["num_transfers"] == 0
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


@pytest.mark.nightly
def test_after_a_wipe_out_all_go_on_from_memory(tmp_path):
    faults = "".join(
        f"  - {{kind: kill-node, on: node={node}, at: {{step: {step}}}, repair: {back}steps}}\n"
        for node, step, back in ((0, 12, 8), (3, 16, 1))
    )
    run = run_chaos(tmp_path, experiment(tmp_path, faults, ", snapshots: {every: 1}"), patch=PATIENT)
    assert run.summary["verdict"] == "pass" and run.of("restarting")
    assert run.summary["loss_deviation_ratio"] < MAX_DEVIATION_RATIO
