"""Wrong numbers in a real job: what was affected was used, and the job computes again, heals, or goes on with it."""

from __future__ import annotations

import pytest

from tests.integration.runs import PATIENT, Finished, assert_holders_agree, run_chaos

pytestmark = pytest.mark.integration

STEPS = 24
EXPERIMENT = """
name: tensors
seed: 5
job: {{nodes: 2, gpus_per_node: 2, steps: {steps}, dilation: off, strategy: exact, health: {{{health}}}}}
faults:
{faults}
"""
# Nothing is written in the ranks, though all else is as ever.
WRITE_NOTHING = """import sys
if 'harness.backends.forkserver' in sys.orig_argv:
    import chaos.in_process.injection

    chaos.in_process.injection.write = lambda tensor, indices, values: None
"""
# The ranks know nothing of the effect; the injector thinks that it began.
BEGIN_NOTHING = """import sys
if 'harness.backends.forkserver' in sys.orig_argv:
    import chaos.in_process.gradients

    chaos.in_process.gradients.InjectGradients.begin = lambda self, step, phase: {}
    chaos.in_process.gradients.InjectGradients.announced = lambda self, step, phase: None
"""


def train(
    tmp_path, *faults: str, health: str = "checksum_every_steps: 0", patch: str = "", steps: int = STEPS
) -> Finished:
    path = tmp_path / "tensors.yaml"
    path.write_text(EXPERIMENT.format(steps=steps, health=health, faults="\n".join(f"  - {{{f}}}" for f in faults)))
    return run_chaos(tmp_path, str(path), "--no-twin", patch=PATIENT + patch)


def evidence(run: Finished, incident: int = 0) -> dict:
    (rank,) = run.one("verified", incident).fields["evidence"]["ranks"]
    return rank


def assert_passed(run: Finished, steps: int = STEPS) -> None:
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert run.summary["steps_committed"] == steps
    assert not run.of("undo_failed") and not run.of("unverified")
    assert len(run.of("undone")) == len(run.summary["incidents"])


@pytest.mark.nightly
def test_what_was_affected_was_used(tmp_path):
    run = train(
        tmp_path,
        "kind: bit-flip, on: rank=2, at: {step: 6}, where: gradients, layer: 3, bit: 25",
        "kind: bit-flip, on: rank=1, at: {step: 8, phase: optimizer}, where: optimizer, bit: 24",
        "kind: stale-gradient, on: rank=0, at: {step: 10}",
        "kind: set-inf, on: rank=3, at: {step: 13}, where: activations, layer: 0",
        "kind: scale, on: rank=3, at: {step: 16, phase: backward}, where: parameters, tensor: embedding.weight",
        "kind: ecc-telemetry, on: rank=3, at: {step: 18}",
        health="checksum_every_steps: 12",
    )
    assert_passed(run)
    gradient = evidence(run, 0)
    assert (gradient["outcome"], gradient["step"], gradient["phase"]) == ("consumed", 6, "reduce")
    assert gradient["struck"]["tensor"].startswith("layer.3.")
    update = gradient["update"]
    assert update["parameter_actual"] == pytest.approx(update["parameter_struck"], rel=1e-5)
    assert update["parameter_actual"] != update["parameter_clean"]
    assert (evidence(run, 1)["outcome"], evidence(run, 1)["step"]) == ("consumed", 8)
    stale = evidence(run, 2)
    assert (stale["kept_step"], stale["step"], stale["is_equal_to_kept"]) == (10, 11, True)
    assert evidence(run, 3)["receiver"]
    # Not the next stage, which got it: it only passed on what it was given.
    assert {event.step: event.fields["suspects"] for event in run.of("step_unfit") if event.step == 13} == {13: [3]}
    assert evidence(run, 4)["output"]["num_changed"] > 0
    (telemetry,) = run.of("telemetry")
    assert (telemetry.fields["rank"], telemetry.fields["xid"], telemetry.step) == (3, 48, None)


def test_a_parameter_that_differs_is_found_by_comparison_and_healed(tmp_path):
    run = train(
        tmp_path,
        "kind: bit-flip, on: rank=2, at: {step: 6}, where: parameters, layer: 3, bit: 22",
        health="checksum_every_steps: 8",
        steps=12,
    )
    assert_passed(run, 12)
    assert evidence(run)["outcome"] == "consumed"
    (rejected,) = run.of("step_unfit")
    assert (rejected.step, rejected.fields["verdict"], rejected.fields["suspects"]) == (8, "heal", [2])
    layouts = [(event.fields["reason"], event.fields["num_transfers"]) for event in run.of("layout")]
    assert layouts == [("start", 0), ("heal", 1)]
    assert_holders_agree(run)
    assert run.summary["diverged_units"] == 0


@pytest.mark.nightly
def test_optimizer_state_that_would_spoil_the_parameters_is_healed_before_it_does(tmp_path):
    run = train(
        tmp_path,
        "kind: set-nan, on: rank=2, at: {step: 6}, where: optimizer, tensor: 'layer.3.*.exp_avg'",
        "kind: bit-flip, on: rank=1, at: {step: 12}, where: optimizer, tensor: '*.exp_avg_sq', bit: sign",
    )
    assert_passed(run)
    told = [(event.step, event.fields["verdict"], event.fields["suspects"]) for event in run.of("step_unfit")]
    # A wrong sign is seen only when the step after it comes to nothing; that one is not committed.
    assert told == [(6, "heal", [2]), (13, "heal", [1])]
    assert evidence(run, 0)["judgement"]["verdict"] == "heal"
    assert evidence(run, 1)["update"]["parameter_actual"] == "nan"
    assert not any(event.fields["skipped"] for event in run.of("step_committed"))
    assert_holders_agree(run)


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(WRITE_NOTHING, id="nothing written"),
        pytest.param(BEGIN_NOTHING, marks=pytest.mark.nightly, id="nothing begun"),
    ],
)
def test_a_injection_that_does_nothing_is_inconclusive(tmp_path, patch):
    run = train(tmp_path, "kind: bit-flip, on: rank=2, at: {step: 6}, where: gradients", patch=patch, steps=12)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["verified"], incident["evidence"]) == (False, None)
    assert "did not change" in incident["unverified_reason"] or "reported nothing" in incident["unverified_reason"]
    assert run.summary["steps_committed"] == 12
    assert run.of("residue")[0].fields["undo_pending"] == []
