"""Masked or made whole: what is faster by the predicted step time, and of equals what degrades less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.layout import Cluster, Layout, configured_layout, shards_of
from mecefo_runtime.planners import NoLayout, Situation, WipeOut, find
from mecefo_runtime.prediction.step_time import degraded_share_ratio, step_seconds
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rulers import largest_redundancy
from tests.mecefo_runtime.planning import PLAIN

pytestmark = pytest.mark.unit

plan = find("mecefo+spare")
WIDE = Cluster(8, 2, 8, 2, 4, 32)


def situation(cluster: Cluster, lost: set[int], redundancy: int | None = None, **limits: float) -> Situation:
    placement = Placement.of(cluster.data_parallel, redundancy)
    return Situation(cluster, frozenset(range(cluster.num_ranks)) - lost, PLAIN, placement=placement, **limits)


def replicas(layout: Layout) -> set[int]:
    return {replica.replica for replica in layout.replicas}


@given(data=st.data())
def test_what_is_planned_computes_each_microbatch_where_it_is_held_and_is_as_fast_as_masking_alone(
    data: st.DataObject,
) -> None:
    data_parallel, pipeline = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    num_layers = data.draw(st.integers(pipeline, 2 * pipeline))
    cluster = Cluster(data_parallel, pipeline, data_parallel, pipeline, num_layers, 2 * data_parallel)
    lost = data.draw(st.sets(st.integers(0, cluster.num_ranks - 1), min_size=1, max_size=5))
    redundancy = data.draw(st.integers(1, largest_redundancy(data_parallel)))
    asked = situation(cluster, lost, redundancy, degraded_share_limit=data.draw(st.sampled_from([0.0, 0.3, 1.0])))
    masking: Layout | None = None
    try:
        masking = find("spare")(asked)
        layout = plan(asked)
    except NoLayout:
        # Who masks alone loses more replicas.
        try:
            layout = plan(asked)
        except NoLayout:
            assert masking is None
            return
    layout.check(cluster, asked.alive)
    assert layout == plan(asked)
    shards = shards_of(data_parallel, cluster.num_microbatches)
    for replica in layout.replicas:
        held = {index for shard in asked.placement.held_by(replica.replica) for index in shards[shard]}
        assert set(layout.microbatches_of(replica.replica)) <= held
    assert degraded_share_ratio(layout) <= asked.degraded_share_limit
    if masking is not None:
        assert step_seconds(layout, PLAIN) <= step_seconds(masking, PLAIN) * 1.011


def test_a_replica_that_lost_one_stage_is_made_whole_while_all_compute_one_shard() -> None:
    layout = plan(situation(WIDE, {3}))
    assert replicas(layout) == set(range(8))
    assert step_seconds(layout, PLAIN) < 0.8 * step_seconds(find("spare")(situation(WIDE, {3})), PLAIN)


def test_where_others_compute_a_second_shard_there_is_time_to_take_stages_over_exactly() -> None:
    lost = {WIDE.rank_at(6, 0), WIDE.rank_at(6, 1), WIDE.rank_at(1, 1)}
    layout = plan(situation(WIDE, lost))
    assert replicas(layout) == set(range(8)) - {6}
    assert not degraded_share_ratio(layout)
    # With a single copy of each shard nothing can be masked.
    with pytest.raises(WipeOut):
        plan(situation(WIDE, lost, 1))
    assert replicas(plan(situation(WIDE, lost - {WIDE.rank_at(6, 0), WIDE.rank_at(6, 1)}, 1))) == set(range(8))


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_a_replica_of_which_little_is_left_is_masked(limit: float) -> None:
    deep = replace(WIDE, nodes=8, gpus_per_node=4, pipeline=4, num_layers=4, num_microbatches=64)
    lost = {deep.rank_at(5, stage) for stage in range(4)}
    one_left, three_left = (
        situation(deep, lost - {deep.rank_at(5, stage) for stage in range(number)}, degraded_share_limit=limit)
        for number in (1, 3)
    )
    assert replicas(plan(one_left)) == set(range(8)) - {5}
    assert replicas(plan(three_left)) == set(range(8))


def test_when_nothing_is_lost_it_is_the_configured_layout() -> None:
    assert plan(situation(WIDE, set())) == configured_layout(WIDE)
