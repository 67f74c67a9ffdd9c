"""Ranks whose numbers stay wrong."""

from __future__ import annotations

import pytest

from tests.integration.runs import run_chaos
from tests.integration.test_health import (
    ALWAYS,
    CORRUPT_RANK,
    CORRUPT_STEP,
    EXPERIMENT,
    FLIP,
    ONCE,
    STEPS,
    losses_of,
    train,
)

pytestmark = pytest.mark.nightly


def test_a_step_that_stays_corrupted_is_left_out(tmp_path):
    run = train(tmp_path, ALWAYS)
    assert [event.fields["verdict"] for event in run.of("step_unfit")] == ["repeat", "skip"]
    assert [event.step for event in run.of("step_committed") if event.fields["skipped"]] == [CORRUPT_STEP]
    assert len(run.of("layout")) == 1


def test_a_rank_that_spoils_a_step_for_good_has_to_go(tmp_path):
    run = train(tmp_path, ALWAYS, "nonfinite: evict, checksum_every_steps: 0")
    assert [event.fields["verdict"] for event in run.of("step_unfit")] == ["repeat", "evict"]
    (detected,) = run.of("detected")
    assert (detected.fields["lost"], detected.fields["how"]) == ([CORRUPT_RANK], "health")
    assert CORRUPT_RANK not in run.of("layout")[-1].fields["members"]
    assert not any(event.fields["skipped"] for event in run.of("step_committed"))


def test_without_the_comparison_it_stays_different(tmp_path):
    path = tmp_path / "health.yaml"
    path.write_text(EXPERIMENT % (STEPS, "checksum_every_steps: 0"))
    run = run_chaos(tmp_path, str(path), "--no-twin", patch=FLIP)
    assert not run.of("step_unfit")
    assert run.summary["diverged_units"] > 0


def test_a_step_that_was_corrupted_once_is_computed_again_and_nothing_is_lost(tmp_path):
    run = train(tmp_path, ONCE)
    (rejected,) = run.of("step_unfit")
    assert rejected.step == CORRUPT_STEP
    assert (rejected.fields["verdict"], rejected.fields["suspects"]) == ("repeat", [CORRUPT_RANK])
    healthy = train(tmp_path / "healthy", "")
    assert not healthy.of("step_unfit")
    assert losses_of(run) == pytest.approx(losses_of(healthy), rel=1e-5)
    assert not any(event.fields["skipped"] for event in run.of("step_committed"))
