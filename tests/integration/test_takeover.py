"""Take over first, balance after: training goes on with what everybody has while the rest is fetched."""

from __future__ import annotations

import pytest

from tests.integration.runs import assert_sound, paced, run_chaos

pytestmark = pytest.mark.integration

STEPS = 30
EXPERIMENT = """
name: takeover
job: {nodes: 4, gpus_per_node: 2, steps: 30, dilation: off, strategy: exact, takeover: %s}
faults: [{kind: kill-node, on: node=1, at: {step: 8}, repair: 8steps}]
"""


def train(tmp_path, takeover):
    path = tmp_path / "takeover.yaml"
    path.write_text(EXPERIMENT % takeover)
    # Fourteen steps are left for the node to start in, and for the rest to be fetched.
    run = run_chaos(tmp_path, str(path), patch=paced(0.15))
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    assert run.summary["loss_deviation_ratio"] < 1e-5
    return run


def test_state_is_fetched_while_training_goes_on(tmp_path):
    layouts = [event.fields for event in train(tmp_path, "background").of("layout")]
    assert [layout["reason"] for layout in layouts] == ["start", "loss", "balance", "rejoin", "balance"]
    assert [layout["num_transfers"] for layout in layouts] == [0, 0, 0, 0, 0]
    _, first, balanced, rejoin, whole = layouts
    assert first["num_fetched_in_background"] > 0 and rejoin["num_fetched_in_background"] > 0
    # Two replicas lost a rank each: the other two carry on alone, then all four share the work.
    assert len(first["layout"]["replicas"]) == 2
    assert len(balanced["layout"]["replicas"]) == 4
    assert rejoin["layout"] == balanced["layout"]
    assert len(whole["members"]) == 8 and whole["layout"]["replicas"] == layouts[0]["layout"]["replicas"]
    # Training really went on between the two: steps were committed in the first layout's epoch.
    assert balanced["resume_step"] > first["resume_step"]


def test_a_direct_takeover_moves_it_first(tmp_path):
    layouts = [event.fields for event in train(tmp_path, "direct").of("layout")]
    assert [layout["reason"] for layout in layouts] == ["start", "loss", "rejoin"]
    assert all(layout["num_fetched_in_background"] == 0 for layout in layouts)
    assert all(layout["num_transfers"] > 0 for layout in layouts[1:])


def test_a_job_in_bf16_survives_as_one_in_fp32_does(tmp_path):
    path = tmp_path / "bf16.yaml"
    path.write_text((EXPERIMENT % "direct").replace("takeover: direct", "precision: bf16"))
    run = run_chaos(tmp_path, str(path))
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    # The order of sums shows in bf16; the parameters are fp32 on both sides.
    assert 0 < run.summary["loss_deviation_ratio"] < 0.01


def test_the_rest_of_projected_gradients_averaged_over_exact_replicas_is_the_same_for_all_holders(tmp_path):
    path = tmp_path / "rest.yaml"
    text = EXPERIMENT % "direct"
    options = "approximation: {average_rest: true, refresh_steps: 4}, health: {checksum_every_steps: 2}"
    path.write_text(text.replace("strategy: exact", f"strategy: mecefo, {options}"))
    run = run_chaos(tmp_path, str(path))
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    assert any(event.fields["degraded_layers"] for event in run.of("layout"))
    assert not run.of("step_unfit"), "holders differ"
    # It is no exact gradient either, but nearer to it.
    assert 0 < run.summary["loss_deviation_ratio"] < 0.1
