from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.language.target import DEFAULT_TARGET, ResolvedTarget, Target, resolve
from mecefo_runtime.job.layout import Cluster
from tests.examples import FEW

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=16)


def resolved(text, scope="rank", cluster=CLUSTER, seed=0, **options):
    return resolve(Target.parse(text), cluster, scope, Random(seed), **options)


class TestParse:
    @pytest.mark.parametrize(
        ("text", "target"),
        [
            ("rank=3", Target(rank=3)),
            ("node=1", Target(node=1)),
            ("stage=2", Target(stage=2)),
            ("replica=0", Target(replica=0)),
            ("role=coordinator", Target(role="coordinator")),
            ("random", Target(random=1)),
            ("random:2", Target(random=2)),
            (" stage = 1 , replica = 0 ", Target(stage=1, replica=0)),
            ("stage=1,random", Target(stage=1, random=1)),
            ("node=2+1", Target(node=(1, 2))),
            ("rank=1+5", Target(rank=(1, 5))),
            ("rack=0", Target(rack=0)),
            ("rack=1+0,random:2", Target(rack=(0, 1), random=2)),
            ("link=5-2", Target(link=(2, 5))),
            ("role=launcher", Target(role="launcher")),
        ],
    )
    def test_reads(self, text, target):
        assert Target.parse(text) == target

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("nod=2", "(did you mean 'node'?)"),
            ("rank=x", "rank must be a whole number from 0, not 'x'"),
            ("rank=-1", "whole number from 0, not '-1'"),
            ("rank=1e9", "whole number"),
            ("rank=" + "9" * 5000, "whole number"),
            ("rank", "rank of what? write rank=0"),
            ("role", "write role=coordinator"),
            ("role=coordinatr", "(did you mean 'coordinator'?)"),
            (
                "role=stove",
                "there is no role 'stove' that can be a target: there is coordinator, store, launcher (did you mean "
                "'store'?)",
            ),
            ("role=coordinator,rank=1", "leave out rank"),
            ("role=coordinator,random", "leave out random"),
            ("node=1+", "node must be a whole number from 0, not ''"),
            ("node=1+x", "node must be a whole number from 0, not 'x'"),
            ("node=1+1", "names one of them twice"),
            ("link=2", "link must be two ranks, such as link=2-5, not '2'"),
            ("link=2-x", "link must be two ranks"),
            ("link=1-2-3", "link must be two ranks"),
            ("link=node0-node1", "link must be two ranks"),
            ("link", "link of what? write link=2-5"),
            ("link=2-2", "a link is between two ranks"),
            ("link=2-5,node=1", "link=2-5 is one link already: leave out node"),
            ("link=2-5,random", "leave out random"),
            ("racks=0", "(did you mean 'rack'?)"),
            ("random:0", "draws no target"),
            ("random:", "write random, or random:2"),
            ("random:x", "write random, or random:2"),
            ("random=2", "write random, or random:2"),
            ("random,random:2", "draws twice"),
            ("rank=1,rank=2", "says 'rank' twice"),
            ("rank=1,", "empty part"),
            ("", "empty part"),
            (None, "null is no target"),
            (3, "3 is no target"),
            ({"node": 2}, "is no target"),
        ],
    )
    def test_refuses(self, value, message):
        with pytest.raises(UsageError) as refused:
            Target.parse(value)
        assert message in str(refused.value)

    @given(st.text("ranklinode=+-,:0123456789 ", max_size=20))
    def test_any_text_is_read_or_refused(self, text):
        try:
            target = Target.parse(text)
        except UsageError:
            return
        assert Target.parse(str(target)) == target

    def test_refuses_to_be_nobody(self):
        with pytest.raises(UsageError, match="a target is one of"):
            Target()

    @given(
        st.fixed_dictionaries(
            {},
            optional={
                place: st.one_of(
                    st.integers(0, 99),
                    st.sets(st.integers(0, 99), min_size=2, max_size=4).map(lambda several: tuple(sorted(several))),
                )
                for place in ("rank", "node", "rack", "stage", "replica")
            },
        ),
        st.one_of(st.none(), st.integers(1, 9)),
    )
    def test_text_round_trips(self, places, draws):
        if not places and draws is None:
            return
        target = Target(**places, random=draws)
        assert Target.parse(str(target)) == target


