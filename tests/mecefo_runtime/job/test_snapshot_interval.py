"""How often to take snapshots: as often as costs least, the same for all ranks."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mecefo_runtime.job.snapshot_interval import (
    RANK_MTBF_SECONDS,
    Failures,
    SnapshotCosts,
    SnapshotInterval,
    interval_steps,
)

pytestmark = pytest.mark.unit

seconds = st.floats(1e-4, 1e3)
costs = st.builds(SnapshotCosts, seconds, seconds, seconds)
COSTS = SnapshotCosts(stopped_seconds=0.02, complete_seconds=0.3, step_seconds=0.2)


def loss_ratio(interval_seconds: float, stopped_seconds: float, mtbf_seconds: float) -> float:
    """The share of the time that is lost: what snapshots cost, and half an interval with each loss."""
    return stopped_seconds / interval_seconds + interval_seconds / (2 * mtbf_seconds)


@given(costs, st.floats(1.0, 1e7))
def test_no_other_number_of_steps_costs_less_but_one_in_which_no_snapshot_is_complete(cost, mtbf_seconds) -> None:
    steps = interval_steps(cost, mtbf_seconds)
    # What is rounded away is below half a step.
    chosen = loss_ratio(steps * cost.step_seconds, cost.stopped_seconds, mtbf_seconds)
    assert steps * cost.step_seconds >= cost.complete_seconds * (1 - 1e-5)
    assert loss_ratio((2 * steps + 1) * cost.step_seconds, cost.stopped_seconds, mtbf_seconds) >= chosen
    less = (steps - 1) // 2
    assume(less and less * cost.step_seconds >= cost.complete_seconds)
    assert loss_ratio(less * cost.step_seconds, cost.stopped_seconds, mtbf_seconds) >= chosen


def test_the_rule_is_youngs() -> None:
    # sqrt(2 x 0.02 s x 100 s) = 2 s.
    assert interval_steps(COSTS, 100.0) == 10
    assert interval_steps(COSTS, 1e-6) == 2, "no sooner than one is complete"
    assert interval_steps(SnapshotCosts(), 100.0) == 1, "nothing is measured yet"


@given(st.lists(costs, min_size=1, max_size=4))
def test_all_ranks_wait_for_the_slowest(of_ranks) -> None:
    greatest = SnapshotCosts.greatest(of_ranks)
    assert greatest.stopped_seconds == max(one.stopped_seconds for one in of_ranks)
    assert greatest.complete_seconds == max(one.complete_seconds for one in of_ranks)
    assert greatest.step_seconds == max(one.step_seconds for one in of_ranks)


def test_without_losses_it_is_the_rate_of_others_and_with_losses_that_which_is_seen() -> None:
    assert Failures().mtbf_seconds(16384) == pytest.approx(54 * 86400 / 419)
    assert Failures(2, 100.0).mtbf_seconds(8, more_seconds=40.0) == 70.0
    assert Failures(0, 100.0).mtbf_seconds(8) == RANK_MTBF_SECONDS / 8


def test_another_interval_counts_when_all_have_another_snapshot_and_it_is_far_enough_away() -> None:
    interval = SnapshotInterval("auto", 100.0, 8)
    interval.enter(Failures(), 1)
    assert interval.steps == 1
    assert not interval.on_committed(1, 0, COSTS) and interval.steps == 1
    assert interval.on_committed(2, 1, COSTS) and interval.steps == 10
    assert not interval.on_committed(3, 1, SnapshotCosts(2.0, 0.3, 0.2)), "the same snapshot"
    assert not interval.on_committed(11, 10, SnapshotCosts(0.025, 0.3, 0.2)) and interval.steps == 10
    assert interval.on_committed(21, 20, SnapshotCosts(0.08, 0.3, 0.2)) and interval.steps == 20
    # A newcomer knows nothing of what was.
    interval.enter(Failures(1, 30.0), 22)
    assert interval.steps == 1


def test_with_losses_the_interval_gets_shorter_and_with_time_longer_again() -> None:
    interval = SnapshotInterval("auto", None, 8)
    interval.enter(Failures(), 1)
    interval.on_committed(2, 1, COSTS)
    without = interval.steps
    interval.enter(Failures(1, 90.0), 101)
    assert interval.on_committed(150, 149, COSTS) and interval.mtbf_seconds == pytest.approx(100.0)
    assert interval.steps == 10 < without
    assert interval.on_committed(1650, 1649, COSTS) and interval.steps == 20


def test_a_given_interval_stays() -> None:
    interval = SnapshotInterval(7, None, 8)
    interval.enter(Failures(5, 1.0), 3)
    assert not interval.on_committed(8, 7, COSTS) and interval.steps == 7
