"""A rank whose numbers go wrong, by a patch in its process: the step is not committed, and the rank is named."""

from __future__ import annotations

import pytest

from tests.integration.runs import IN_RANKS, PATIENT, Finished, assert_holders_agree, run_chaos

pytestmark = pytest.mark.integration

STEPS = 16
CORRUPT_STEP = 8
CORRUPT_RANK = 2
EXPERIMENT = """
name: health
job:
  {nodes: 2, gpus_per_node: 2, steps: %d, dilation: off, strategy: exact, health: {%s}}
"""
# Something that is not finite comes out of the rank's forward pass: once, or whenever the step is computed.
CORRUPT = f"""{IN_RANKS}
    from mecefo_runtime.step.pipeline import Pipeline
    from mecefo_runtime.state.model_state import ModelState

    run, times = Pipeline.run, []

    def spoil(self, own, microbatches, samples, *told):
        step = samples[0] // len(samples) + 1
        if self._groups.rank == {CORRUPT_RANK} and step == {CORRUPT_STEP} and len(times) < MOST:
            times.append(step)
            parameter = next(self._body[-1].parameters()).view(-1)
            kept = parameter[0].clone()
            parameter.data[0] = float("nan")
            try:
                return run(self, own, microbatches, samples, *told)
            finally:
                parameter.data[0] = kept
        return run(self, own, microbatches, samples, *told)

    Pipeline.run = spoil
"""
ONCE, ALWAYS = CORRUPT.replace("MOST", "1"), CORRUPT.replace("MOST", "99")
# One parameter of one rank changes behind everybody's back.
FLIP = f"""{IN_RANKS}
    from mecefo_runtime.step.step import Stepper

    run = Stepper.run
    # Once, whichever epoch that is: on a busy machine the first one may be formed again.
    flipped = []

    def flip(self, epoch, step):
        if step == {CORRUPT_STEP} and self._rank == {CORRUPT_RANK} and not flipped:
            flipped.append(step)
            next(iter(epoch.state.units.values())).parameters[3] *= -1
        return run(self, epoch, step)

    Stepper.run = flip
"""


def train(tmp_path, patch: str, health: str = "checksum_every_steps: 0") -> Finished:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "health.yaml"
    path.write_text(EXPERIMENT % (STEPS, health))
    run = run_chaos(tmp_path, str(path), "--no-twin", patch=PATIENT + patch)
    assert run.summary["steps_committed"] == STEPS, run.summary["reasons"]
    assert run.summary["steps_lost"] == run.summary["samples_lost"] == 0
    assert_holders_agree(run)
    return run


def losses_of(run: Finished) -> list[float]:
    return [event.fields["loss"] for event in run.of("step_committed")]


@pytest.mark.nightly
def test_a_rank_whose_state_differs_is_named_and_gets_its_peers(tmp_path):
    run = train(tmp_path, FLIP, "checksum_every_steps: 4")
    (rejected,) = run.of("step_unfit")
    assert (rejected.fields["verdict"], rejected.fields["suspects"], rejected.step) == (
        "heal",
        [CORRUPT_RANK],
        CORRUPT_STEP,
    )
    layouts = run.of("layout")
    assert [event.fields["reason"] for event in layouts] == ["start", "heal"]
    assert layouts[1].fields["num_transfers"] == 1
    assert run.summary["diverged_units"] == 0