class TestResolve:
    @pytest.mark.parametrize(
        ("text", "scope", "ranks", "nodes"),
        [
            ("rank=5", "rank", (5,), ()),
            ("rank=5", "node", (4, 5), (2,)),
            ("node=1", "rank", (2, 3), ()),
            ("node=1", "node", (2, 3), (1,)),
            ("stage=0,replica=1", "rank", (5,), ()),
            ("stage=0,replica=1", "node", (4, 5), (2,)),
            ("replica=0", "rank", (0, 4), ()),
            ("replica=0", "node", (0, 1, 4, 5), (0, 2)),
            ("node=1,stage=0", "rank", (2,), ()),
            ("node=1+2", "node", (2, 3, 4, 5), (1, 2)),
            ("rank=1+5", "rank", (1, 5), ()),
            ("rank=0+1", "node", (0, 1), (0,)),
            ("rack=1", "node", (4, 5, 6, 7), (2, 3)),
            ("rack=0,stage=0", "rank", (0, 2), ()),
        ],
    )
    def test_names(self, text, scope, ranks, nodes):
        assert resolved(text, scope, nodes_per_rack=2) == ResolvedTarget(ranks, nodes)

    @pytest.mark.parametrize("scope", ["rank", "node"])
    def test_a_role_is_no_rank(self, scope):
        assert resolved("role=coordinator", scope) == ResolvedTarget(role="coordinator")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("node=7", "node=7 does not exist: the job has nodes 0 to 3"),
            ("rank=8", "rank=8 does not exist: the job has ranks 0 to 7"),
            ("stage=2", "stage=2 does not exist: the job has stages 0 to 1"),
            ("replica=4", "replica=4 does not exist: the job has replicas 0 to 3"),
            ("node=1+7", "node=7 does not exist: the job has nodes 0 to 3"),
            ("rack=0", "rack=0, but the job has no racks: give it job.nodes_per_rack: 2"),
            ("link=0-1", "link=0-1, but the fault acts on ranks: write one of rank=3, node=1, random"),
            ("rank=3,node=0", "rank=3,node=0 matches no rank: rank 3 is on node 1, replica 3, stage 1"),
            ("random:9", "random:9 asks for 9, but only 8 ranks can be drawn"),
        ],
    )
    def test_refuses_what_is_not_there(self, text, message):
        with pytest.raises(UsageError) as refused:
            resolved(text)
        assert str(refused.value) == message

    def test_racks_of_which_the_last_is_not_full(self):
        assert resolved("rack=1", "node", nodes_per_rack=3).nodes == (3,)
        with pytest.raises(UsageError, match="rack=2 does not exist: the job has racks 0 to 1"):
            resolved("rack=2", "node", nodes_per_rack=3)

    def test_names_the_only_node(self):
        cluster = Cluster(1, 2, data_parallel=2, pipeline=1, num_layers=4, num_microbatches=2)
        with pytest.raises(UsageError, match="node=1 does not exist: the job has only node 0"):
            resolved("node=1", cluster=cluster)

    def test_too_many_nodes(self):
        with pytest.raises(UsageError, match="only 4 nodes can be drawn"):
            resolved("random:5", "node")

    @given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(["node", "rank"]))
    def test_draws_as_many_as_asked_and_the_same_again(self, seed, count, scope):
        target = resolved(f"random:{count}", scope, seed=seed)
        assert target == resolved(f"random:{count}", scope, seed=seed)
        drawn = target.nodes if scope == "node" else target.ranks
        assert len(set(drawn)) == count
        assert list(drawn) == sorted(drawn)
        if scope == "node":
            assert target.ranks == tuple(rank for node in drawn for rank in CLUSTER.ranks_of(node))

    def test_every_node_can_be_drawn(self):
        drawn = {resolved("random", "node", seed=seed).nodes for seed in range(60)}
        assert drawn == {(0,), (1,), (2,), (3,)}

    @given(st.integers(0, 2**32), st.sets(st.integers(0, 3), max_size=3))
    def test_unavailable_nodes_are_not_drawn_and_change_no_other_draw(self, seed, nodes):
        unavailable = {rank for node in nodes for rank in CLUSTER.ranks_of(node)}
        free = resolved("random", "node", seed=seed)
        drawn = resolved("random", "node", seed=seed, unavailable=unavailable)
        assert not set(drawn.nodes) & nodes
        if not set(free.nodes) & nodes:
            assert drawn == free

    def test_a_named_target_is_meant_even_if_it_is_unavailable(self):
        assert resolved("node=1", "node", unavailable={2, 3}).nodes == (1,)

    def test_draws_among_what_else_is_said(self):
        ranks = {resolved("stage=0,random", seed=seed).ranks[0] for seed in range(60)}
        assert ranks == {rank for rank in range(8) if CLUSTER.cell_of(rank)[1] == 0}

    def test_the_default_is_one_drawn(self):
        assert Target.parse("random") == DEFAULT_TARGET
        assert resolve(None, CLUSTER, "rank", Random(3)) == resolved("random", seed=3)


