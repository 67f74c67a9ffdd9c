"""Further takeovers."""

from __future__ import annotations

import pytest

from tests.integration.runs import PATIENT, assert_sound, run_chaos
from tests.integration.test_takeover import EXPERIMENT, STEPS, train

pytestmark = pytest.mark.nightly


def test_a_direct_takeover_moves_it_first(tmp_path):
    layouts = [event.fields for event in train(tmp_path, "direct").of("layout")]
    assert [layout["reason"] for layout in layouts] == ["start", "loss", "rejoin"]
    assert all(layout["num_fetched_in_background"] == 0 for layout in layouts)
    assert all(layout["num_transfers"] > 0 for layout in layouts[1:])


def test_the_rest_of_projected_gradients_averaged_over_exact_replicas_is_the_same_for_all_holders(tmp_path):
    path = tmp_path / "rest.yaml"
    text = EXPERIMENT % "direct"
    options = "approximation: {average_rest: true, refresh_steps: 4}, health: {checksum_every_steps: 2}"
    path.write_text(text.replace("strategy: exact", f"strategy: mecefo, quality: speed, {options}"))
    run = run_chaos(tmp_path, str(path), patch=PATIENT)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    assert any(event.fields["degraded_layers"] for event in run.of("layout"))
    assert not run.of("step_unfit"), "holders differ"
    # It is no exact gradient either, but nearer to it.
    assert 0 < run.summary["loss_deviation_ratio"] < 0.1


def test_a_second_loss_while_state_moves_loses_nothing_that_was_committed(tmp_path):
    path = tmp_path / "twice.yaml"
    faults = """faults:
  - {kind: kill-process, on: rank=2, at: {step: 8}, repair: 8steps}
  - {kind: kill-process, on: rank=5, at: {step: 8, phase: transfer}, repair: 8steps}
"""
    path.write_text((EXPERIMENT % "direct").partition("faults:")[0] + faults)
    run = run_chaos(tmp_path, str(path), patch=PATIENT)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    layouts = [event.fields for event in run.of("layout")]
    begun = {event.fields["epoch"] for event in run.of("regrouped")}
    broken = [layout for layout in layouts if layout["epoch"] not in begun]
    assert [layout["num_transfers"] > 0 for layout in broken] == [True], "an epoch was told whose transfers broke off"
    assert run.summary["loss_deviation_ratio"] < 1e-5
