"""Exact takeover: the losses are the fault-free twin's through failure and rejoin."""

import pytest

from mecefo_runtime.system.events import TWIN_JOB
from tests.integration.runs import PATIENT, assert_holders_agree, assert_survived, run_chaos

pytestmark = pytest.mark.integration

# Measured: 2e-7 over 80 steps, the order of float32 sums. The approximated takeover comes to 1e-2.
MAX_DEVIATION_RATIO = 1e-5
STEPS = 80
FAULT = ("kill-node", "--at", "step=20", "--on", "node=1", "--repair", "5steps")
JOB = ("--steps", str(STEPS), "--dilation", "off", "--twin")


def test_losses_equal_the_twins(tmp_path):
    run = run_chaos(tmp_path, *FAULT, *JOB, "--strategy", "exact", patch=PATIENT)
    assert_survived(run, STEPS, at=20)
    assert_holders_agree(run, TWIN_JOB)
    assert [event.fields["degraded_layers"] for event in run.of("layout")] == [0, 0, 0]
    assert sorted({event.step for event in run.of("step_committed", TWIN_JOB)}) == list(range(1, STEPS + 1))
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
