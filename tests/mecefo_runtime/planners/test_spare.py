"""SPARe: whole replicas compute what they hold, each shard of a step once, whatever is lost and comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.layout import Cluster, Layout, LayoutError, configured_layout, shards_of
from mecefo_runtime.planners import Situation, WipeOut, find
from mecefo_runtime.stacks.placement import DoesNotFit, Placement
from mecefo_runtime.stacks.rectlr import least_depth
from mecefo_runtime.stacks.rulers import largest_redundancy
from mecefo_runtime.system.json_values import from_json, to_json
from tests.mecefo_runtime.planning import PLAIN

pytestmark = pytest.mark.unit

plan = find("spare")


def cluster_of(data_parallel: int, pipeline: int = 1, num_microbatches: int | None = None) -> Cluster:
    number = 2 * data_parallel if num_microbatches is None else num_microbatches
    return Cluster(data_parallel, pipeline, data_parallel, pipeline, pipeline, number)


def after(cluster: Cluster, lost: set[int], placement: Placement, current: Layout | None = None) -> Layout:
    alive = frozenset(range(cluster.num_ranks)) - lost
    return plan(Situation(cluster, alive, PLAIN, current, placement=placement))


@given(data=st.data())
def test_every_microbatch_is_computed_once_by_a_replica_that_holds_it(data: st.DataObject) -> None:
    data_parallel, pipeline = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 2))
    cluster = cluster_of(data_parallel, pipeline, data.draw(st.integers(data_parallel, 3 * data_parallel)))
    placement = Placement.of(data_parallel, data.draw(st.integers(1, largest_redundancy(data_parallel))))
    shards = shards_of(data_parallel, cluster.num_microbatches)
    lost: set[int] = set()
    current = configured_layout(cluster)
    for _ in range(data.draw(st.integers(1, 5))):
        lost ^= data.draw(st.sets(st.integers(0, cluster.num_ranks - 1), min_size=1, max_size=3))
        if len(lost) == cluster.num_ranks:
            return
        whole = {
            replica.replica
            for replica in configured_layout(cluster).replicas
            if not lost & {span.rank for span in replica.spans}
        }
        try:
            layout = after(cluster, lost, placement, current)
        except WipeOut as error:
            assert "do not hold all shards" in str(error)
            return
        layout.check(cluster, frozenset(range(cluster.num_ranks)) - lost)
        assert {replica.replica for replica in layout.replicas} == whole
        for replica in layout.replicas:
            held = {index for shard in placement.held_by(replica.replica) for index in shards[shard]}
            assert set(layout.microbatches_of(replica.replica)) <= held
        if layout.assignment is not None:
            assert layout.assignment.depth >= least_depth(data_parallel, len(whole))
            assert from_json(Layout, to_json(layout)) == layout
        current = layout


def test_when_all_are_back_everything_is_as_it_was() -> None:
    cluster, placement = cluster_of(8), Placement.of(8, 3)
    changed = after(cluster, {1, 2}, placement, after(cluster, {1}, placement))
    assert changed.assignment is not None
    assert after(cluster, set(), placement, changed) == configured_layout(cluster)


def test_a_replica_that_lost_one_of_its_ranks_is_out_as_a_whole() -> None:
    cluster = cluster_of(4, 2)
    lost = cluster.rank_at(2, 1)
    layout = after(cluster, {lost}, Placement.of(4, 2))
    assert {replica.replica for replica in layout.replicas} == {0, 1, 3}
    assert cluster.rank_at(2, 0) not in layout.ranks()


def test_when_all_that_hold_a_shard_are_lost_it_is_a_wipe_out() -> None:
    cluster, placement = cluster_of(4), Placement.of(4, 2)
    with pytest.raises(WipeOut, match="2 whole replicas of 4 do not hold all shards"):
        after(cluster, {0, 1}, placement)
    assert after(cluster, {0, 2}, placement).num_microbatches == cluster.num_microbatches


def test_too_many_copies_are_refused_with_the_largest_number_that_fits() -> None:
    with pytest.raises(DoesNotFit, match="redundancy of 3 does not fit 4 replicas: the largest is 2"):
        Placement.of(4, 3)
    assert Placement.of(4).redundancy == 2


def test_a_layout_in_which_nobody_computes_a_shard_is_refused() -> None:
    cluster, placement = cluster_of(4), Placement.of(4, 2)
    layout = after(cluster, {1}, placement)
    assert layout.assignment is not None
    # Replica 0 does not hold shard 3.
    without = replace(layout.assignment, counted=(0, 0, 2, 0))
    with pytest.raises(LayoutError, match="not computed exactly once"):
        replace(layout, assignment=without).check(cluster, [0, 2, 3])
