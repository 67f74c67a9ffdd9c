from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.layout import (
    Cluster,
    Layout,
    LayoutError,
    Replica,
    Span,
    configured_layout,
    layer_unit,
    split_evenly,
    unit_layer,
)
from mecefo_runtime.system.json_values import from_json, to_json

pytestmark = pytest.mark.unit


@st.composite
def clusters(draw, max_data_parallel=6, max_pipeline=5):
    data_parallel = draw(st.integers(1, max_data_parallel))
    pipeline = draw(st.integers(1, max_pipeline))
    num_ranks = data_parallel * pipeline
    gpus_per_node = draw(st.sampled_from([size for size in range(1, num_ranks + 1) if num_ranks % size == 0]))
    return Cluster(
        nodes=num_ranks // gpus_per_node,
        gpus_per_node=gpus_per_node,
        data_parallel=data_parallel,
        pipeline=pipeline,
        num_layers=draw(st.integers(pipeline, 3 * pipeline)),
        num_microbatches=data_parallel * draw(st.integers(1, 4)),
    )


def configured(cluster):
    """The layout without failures, written out by hand so that no planner is needed."""
    share = cluster.num_microbatches // cluster.data_parallel
    return Layout(
        cluster.num_layers,
        tuple(
            Replica(
                replica,
                tuple(
                    Span(cluster.rank_at(replica, stage), layers.start, layers.stop)
                    for stage in range(cluster.pipeline)
                    for layers in [cluster.stage_layers(stage)]
                ),
                share,
            )
            for replica in range(cluster.data_parallel)
        ),
    )


@st.composite
def layouts(draw):
    """A cluster and a valid layout of it: cut, degraded, shared out and short of replicas anyhow."""
    cluster = draw(clusters())
    ranks = draw(st.permutations(range(cluster.num_ranks)))
    num_replicas = draw(st.integers(1, cluster.data_parallel))
    cuts = sorted(
        draw(st.lists(st.integers(0, cluster.num_microbatches), min_size=num_replicas - 1, max_size=num_replicas - 1))
    )
    shares = [end - start for start, end in zip([0, *cuts], [*cuts, cluster.num_microbatches], strict=True)]
    replicas = []
    for index in range(num_replicas):
        num_spans = draw(st.integers(1, cluster.pipeline))
        inner = draw(st.sets(st.integers(1, max(1, cluster.num_layers - 1)), max_size=num_spans - 1))
        borders = [0, *sorted(layer for layer in inner if layer < cluster.num_layers), cluster.num_layers]
        spans = []
        for first, end in pairwise(borders):
            degraded = draw(st.frozensets(st.integers(first, end - 1)))
            recomputed = frozenset(draw(st.lists(st.sampled_from(sorted(degraded))))) if degraded else frozenset()
            rank = ranks[len(spans) + index * cluster.pipeline]
            spans.append(Span(rank, first, end, degraded, recomputed, draw(st.booleans())))
        replicas.append(Replica(index, tuple(spans), shares[index]))
    return cluster, Layout(cluster.num_layers, tuple(replicas))


class TestCluster:
    @given(clusters())
    def test_cells_are_a_bijection_of_ranks(self, cluster):
        cells = [cluster.cell_of(rank) for rank in range(cluster.num_ranks)]
        assert Counter(cells) == Counter(
            (replica, stage) for replica in range(cluster.data_parallel) for stage in range(cluster.pipeline)
        )
        assert all(cluster.rank_at(*cell) == rank for rank, cell in enumerate(cells))

    @given(clusters())
    def test_ranks_of_a_node_differ_in_replica_and_stage_where_the_shape_allows(self, cluster):
        if cluster.gpus_per_node > min(cluster.data_parallel, cluster.pipeline):
            return
        for node in range(cluster.nodes):
            replicas, stages = zip(*(cluster.cell_of(rank) for rank in cluster.ranks_of(node)), strict=True)
            assert len(set(replicas)) == len(set(stages)) == cluster.gpus_per_node

    @given(clusters())
    def test_no_node_takes_a_stage_from_all_its_holders(self, cluster):
        if cluster.data_parallel < 2 or cluster.nodes < 2:
            return
        for node in range(cluster.nodes):
            for stage in range(cluster.pipeline):
                holders = {cluster.rank_at(replica, stage) for replica in range(cluster.data_parallel)}
                assert holders - set(cluster.ranks_of(node))

    def test_a_single_replica_loses_its_stage_with_the_node(self):
        cluster = Cluster(2, 1, data_parallel=1, pipeline=2, num_layers=2, num_microbatches=1)
        assert {cluster.rank_at(0, 0)} - set(cluster.ranks_of(0)) == set()

    @given(clusters())
    def test_nodes_share_out_the_ranks(self, cluster):
        assert [rank for node in range(cluster.nodes) for rank in cluster.ranks_of(node)] == list(
            range(cluster.num_ranks)
        )
        assert all(rank in cluster.ranks_of(cluster.node_of(rank)) for rank in range(cluster.num_ranks))

    @given(clusters())
    def test_stages_cover_the_layers_evenly(self, cluster):
        stages = [cluster.stage_layers(stage) for stage in range(cluster.pipeline)]
        assert [layer for layers in stages for layer in layers] == list(range(cluster.num_layers))
        assert [len(layers) for layers in stages] == split_evenly(cluster.num_layers, cluster.pipeline)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"data_parallel": 3}, "3 x 2 = 6, but 4 nodes x 2 ranks = 8"),
            ({"num_layers": 1}, "1 layers do not fill 2"),
            ({"num_microbatches": 3}, "3 microbatches do not feed 4"),
        ],
    )
    def test_refuses_a_shape_that_does_not_fit(self, change, message):
        shape = {
            "nodes": 4,
            "gpus_per_node": 2,
            "data_parallel": 4,
            "pipeline": 2,
            "num_layers": 4,
            "num_microbatches": 8,
        }
        assert Cluster(**shape).num_ranks == 8
        with pytest.raises(LayoutError, match=message):
            Cluster(**{**shape, **change})


