"""Further wrong numbers in a real job."""

from __future__ import annotations

import pytest

from tests.integration.runs import assert_holders_agree
from tests.integration.test_tensor_faults import assert_passed, evidence, train

pytestmark = pytest.mark.nightly


def test_the_same_seed_affects_the_same_element_of_the_same_tensor(tmp_path):
    fault = "kind: bit-flip, on: rank=1, at: {step: 4}, where: parameters, bit: exponent"
    runs = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        runs.append(evidence(train(tmp_path / str(number), fault))["struck"])
    assert [{**run, "elements": None} for run in runs] == [{**runs[0], "elements": None}] * 2
    one, same = (run["elements"][0] for run in runs)
    assert (one["index"], one["bit"]) == (same["index"], same["bit"])


def test_a_gradient_that_is_no_number_is_computed_again_and_its_rank_named(tmp_path):
    run = train(tmp_path, "kind: set-nan, on: rank=3, at: {step: 8, phase: backward}, where: gradients")
    assert_passed(run)
    (rejected,) = run.of("step_unfit")
    assert (rejected.step, rejected.fields["verdict"], rejected.fields["suspects"]) == (8, "repeat", [3])
    assert evidence(run)["judgement"] == {
        "step": 8,
        **{key: rejected.fields[key] for key in ("verdict", "suspects", "reason")},
    }
    assert not any(event.fields["skipped"] for event in run.of("step_committed"))
    assert_holders_agree(run)


def test_parameters_that_are_not_finite_are_healed_in_the_step_that_computes_with_them(tmp_path):
    run = train(
        tmp_path,
        "kind: set-nan, on: rank=2, at: {step: 6}, where: parameters, tensor: 'layer.3.*.q.weight'",
        # Between the verdict and the optimizer: the next step is the first one that shows it.
        "kind: set-inf, on: rank=1, at: {step: 12, phase: optimizer}, where: parameters, tensor: '*.gate.weight'",
    )
    assert_passed(run)
    told = [(event.step, event.fields["verdict"], event.fields["suspects"]) for event in run.of("step_unfit")]
    assert told == [(6, "heal", [2]), (13, "heal", [1])]
    assert [evidence(run, incident)["outcome"] for incident in (0, 1)] == ["consumed"] * 2
    assert not any(event.fields["skipped"] for event in run.of("step_committed"))
    assert_holders_agree(run)


def test_a_stuck_bit_comes_again_until_the_end_of_the_job(tmp_path):
    run = train(
        tmp_path,
        "kind: bit-flip, on: rank=2, at: {step: 6}, where: parameters, layer: 3, bit: 22, elements: 256, sticky: true",
        health="checksum_every_steps: 8",
    )
    # Whatever the peers gave it. Of so many elements the optimizer does not bring every bit there by itself.
    assert [event.step for event in run.of("step_unfit")][:2] == [8, 16]
    assert run.one("undone").monotonic_seconds >= run.of("job_ended")[0].monotonic_seconds - 1.0
    assert evidence(run)["outcome"] == "consumed"