class TestLinks:
    def test_a_link_is_its_two_ranks(self):
        assert resolved("link=5-2", "link") == ResolvedTarget((2, 5), links=((2, 5),))

    @given(st.integers(0, 2**32), st.integers(1, 8))
    def test_are_drawn_between_nodes_and_apart(self, seed, count):
        target = resolved(f"random:{count}", "link", seed=seed)
        assert target == resolved(f"random:{count}", "link", seed=seed)
        assert len(set(target.links)) == len(target.links) == count
        assert all(one < other and CLUSTER.node_of(one) != CLUSTER.node_of(other) for one, other in target.links)
        assert target.ranks == tuple(sorted({rank for link in target.links for rank in link}))

    def test_every_pair_of_ranks_on_different_nodes_can_be_drawn(self):
        drawn = {resolve(None, CLUSTER, "link", Random(seed)).links[0] for seed in range(600)}
        assert len(drawn) == 8 * 6 // 2

    @FEW
    @given(st.integers(0, 2**32), st.sets(st.integers(0, 7), max_size=5))
    def test_are_not_drawn_on_ranks_that_are_down(self, seed, down):
        assert not set(resolved("random", "link", seed=seed, unavailable=down).ranks) & down

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("link=2-8", "rank=8 does not exist"),
            ("node=1", "node=1, but the fault acts on links: write link=2-5, or random"),
            ("role=coordinator", "the fault acts on links"),
            ("random,stage=0", "the fault acts on links"),
            ("random:9", "random:9 links are more than the 8 that are drawn at once"),
        ],
    )
    def test_refuses_what_is_no_link(self, text, message):
        with pytest.raises(UsageError) as refused:
            resolved(text, "link")
        assert message in str(refused.value)

    def test_there_are_none_on_one_node(self):
        cluster = Cluster(1, 2, data_parallel=2, pipeline=1, num_layers=4, num_microbatches=2)
        with pytest.raises(UsageError, match="there are no two nodes to draw from"):
            resolved("random", "link", cluster=cluster)

    def test_no_more_than_there_are(self):
        cluster = Cluster(2, 1, data_parallel=2, pipeline=1, num_layers=4, num_microbatches=2)
        assert resolved("random", "link", cluster=cluster).links == ((0, 1),)
        with pytest.raises(UsageError, match="but there are only 1"):
            resolved("random:2", "link", cluster=cluster)


def test_a_fault_of_checkpoints_affects_nobody():
    assert resolve(None, CLUSTER, "checkpoint", Random(0)) == ResolvedTarget()
    with pytest.raises(UsageError, match="this kind of fault takes no target: leave rank=1 out"):
        resolved("rank=1", "checkpoint")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (ResolvedTarget((4, 5), (2,)), "node=2"),
        (ResolvedTarget((0, 1, 4, 5), (0, 2)), "node=0+2"),
        (ResolvedTarget((3,)), "rank=3"),
        (ResolvedTarget((3, 4)), "rank=3+4"),
        (ResolvedTarget((2, 5), links=((2, 5),)), "link=2-5"),
        (ResolvedTarget(), "the job"),
        (ResolvedTarget(role="coordinator"), "role=coordinator"),
    ],
)
def test_text_of_a_resolved_target(target, text):
    assert str(target) == text
