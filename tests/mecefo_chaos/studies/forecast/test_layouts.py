"""Ratings of layouts, found once for all that are alike, against the planner asked about every rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_chaos.studies.forecast import layouts
from mecefo_chaos.studies.forecast.bamboo import Bamboo
from mecefo_chaos.studies.forecast.layouts import Layouts
from mecefo_chaos.studies.forecast.model import Policy
from mecefo_chaos.studies.forecast.pipeline import rate
from mecefo_runtime import planners
from mecefo_runtime.planners import NoLayout, Situation
from mecefo_runtime.prediction.step_time import step_seconds
from tests.mecefo_chaos.studies.forecast.jobs import job_of

pytestmark = pytest.mark.unit

# Where replicas hold different shards, labels do make a difference.
STRATEGIES = [name for name in planners.names() if name != "checkpoint" and not planners.places_shards(name)]


def planned(job, policy, dead):
    """The rating of the planner's own layout for just these ranks."""
    alive = frozenset(range(job.cluster.num_ranks)) - dead
    situation = Situation(job.cluster, alive, job.costs, degraded_share_limit=policy.degraded_share_limit)
    try:
        layout = planners.find(policy.name)(situation)
    except NoLayout:
        return None
    return rate(layout, job)


@st.composite
def losses(draw, data_parallel=4, pipeline=4):
    ranks = st.integers(0, data_parallel * pipeline - 1)
    return frozenset(draw(st.sets(ranks, max_size=6)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(dead=losses())
def test_labels_of_replicas_make_no_difference(strategy, dead):
    # 12 microbatches a replica: they can be shared evenly among 4, 3, 2 or one.
    job, policy = job_of(4, 4, 12), Policy(strategy)
    expected, found = planned(job, policy, dead), Layouts(job, policy).rating(dead)
    # What is said of ties in `layouts`: layouts of equal speed, to the planners' own model of it.
    assert found.step_seconds == pytest.approx(expected.step_seconds, rel=0.02 if strategy == "mecefo" else 1e-9)
    assert found.degraded_ratio == pytest.approx(expected.degraded_ratio, abs=0.03 if strategy == "mecefo" else 1e-9)


@pytest.mark.parametrize("limit", [0.0, 0.25])
@given(dead=losses())
def test_nor_do_they_under_a_limit_for_degraded_samples(limit, dead):
    job, policy = job_of(4, 4, 12), Policy("mecefo", limit)
    expected, found = planned(job, policy, dead), Layouts(job, policy).rating(dead)
    assert found.step_seconds == pytest.approx(expected.step_seconds, rel=0.01)
    assert found.degraded_ratio <= limit + 1e-9


def test_a_plan_is_made_once_for_all_losses_that_are_alike():
    job = job_of(8, 4)
    found = Layouts(job, Policy("mecefo"))
    assert len({found.rating(frozenset([rank])) for rank in range(32)}) == 1
    assert found.num_plans == 1


def test_there_is_no_layout_without_ranks():
    job = job_of(2, 4)
    for strategy in STRATEGIES:
        assert Layouts(job, Policy(strategy)).rating(frozenset(range(8))) is None


@pytest.mark.parametrize(("strategy", "limit"), [("mecefo", 1.0), ("mecefo", 0.25), ("ndb", 1.0), ("exact", 1.0)])
@pytest.mark.parametrize("dead", [{5}, {5, 6, 70}, {1, 2, 33, 40, 77, 100, 101, 120}])
def test_a_large_job_is_rated_by_a_smaller_one(monkeypatch, strategy, limit, dead):
    monkeypatch.setattr(layouts, "MAX_REPLICAS", 8)
    job, policy = job_of(32, 4, 12), Policy(strategy, limit)
    expected, found = planned(job, policy, frozenset(dead)), Layouts(job, policy).rating(frozenset(dead))
    # On the safe side, by a microbatch of twelve at most; without shares to move, exact.
    assert found.step_seconds >= expected.step_seconds * (1 - 0.01)
    assert found.step_seconds <= expected.step_seconds * (1 + (1 / 12 if limit < 1 else 0.01))
    if limit == 1:
        assert found.degraded_ratio == pytest.approx(expected.degraded_ratio, rel=0.3)


def test_what_moves_after_a_loss_is_what_the_coordinator_would_move():
    # Few replicas, many stages: the survivors take one layer or two from their peers.
    job = job_of(2, 8, 16)
    found = Layouts(job, Policy("exact", takeover="direct")).change(frozenset(), frozenset([3]))
    # The neighbour gets four layers from one peer: parameters and both moments.
    assert found.first is None and not found.is_lost
    assert found.transfer_seconds == pytest.approx(4 * job.costs.layer_state_bytes * 3 / 4 / 25e9, rel=0.01)


def test_training_goes_on_while_state_moves_where_moving_takes_long():
    job = job_of(4, 4, 16)
    slow = replace(job, costs=replace(job.costs, transfer_bytes_per_second=1e8))
    direct = Layouts(slow, Policy("mecefo", takeover="direct")).change(frozenset(), frozenset([3]))
    auto = Layouts(slow, Policy("mecefo")).change(frozenset(), frozenset([3]))
    assert direct.transfer_seconds > 10 and direct.first is None
    assert auto.transfer_seconds == 0 and auto.first is not None and auto.num_first_steps >= 1
    assert auto.first.step_seconds > Layouts(slow, Policy("mecefo")).free.step_seconds


def test_state_that_nobody_holds_is_lost():
    # Both holders of a stage.
    job = job_of(2, 4)
    gone = frozenset(rank for rank in range(8) if job.cluster.cell_of(rank)[1] == 2)
    assert len(gone) == 2
    for strategy in STRATEGIES:
        found = Layouts(job, Policy(strategy))
        assert found.change(frozenset(), gone).is_lost
        assert not found.change(frozenset(), frozenset(sorted(gone)[:1])).is_lost


def test_a_redundant_forward_pass_costs_less_than_a_backward_pass():
    job = job_of(4, 4)
    bamboo, plain = Bamboo(job), Layouts(job, Policy("exact"))
    ratio = bamboo.free.step_seconds / plain.free.step_seconds
    assert 1.25 < ratio < 1.5
    # After a loss one rank does all of two stages.
    one = bamboo.rating(frozenset([5])).step_seconds
    assert one > bamboo.free.step_seconds
    assert bamboo.rating(frozenset([5])).degraded_ratio == 0


def test_two_lost_neighbours_break_a_pipeline_of_redundant_ranks():
    job = job_of(2, 4)
    bamboo, cluster = Bamboo(job), job.cluster
    neighbours = frozenset(cluster.rank_at(0, stage) for stage in (1, 2))
    apart = frozenset(cluster.rank_at(0, stage) for stage in (0, 2))
    assert bamboo.rating(neighbours).step_seconds > 1.8 * bamboo.free.step_seconds
    assert bamboo.rating(apart).step_seconds < 1.8 * bamboo.free.step_seconds
    both = neighbours | {cluster.rank_at(1, stage) for stage in (0, 3)}
    assert bamboo.rating(both) is None and bamboo.change(frozenset(), both).is_lost


def test_the_planners_own_step_time_is_near():
    job = job_of(4, 8, 32)
    alive = frozenset(range(32)) - {3, 9}
    for strategy in STRATEGIES:
        layout = planners.find(strategy)(Situation(job.cluster, alive, job.costs))
        assert rate(layout, job).step_seconds == pytest.approx(step_seconds(layout, job.costs), rel=0.05)
