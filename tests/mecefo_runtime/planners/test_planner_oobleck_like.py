"""Templates: exact, as balanced as can be, of the number of ranks alone; who lacks ranks borrows or merges."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mecefo_runtime.job.layout import Cluster, Span, configured_layout
from mecefo_runtime.planners import NoLayout, Situation, find
from mecefo_runtime.planners.mecefo import TOLERANCE_RATIO
from mecefo_runtime.prediction.step_time import most_memory_bytes, span_seconds, step_seconds
from tests.mecefo_runtime.planning import PLAIN, clusters, costs

pytestmark = pytest.mark.unit

plan = find("oobleck-like")


@st.composite
def situations(draw, **given_costs):
    cluster = draw(clusters())
    alive = draw(st.sets(st.integers(0, cluster.num_ranks - 1), min_size=1))
    return Situation(cluster, frozenset(alive), draw(costs(**given_costs)))


def ranks_of(layout):
    return {replica.replica: [span.rank for span in replica.spans] for replica in layout.replicas}


def counts_of(replica):
    return [len(span.layers) for span in replica.spans]


def configured_ranks(cluster, replica):
    return [cluster.rank_at(replica, stage) for stage in range(cluster.pipeline)]


@given(situation=situations())
def test_nothing_is_degraded_and_everybody_stays_in_his_replica(situation):
    cluster, layout = situation.cluster, plan(situation)
    assert layout.num_degraded_layers == 0
    configured = configured_layout(cluster)
    for replica, ranks in ranks_of(layout).items():
        own = configured_ranks(cluster, replica)
        assert ranks == [rank for rank in own if rank in situation.alive]
        if ranks == own:
            (found,) = (one for one in layout.replicas if one.replica == replica)
            assert found.spans == configured.replicas[replica].spans


@given(situation=situations())
def test_the_template_goes_by_the_number_of_ranks(situation):
    hurt = [replica for replica in plan(situation).replicas if len(replica.spans) < situation.cluster.pipeline]
    by_size = {len(replica.spans): counts_of(replica) for replica in hurt}
    assert all(counts_of(replica) == by_size[len(replica.spans)] for replica in hurt)


@given(situation=situations())
def test_no_other_split_has_a_faster_slowest_stage(situation):
    num_layers = situation.cluster.num_layers
    for replica in plan(situation).replicas:
        num_stages = len(replica.spans)
        if num_stages == situation.cluster.pipeline:
            continue
        slowest = max(span_seconds(span, num_layers, situation.costs) for span in replica.spans)
        for cuts in combinations(range(1, num_layers), num_stages - 1):
            spans = [Span(0, first, end) for first, end in pairwise((0, *cuts, num_layers))]
            other = max(span_seconds(span, num_layers, situation.costs) for span in spans)
            assert slowest <= other * (1 + 1e-9)


# Two of eight ranks are lost, and the optimizer takes three times as long as a forward pass: here `mecefo` once allowed
# more layers a rank than the time of the whole replica left room for.
LONG_UPDATES = Situation(
    Cluster(8, 1, 2, 4, 4, 3),
    frozenset(range(8)) - {4, 6},
    replace(
        PLAIN,
        layer_forward_seconds=0.337,
        layer_backward_seconds=0.673,
        degraded_forward_seconds=0.333,
        degraded_backward_seconds=0.667,
        recomputed_backward_seconds=0.667,
        embedding_forward_seconds=1.0,
        embedding_backward_seconds=1.0,
        head_forward_seconds=1.0,
        head_backward_seconds=1.0,
        layer_update_seconds=1.0,
        layer_state_bytes=1,
    ),
)


@example(situation=LONG_UPDATES)
@given(situation=situations(is_ordered=True))
def test_mecefo_without_degrading_is_as_fast_but_for_its_tolerance(situation):
    costs = situation.costs
    ours = find("mecefo")(replace(situation, degraded_share_limit=0.0))
    failure_free = step_seconds(configured_layout(situation.cluster), costs)
    templates = step_seconds(plan(situation), costs)
    assert step_seconds(ours, costs) <= max(templates, failure_free * (1 + TOLERANCE_RATIO)) * (1 + 1e-6)


def test_microbatches_go_by_the_speed_of_the_templates():
    # A replica of two stages of three layers; the other one's survivor does six, and takes twice as long.
    cluster = Cluster(4, 1, 2, 2, 6, 24)
    alive = frozenset(range(4)) - {cluster.rank_at(1, 0)}
    assert [replica.num_microbatches for replica in plan(Situation(cluster, alive, PLAIN)).replicas] == [16, 8]


# State of a layer takes 125, its activations 10 for each microbatch in flight: memory for two stages, not for one.
CLUSTER = Cluster(9, 1, 3, 3, 6, 12)


def lost(*cells):
    return frozenset(range(9)) - {CLUSTER.rank_at(*cell) for cell in cells}


def limited(memory_bytes, alive):
    return plan(Situation(CLUSTER, alive, replace(PLAIN, memory_bytes=memory_bytes)))


def test_who_has_too_few_ranks_borrows_from_the_one_with_most():
    layout = limited(415, lost((1, 0), (1, 1)))
    assert ranks_of(layout) == {
        0: configured_ranks(CLUSTER, 0)[:2],
        1: [CLUSTER.rank_at(1, 2), CLUSTER.rank_at(0, 2)],
        2: configured_ranks(CLUSTER, 2),
    }
    assert [counts_of(replica) for replica in layout.replicas] == [[3, 3], [3, 3], [2, 2, 2]]


def test_where_nobody_can_lend_two_replicas_become_one():
    layout = limited(415, lost((0, 0), (0, 1), (1, 0), (2, 2)))
    assert ranks_of(layout) == {
        0: [CLUSTER.rank_at(0, 2), *configured_ranks(CLUSTER, 1)[1:]],
        2: configured_ranks(CLUSTER, 2)[:2],
    }


def test_what_all_together_cannot_hold_has_no_layout():
    survivor = frozenset([CLUSTER.rank_at(0, 0)])
    with pytest.raises(NoLayout, match="memory together does not hold"):
        limited(415, survivor)
    assert limited(10_000, survivor).replicas[0].num_microbatches == 12


@given(situation=situations(memory_bytes=1))
def test_memory_is_kept_to(situation):
    cluster, costs = situation.cluster, situation.costs
    configured = configured_layout(cluster)
    # What the configured layout takes is taken to be there.
    limit = most_memory_bytes(replace(configured, replicas=configured.replicas[:1]), costs)
    try:
        layout = plan(situation)
    except NoLayout:
        return
    layout.check(cluster, situation.alive)
    assert most_memory_bytes(layout, costs) <= limit
