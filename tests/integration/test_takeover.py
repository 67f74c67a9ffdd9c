"""Take over first, balance after: training goes on with what everybody has while the rest is fetched."""

from __future__ import annotations

import pytest

from tests.integration.runs import IN_RANKS, PATIENT, assert_sound, paced, run_chaos

pytestmark = pytest.mark.integration

STEPS = 30
EXPERIMENT = """
name: takeover
job: {nodes: 4, gpus_per_node: 2, steps: 30, dilation: off, strategy: exact, takeover: %s}
faults: [{kind: kill-node, on: node=1, at: {step: 8}, repair: 8steps}]
"""
# What one rank sends of its state is not what it has.
DAMAGING_RANK = 0
DAMAGE = f"""{IN_RANKS}
    from mecefo_runtime.comm.groups import Groups
    from mecefo_runtime.state.transfer import STATE_TAG

    send = Groups.send

    def damage(self, tensor, destination, tag):
        if self.rank == {DAMAGING_RANK} and tag >= STATE_TAG and tensor.is_floating_point():
            tensor = tensor.clone()
            tensor[5] += 1.0
        return send(self, tensor, destination, tag)

    Groups.send = damage
"""


def train(tmp_path, takeover, patch=""):
    path = tmp_path / "takeover.yaml"
    path.write_text(EXPERIMENT % takeover)
    # Fourteen steps are left for the node to start in, and for the rest to be fetched.
    run = run_chaos(tmp_path, str(path), patch=PATIENT + paced(0.15) + patch)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    assert run.summary["loss_deviation_ratio"] < 1e-5
    return run


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize("takeover", ["background", "direct"])
def test_state_that_arrives_damaged_is_fetched_from_another_holder(tmp_path, takeover):
    run = train(tmp_path, takeover, DAMAGE)
    damaged = run.of("transfer_damaged")
    assert damaged and {event.fields["source_rank"] for event in damaged} == {DAMAGING_RANK}
    assert all(event.rank != DAMAGING_RANK and event.fields["unit"] for event in damaged)
    assert {rank for event in run.of("detected") for rank in event.fields["lost"]} == {2, 3}, "nobody died over it"
    attempts = [(event.fields["unit"], event.rank, event.fields["epoch"]) for event in damaged]
    assert len(set(attempts)) == len(attempts)
    assert [event.fields["ranks"] for event in run.of("rejoined")] == [[2, 3]]


@pytest.mark.nightly
def test_a_job_in_bf16_survives_as_one_in_fp32_does(tmp_path):
    path = tmp_path / "bf16.yaml"
    path.write_text((EXPERIMENT % "direct").replace("takeover: direct", "precision: bf16"))
    run = run_chaos(tmp_path, str(path), patch=PATIENT)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    # The order of sums shows in bf16; the parameters are fp32 on both sides.
    assert 0 < run.summary["loss_deviation_ratio"] < 0.01


# By what the ranks measure of themselves, a projected layer saves a good part of the time.
PROJECTING_SAVES = f"""{IN_RANKS}
    from dataclasses import replace

    import mecefo_runtime.step.calibrate as calibrate

    measure = calibrate.measure_costs

    def measure_in_favour(job, device, **options):
        costs = measure(job, device, **options)
        return replace(costs, projected_backward_seconds=costs.layer_backward_seconds / 2)

    calibrate.measure_costs = measure_in_favour
"""


@pytest.mark.nightly
def test_replicas_project_some_layers_and_all_holders_stay_the_same(tmp_path):
    path = tmp_path / "projected.yaml"
    options = "approximation: {refresh_steps: 4}, health: {checksum_every_steps: 2}"
    path.write_text((EXPERIMENT % "direct").replace("strategy: exact", f"strategy: mecefo, {options}"))
    run = run_chaos(tmp_path, str(path), patch=PATIENT + PROJECTING_SAVES)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    projected = [event.fields["projected_layers"] for event in run.of("layout")]
    assert projected[1] > 0 == projected[0] == projected[2]
    assert not any(event.fields["degraded_layers"] for event in run.of("layout"))
    assert all(event.fields["projected_saved_ratio"] > 0.1 for event in run.of("layout")[1:])
    assert run.summary["projected_share_ratio"] > 0 == run.summary["degraded_share_ratio"]
    assert not run.of("step_unfit"), "holders differ"
    # It is no exact gradient, but near to it.
    assert 0 < run.summary["loss_deviation_ratio"] < 0.05