class TestLayout:
    @given(layouts())
    def test_valid_layouts_pass_and_round_trip(self, drawn):
        cluster, layout = drawn
        layout.check(cluster, range(cluster.num_ranks))
        assert from_json(Layout, to_json(layout)) == layout

    @given(layouts())
    def test_microbatches_and_units_are_covered_exactly_once(self, drawn):
        cluster, layout = drawn
        computed = [index for replica in layout.replicas for index in layout.microbatches_of(replica.replica)]
        assert computed == list(range(cluster.num_microbatches))
        units = ["embedding", *map(layer_unit, range(cluster.num_layers)), "head"]
        for replica in layout.replicas:
            assert [unit for span in replica.spans for unit in layout.units(span.rank)] == units
        assert {unit: len(ranks) for unit, ranks in layout.holders().items()} == dict.fromkeys(
            units, len(layout.replicas)
        )

    @given(layouts())
    def test_find_agrees_with_ranks(self, drawn):
        cluster, layout = drawn
        for rank in range(cluster.num_ranks):
            place = layout.find(rank)
            assert (place is not None) == (rank in layout.ranks())
            if place is not None:
                assert place[0].spans[place[1]].rank == rank
            else:
                assert layout.units(rank) == ()

    def test_counts_degraded_layers_per_replica(self):
        spans = (Span(0, 0, 2, frozenset({0, 1})),)
        layout = Layout(2, (Replica(0, spans, 1), Replica(1, (Span(1, 0, 2, frozenset({1})),), 1)))
        assert layout.num_degraded_layers == 3

    def test_microbatches_of_a_replica_that_is_not_there(self):
        with pytest.raises(KeyError):
            configured(CLUSTER).microbatches_of(9)


CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=4)


def broken(**changes):
    """The configured layout of CLUSTER with the first replica's first span changed."""
    layout = configured(CLUSTER)
    first = layout.replicas[0]
    return replace(
        layout,
        replicas=(replace(first, spans=(replace(first.spans[0], **changes), *first.spans[1:])), *layout.replicas[1:]),
    )


class TestCheck:
    def test_accepts_the_configured_layout(self):
        configured(CLUSTER).check(CLUSTER, range(4))
        assert configured_layout(CLUSTER) == configured(CLUSTER)

    @pytest.mark.parametrize(
        ("layout", "message"),
        [
            (broken(first=1), "does not continue at layer 0"),
            (broken(end=1), "does not continue at layer 1"),
            (broken(end=3), "does not continue at layer 3"),
            (broken(end=0), "does not continue at layer 0"),
            (broken(rank=7), "rank 7 is not alive"),
            (broken(rank=CLUSTER.rank_at(0, 1)), "holds two spans"),
            (broken(rank=CLUSTER.rank_at(1, 0)), "holds two spans"),
            (broken(degraded=frozenset({3})), "degrades layers that it does not hold"),
            (broken(recomputed=frozenset({0})), "recomputes layers that it does not degrade"),
        ],
    )
    def test_refuses_a_broken_span(self, layout, message):
        with pytest.raises(LayoutError, match=message):
            layout.check(CLUSTER, range(4))

    def test_refuses_a_replica_that_ends_early(self):
        layout = configured(CLUSTER)
        short = replace(layout.replicas[0], spans=layout.replicas[0].spans[:1])
        with pytest.raises(LayoutError, match="ends at layer 2 of 4"):
            replace(layout, replicas=(short, layout.replicas[1])).check(CLUSTER, range(4))

    def test_refuses_a_dead_holder(self):
        with pytest.raises(LayoutError, match="rank 2 is not alive"):
            configured(CLUSTER).check(CLUSTER, [0, 1, 3])

    @pytest.mark.parametrize(
        ("shares", "message"),
        [((2, 1), "3 microbatches planned, a step has 4"), ((2, 3), "5 microbatches"), ((-1, 5), "negative number")],
    )
    def test_refuses_microbatches_that_do_not_add_up(self, shares, message):
        layout = configured(CLUSTER)
        replicas = tuple(
            replace(replica, num_microbatches=share) for replica, share in zip(layout.replicas, shares, strict=True)
        )
        with pytest.raises(LayoutError, match=message):
            replace(layout, replicas=replicas).check(CLUSTER, range(4))


@pytest.mark.parametrize(("total", "parts", "shares"), [(7, 3, [3, 2, 2]), (2, 3, [1, 1, 0]), (6, 3, [2, 2, 2])])
def test_split_evenly(total, parts, shares):
    assert split_evenly(total, parts) == shares


def test_unit_names():
    assert [unit_layer(unit) for unit in ("embedding", layer_unit(12), "head")] == [None, 12, None]
