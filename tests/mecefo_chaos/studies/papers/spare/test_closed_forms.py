"""Closed forms against enumeration and against orders drawn by chance."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from mecefo_chaos.studies.papers.spare.closed_forms import (
    availability,
    best_period_seconds,
    best_redundancy,
    endured,
    endured_by_sets,
    mean_depth,
)
from mecefo_chaos.studies.papers.spare.endurance import depths, endurance, errors, num_endured
from mecefo_chaos.studies.papers.spare.schemes import Replicated
from mecefo_runtime.stacks import rulers
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import least_depth, original_stacks, reorder

pytestmark = pytest.mark.unit


def ranks_of(order):
    ranks = np.empty((1, len(order)), dtype=np.int32)
    ranks[0, list(order)] = np.arange(len(order))
    return ranks


def test_failures_endured_are_those_after_which_every_shard_has_a_holder() -> None:
    placement = Placement.of(7, 3)
    for order in list(permutations(range(7)))[::37]:
        alive, survived = set(range(7)), 0
        for group in order:
            alive.discard(group)
            if {shard for one in alive for shard in placement.held_by(one)} != set(range(7)):
                break
            survived += 1
        assert num_endured(placement, ranks_of(order))[0] == survived


@pytest.mark.parametrize(("num_groups", "redundancy"), [(100, 2), (100, 4), (100, 7)])
def test_the_closed_form_is_near_what_is_drawn(num_groups: int, redundancy: int) -> None:
    case = endurance(num_groups, redundancy, 1, 2000, 2)
    # The closed form is of many groups, and says too much where few failures are endured.
    assert abs(case.error_ratio) < (0.09 if redundancy == 2 else 0.03)
    assert abs(case.depth_error_ratio) < 0.05
    assert case.excess_depth < 0.05
    (summary,) = errors((case,))
    assert summary.worst_endured == summary.worst_depth == case
    assert summary.endured_ratio == abs(case.error_ratio)


def test_sets_endure_as_many_more_as_they_are_fewer() -> None:
    """Drawn: with sets of three, 300 groups endure r^(1/r) times what stacks do."""
    generator, drawn = np.random.default_rng(1), []
    for _ in range(300):
        sets = Replicated(300, 3)
        for number, group in enumerate(generator.permutation(300)):
            sets.lose(np.array([group]))
            if sets.is_wiped_out():
                drawn.append(number)
                break
    assert np.mean(drawn) == pytest.approx(endured_by_sets(300, 3), rel=0.08)
    assert endured_by_sets(300, 3) / endured(300, 3) == pytest.approx(3 ** (1 / 3))


def test_depths_are_what_the_controller_says_after_every_failure() -> None:
    placement, generator = Placement.of(60, 5), np.random.default_rng(3)
    order = generator.permutation(60)
    lost = order[: num_endured(placement, ranks_of(order))[0]]
    found = depths(placement, lost)
    for k, depth in enumerate(found):
        alive = np.ones(60, dtype=np.bool_)
        alive[lost[:k]] = False
        reordered = reorder(original_stacks(placement), alive)
        assert reordered is not None and depth == reordered.depth >= least_depth(60, 60 - k)


def test_the_mean_depth_counts_every_number_of_failures_alike() -> None:
    assert mean_depth(10, 1) == 1
    assert mean_depth(10, 6.9) == pytest.approx((1 + 2 * 5) / 6)
    assert mean_depth(4, 100) == pytest.approx((1 + 2 + 2 + 4) / 4)


def test_the_best_redundancy_is_as_published_and_as_the_planner_has_it() -> None:
    assert [best_redundancy(num_groups) for num_groups in (200, 600, 1000)] == [8, 10, 10]
    assert [rulers.best_redundancy(num_groups) for num_groups in (200, 600, 1000)] == [8, 10, 10]


@pytest.mark.parametrize("uptime_seconds", [3e3, 3e4, 3e5])
def test_the_best_period_gives_the_most_availability(uptime_seconds: float) -> None:
    best = best_period_seconds(58.8, uptime_seconds, 3600.0)
    found = minimize_scalar(
        lambda period: -availability(period, 58.8, uptime_seconds, 3600.0), bounds=(60, 1e5), method="bounded"
    )
    assert best == pytest.approx(found.x, rel=1e-3)
    assert best == pytest.approx(58.8 + math.sqrt(58.8**2 + 2 * 58.8 * (uptime_seconds + 3600)))
