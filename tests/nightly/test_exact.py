"""A completed step gives the twin's losses, whenever it was interrupted; and the twin sees an approximation."""

import pytest

from chaos.language.trigger import PHASES
from mecefo_runtime.system.events import BASELINE_JOB
from tests.integration.runs import (
    PATIENT,
    SLOW_UNTIL_BACK,
    assert_holders_agree,
    assert_sound,
    assert_survived,
    run_chaos,
)
from tests.integration.test_exact import FAULT, JOB, MAX_DEVIATION_RATIO, STEPS

pytestmark = pytest.mark.nightly

TWICE = """
name: twice
job: {steps: 40, dilation: off, strategy: exact}
faults:
  - {kind: kill-node, on: node=1, at: {step: 15, phase: %s}, repair: 10steps}
  - {kind: kill-process, on: rank=4, at: {step: 15, phase: regroup}, repair: 10steps}
"""


def test_approximation_shows_in_the_comparison(tmp_path):
    """The negative control of the above: another computation gives other losses."""
    run = run_chaos(tmp_path, *FAULT, *JOB, "--strategy", "ndb", patch=PATIENT + SLOW_UNTIL_BACK)
    assert_survived(run, STEPS, at=8, phase="reduce")
    assert run.summary["loss_curve_max_deviation_ratio"] > 10 * MAX_DEVIATION_RATIO


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_losses_equal_the_baselines_whenever_in_a_step_a_node_is_lost(tmp_path, phase):
    fault = ("kill-node", "--at", f"step=8,phase={phase}", "--on", "node=1", "--repair", "5steps")
    run = run_chaos(tmp_path, *fault, *JOB, "--strategy", "exact", patch=PATIENT + SLOW_UNTIL_BACK)
    assert_survived(run, STEPS, at=8, phase=phase)
    assert_holders_agree(run, BASELINE_JOB)
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO


@pytest.mark.parametrize("phase", ["backward", "reduce"])
def test_losses_equal_the_baselines_through_two_losses_in_one_step(tmp_path, phase):
    path = tmp_path / "twice.yaml"
    path.write_text(TWICE % phase)
    run = run_chaos(tmp_path, str(path), patch=PATIENT + SLOW_UNTIL_BACK)
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, 40)
    assert_holders_agree(run, BASELINE_JOB)
    again = [event.fields for event in run.of("layout") if event.fields["resume_step"] == 15]
    assert len(again) >= 2, "both were lost in one step"
    if phase == "reduce":
        # Two of four replicas had computed their share, or most of it; then one of these lost a rank, too.
        first, second = (told["kept_microbatches"] for told in again[:2])
        assert 0 < second < first
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
