"""Exact takeover: the losses are the fault-free baseline's through failure and rejoin."""

import pytest

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.events import BASELINE_JOB
from mecefo_runtime.system.json_values import from_json
from tests.integration.runs import PATIENT, SLOW_UNTIL_BACK, assert_holders_agree, assert_survived, run_chaos

pytestmark = pytest.mark.integration

# Measured: 2e-7 over 80 steps, the order of float32 sums. The approximated takeover comes to 1e-2.
MAX_DEVIATION_RATIO = 1e-5
STEPS = 40
# By then the replicas that lose nobody have computed most of their share, too, and that is kept.
FAULT = ("kill-node", "--at", "step=8,phase=reduce", "--on", "node=1", "--repair", "5steps")
JOB = ("--steps", str(STEPS), "--dilation", "off", "--twin", "--microbatches-per-replica", "2")


def test_losses_equal_the_baselines(tmp_path):
    run = run_chaos(tmp_path, *FAULT, *JOB, "--strategy", "exact", patch=PATIENT + SLOW_UNTIL_BACK)
    assert_survived(run, STEPS, at=8, phase="reduce")
    assert_holders_agree(run, BASELINE_JOB)
    assert [event.fields["degraded_layers"] for event in run.of("layout")] == [0, 0, 0]
    lost = run.of("layout")[1].fields
    assert 0 < lost["kept_microbatches"] == 8 - lost["shared_out_microbatches"], "the step was begun anew"
    assert sorted({event.step for event in run.of("step_committed", BASELINE_JOB)}) == list(range(1, STEPS + 1))
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


# As much memory as the configured stages take: one rank alone cannot hold the model.
MERGING = """
name: merging
job:
  {nodes: 2, gpus_per_node: 2, steps: 40, dilation: off, strategy: oobleck-like, rank_memory_bytes: 1}
faults: [{kind: kill-node, on: node=1, at: {step: 10}, repair: 5steps}]
"""


@pytest.mark.nightly
def test_two_replicas_that_become_one_lose_nothing(tmp_path):
    path = tmp_path / "merging.yaml"
    path.write_text(MERGING)
    run = run_chaos(tmp_path, str(path), patch=PATIENT + SLOW_UNTIL_BACK)
    assert_survived(run, 40, at=10)
    assert_holders_agree(run, BASELINE_JOB)
    layouts = [from_json(Layout, event.fields["layout"]) for event in run.of("layout")]
    ranks = [[[span.rank for span in replica.spans] for replica in layout.replicas] for layout in layouts]
    assert ranks == [[[0, 2], [3, 1]], [[0, 1]], [[0, 2], [3, 1]]]
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
