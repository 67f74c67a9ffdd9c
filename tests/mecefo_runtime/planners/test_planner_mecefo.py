"""The `mecefo` planner against the step-time model: what it promises, and that it gets there with little."""

from dataclasses import replace
from itertools import combinations, product
from math import inf, nextafter

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span, configured_layout
from mecefo_runtime.planners import NoLayout, Situation, find
from mecefo_runtime.planners._partition import Partition
from mecefo_runtime.planners._stages import Stages
from mecefo_runtime.planners.mecefo import PROJECTED_LOSS_RATIO, TOLERANCE_RATIO, plan
from mecefo_runtime.prediction.predicted_costs import predict_costs
from mecefo_runtime.prediction.step_time import (
    degraded_share_ratio,
    most_memory_bytes,
    pipeline_seconds,
    projected_share_ratio,
    replica_seconds,
    step_seconds,
)
from tests.mecefo_runtime.planning import PLAIN, clusters, costs

pytestmark = pytest.mark.unit

ROUNDING = 1 + 1e-6


@st.composite
def situations(draw, *, is_ordered=False, has_limits=True):
    cluster = draw(clusters())
    alive = frozenset(draw(st.sets(st.integers(0, cluster.num_ranks - 1), min_size=1)))
    any_costs = draw(costs(is_ordered=is_ordered))
    if not has_limits:
        return Situation(cluster, alive, any_costs)
    configured_bytes = most_memory_bytes(configured_layout(cluster), any_costs)
    room = draw(st.sampled_from([None, 1.0, 1.1, 1.3, 1.6, 2.5]))
    memory_bytes = None if room is None else int(configured_bytes * room)
    return Situation(
        cluster,
        alive,
        replace(any_costs, memory_bytes=memory_bytes),
        degraded_share_limit=draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
    )


def holdings_of(layout):
    return {rank: frozenset(layout.units(rank)) for rank in layout.ranks()}


def fits(layout, situation):
    """Whether a layout keeps to the limits of a situation."""
    memory_bytes = situation.costs.memory_bytes
    return degraded_share_ratio(layout) <= situation.degraded_share_limit and (
        memory_bytes is None or most_memory_bytes(layout, situation.costs) <= memory_bytes
    )


def failure_free_seconds(situation):
    return step_seconds(configured_layout(situation.cluster), situation.costs)


@given(situations())
def test_it_keeps_to_memory_and_to_the_limit_for_degraded_samples(situation):
    try:
        layout = plan(situation)
    except NoLayout as error:
        assert "memory" in str(error) or "degraded" in str(error)
        return
    layout.check(situation.cluster, situation.alive)
    assert fits(layout, situation)
    assert all(replica.num_microbatches >= 1 for replica in layout.replicas)


def test_freedom_for_updates_does_not_degrade_who_must_not():
    """What a longer update leaves of the time was once too short, by rounding, for a replica beyond the limit."""
    cluster = Cluster(nodes=12, gpus_per_node=1, data_parallel=3, pipeline=4, num_layers=8, num_microbatches=7)
    tight = Costs(
        layer_forward_seconds=2 / 3,
        layer_backward_seconds=4 / 3,
        degraded_forward_seconds=1 / 3,
        degraded_backward_seconds=2 / 3,
        recomputed_backward_seconds=nextafter(2 / 3, inf),
        fully_recomputed_backward_seconds=nextafter(2 / 3, inf),
        embedding_forward_seconds=0.5 * 1.0,
        embedding_backward_seconds=0.5 * 1.0,
        head_forward_seconds=0.5 * 1.0,
        head_backward_seconds=0.5 * 1.0,
        layer_update_seconds=1e-6,
        layer_checksum_seconds=1e-6,
        refresh_seconds=1e-6,
        layer_state_bytes=1,
        embedding_state_bytes=1,
        head_state_bytes=3,
        layer_activation_bytes=3,
        degraded_activation_bytes=1,
        recomputed_activation_bytes=1,
        transfer_bytes_per_second=1e9,
        memory_bytes=21,
    )
    situation = Situation(cluster, frozenset(range(7)), tight, degraded_share_limit=0.5)
    assert fits(plan(situation), situation)


@given(situations(), st.sampled_from(["exact", "ndb"]))
def test_it_is_never_slower_than_a_takeover_that_fits(situation, name):
    other = find(name)(situation)
    assume(fits(other, situation))
    # `ndb` always recomputes, and that is never planned as a gain.
    assume(name == "exact" or situation.costs.recomputed_seconds >= situation.costs.degraded_seconds)
    least_seconds = max(step_seconds(other, situation.costs), failure_free_seconds(situation) * (1 + TOLERANCE_RATIO))
    assert step_seconds(plan(situation), situation.costs) <= least_seconds * ROUNDING


@given(situations(is_ordered=True, has_limits=False))
def test_nothing_is_degraded_where_the_exact_partition_keeps_the_pace(situation):
    exact = plan(replace(situation, degraded_share_limit=0.0))
    assert exact.num_degraded_layers == 0
    if step_seconds(exact, situation.costs) <= failure_free_seconds(situation):
        assert plan(situation).num_degraded_layers == 0


@given(situations(), st.data())
def test_layers_move_only_for_a_reason(situation, data):
    cluster = situation.cluster
    configured = configured_layout(cluster)
    try:
        layout = plan(situation)
    except NoLayout:
        return
    for replica in layout.replicas:
        own = configured.replicas[replica.replica]
        ranks = [span.rank for span in replica.spans]
        assert ranks == [span.rank for span in own.spans if span.rank in situation.alive], "its own, in their order"
        if len(ranks) == cluster.pipeline:
            assert replica.spans == own.spans
    again = replace(situation, current=layout, holdings=holdings_of(layout))
    assert plan(again) == layout
    # Also where somebody holds more than is needed, or has lost what it held.
    held = holdings_of(layout)
    held[data.draw(st.sampled_from(sorted(held)))] = frozenset()
    assert plan(replace(again, holdings=held)) == layout


@given(situations(has_limits=False), st.data())
def test_a_loss_elsewhere_moves_no_layer_of_a_replica_that_degrades_as_much_as_before(situation, data):
    # Where updates weigh as much as layers, the limit that is put on the slowest of them can move more than it must.
    quick_ends = replace(situation.costs, layer_update_seconds=1e-6, layer_reduction_seconds=None)
    situation = replace(situation, costs=quick_ends)
    layout = plan(situation)
    lost = data.draw(st.sampled_from(sorted(layout.ranks())))
    rest = situation.alive - {lost}
    assume(rest)
    holdings = {rank: units for rank, units in holdings_of(layout).items() if rank != lost}
    following = plan(replace(situation, alive=rest, current=layout, holdings=holdings))
    following.check(situation.cluster, rest)
    before = {replica.replica: replica for replica in layout.replicas}
    for replica in following.replicas:
        old = before[replica.replica]
        loads = [[len(span.degraded) for span in each.spans] for each in (replica, old)]
        has_same_ranks = [span.rank for span in replica.spans] == [span.rank for span in old.spans]
        if has_same_ranks and sum(loads[0]) == sum(loads[1]) and replica.num_microbatches <= old.num_microbatches:
            if [(span.first, span.end) for span in replica.spans] == [(span.first, span.end) for span in old.spans]:
                continue
            # Then it made the step quicker, if only by the slowest rank's update.
            kept = [replace(each, spans=old.spans) if each is replica else each for each in following.replicas]
            stayed = replace(following, replicas=tuple(kept))
            assert step_seconds(stayed, situation.costs) > step_seconds(following, situation.costs)


@given(situations())
def test_the_same_situation_gives_the_same_plan(situation):
    def attempt():
        try:
            return plan(replace(situation, alive=frozenset(sorted(situation.alive, reverse=True))))
        except NoLayout as error:
            return str(error)

    assert attempt() == attempt()


# ---- against trying everything ----


def all_loads(num_layers, num_stages):
    """Every (layers, degraded) of every stage."""
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        counts = [end - first for first, end in zip((0, *cuts), (*cuts, num_layers), strict=True)]
        yield from product(*([(count, degraded) for degraded in range(count + 1)] for count in counts))


AT_THE_BUDGET = replace(
    PLAIN,
    layer_forward_seconds=0.6699999999999999,
    layer_backward_seconds=1.3399999999999999,
    degraded_forward_seconds=1 / 3,
    degraded_backward_seconds=2 / 3,
    recomputed_backward_seconds=0.6666666666666667,
    embedding_forward_seconds=0.5 * 1.8232037615332333,
    embedding_backward_seconds=0.5 * 1.8232037615332333,
    head_forward_seconds=0.5 * 0.269169355548039,
    head_backward_seconds=0.5 * 0.269169355548039,
)
"""Four exact layers take a last place more than the budget, or not, as they are added up."""


@given(
    costs(is_ordered=True), st.integers(1, 3), st.integers(3, 6), st.integers(1, 5), st.floats(0.8, 2.5), st.booleans()
)
@example(AT_THE_BUDGET, 1, 4, 1, 1.0, False)
def test_no_fewer_degraded_layers_would_do(any_costs, num_stages, num_layers, num_microbatches, ratio, has_limit):
    memory_bytes = any_costs.layer_state_bytes * num_layers * 2 + 60 if has_limit else None
    stages = Stages(any_costs, num_layers, memory_bytes)
    places = stages.places(num_stages, num_microbatches)
    exact_seconds = num_layers * any_costs.layer_seconds + any_costs.embedding_seconds + any_costs.head_seconds
    budget_seconds = ratio * pipeline_seconds(exact_seconds / num_stages, exact_seconds, num_microbatches)
    # Of a pipeline that takes just the budget, rounding says on which side it is.
    fewest = fewest_or_so = fastest_seconds = inf
    for loads in all_loads(num_layers, num_stages):
        found = [stages.with_degraded(place, *load) for place, load in zip(places, loads, strict=True)]
        if None in found:
            continue
        seconds = [stages.seconds(place, load) for place, load in zip(places, found, strict=True)]
        total_seconds = pipeline_seconds(max(seconds), sum(seconds), num_microbatches)
        fastest_seconds = min(fastest_seconds, total_seconds)
        num_degraded = sum(load.num_degraded for load in found)
        if total_seconds <= budget_seconds:
            fewest = min(fewest, num_degraded)
        if total_seconds <= budget_seconds * ROUNDING:
            fewest_or_so = min(fewest_or_so, num_degraded)
    partition = Partition(stages)
    paces = partition.fastest(num_stages, num_microbatches)
    found_seconds = min((pace.seconds(num_microbatches) for pace in paces), default=inf)
    assert found_seconds == pytest.approx(fastest_seconds)
    assume(abs(fastest_seconds / budget_seconds - 1) > 1e-6)
    need = partition.need(num_stages, num_microbatches, budget_seconds)
    assert (need is None) == (fewest == inf)
    if need is not None:
        # Where memory asks for recomputation, a few more may be degraded so that fewer recompute.
        assert need.num_degraded >= fewest_or_so
        assert need.num_degraded <= fewest or has_limit
        nothing_lacks = [[0] * (num_layers + 1)] * num_stages
        loads = partition.split(num_microbatches, budget_seconds, need, nothing_lacks)
        assert sum(load.num_layers for load in loads) == num_layers
        seconds = [stages.seconds(place, load) for place, load in zip(places, loads, strict=True)]
        assert pipeline_seconds(max(seconds), sum(seconds), num_microbatches) <= budget_seconds * ROUNDING


# ---- by name ----


def shape(replica):
    return [(span.first, span.end, sorted(span.degraded)) for span in replica.spans]


def test_four_replicas_of_two_stages_and_one_rank_lost():
    cluster = Cluster(4, 2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=12)
    lost = cluster.rank_at(1, 0)
    layout = plan(Situation(cluster, frozenset(range(8)) - {lost}, PLAIN))
    configured = configured_layout(cluster)
    assert [layout.replicas[number] for number in (0, 2, 3)] == [configured.replicas[number] for number in (0, 2, 3)]
    # Failure-free: 2 x 6 + 12 = 24 seconds. Three microbatches through 4 layers on one rank would take 36, and 24 with
    # all of them degraded: just enough.
    assert shape(layout.replicas[1]) == [(0, 4, [0, 1, 2, 3])]
    assert layout.replicas[1].num_microbatches == 3
    assert step_seconds(layout, PLAIN) == pytest.approx(24, rel=1e-3)
    held = {rank: units for rank, units in holdings_of(configured).items() if rank != lost}
    lacking = {unit for rank in layout.ranks() for unit in layout.units(rank) if unit not in held[rank]}
    assert lacking == {"embedding", "layer.0", "layer.1"}


def test_with_no_degraded_samples_allowed_the_hit_replica_takes_fewer_microbatches():
    cluster = Cluster(4, 2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=12)
    situation = Situation(cluster, frozenset(range(8)) - {cluster.rank_at(1, 0)}, PLAIN, degraded_share_limit=0.2)
    layout = plan(situation)
    assert layout.num_degraded_layers == 0
    # Two there take 24 seconds; ten in three replicas take 6 more than three each.
    assert [replica.num_microbatches for replica in layout.replicas] in ([4, 2, 3, 3], [3, 2, 4, 3], [3, 2, 3, 4])
    assert step_seconds(layout, PLAIN) == pytest.approx(30, rel=1e-3)


def test_one_rank_lost_of_four_stages_degrades_only_what_it_takes():
    cluster = Cluster(4, 8, data_parallel=8, pipeline=4, num_layers=32, num_microbatches=8 * 64)
    lost = cluster.rank_at(3, 2)
    layout = plan(Situation(cluster, frozenset(range(32)) - {lost}, PLAIN))
    hit = layout.replicas[3]
    # A stage may take about 24 seconds: 9 layers and 6 of them degraded, or 10 and 6... at least 10.67 layers each.
    counts = [(len(span.layers), len(span.degraded)) for span in hit.spans]
    assert sum(count for count, _ in counts) == 32
    assert all(3 * count - degraded <= 24 * 1.02 for count, degraded in counts)
    assert layout.num_degraded_layers == sum(degraded for _, degraded in counts) <= 25
    assert step_seconds(layout, PLAIN) <= step_seconds(configured_layout(cluster), PLAIN) * (1 + TOLERANCE_RATIO)


def test_where_reductions_take_long_no_rank_holds_many_more_layers_than_before():
    cluster = Cluster(nodes=16, gpus_per_node=1, data_parallel=4, pipeline=4, num_layers=16, num_microbatches=32)
    alive = frozenset(range(16)) - {5}

    def most_layers(reduction_seconds):
        costs = replace(PLAIN, layer_reduction_seconds=reduction_seconds)
        layout = plan(Situation(cluster, alive, costs))
        takeover = find("ndb")(Situation(cluster, alive, costs))
        assert step_seconds(layout, costs) <= step_seconds(takeover, costs) * ROUNDING
        return max(len(span.layers) for replica in layout.replicas for span in replica.spans)

    assert most_layers(None) >= most_layers(20.0) == 6


def test_a_lost_node_hits_many_replicas_and_they_do_not_all_degrade_the_same_layers():
    cluster = Cluster(4, 8, data_parallel=8, pipeline=4, num_layers=32, num_microbatches=8 * 64)
    published = replace(PLAIN, degraded_backward_seconds=0.7)
    layout = plan(Situation(cluster, frozenset(range(32)) - set(cluster.ranks_of(1)), published))
    assert len(layout.replicas) == 8
    assert all(len(replica.spans) == 3 for replica in layout.replicas)
    for layer in range(32):
        assert not all(any(layer in span.degraded for span in replica.spans) for replica in layout.replicas)
    most_seconds = step_seconds(configured_layout(cluster), published) * (1 + TOLERANCE_RATIO)
    assert step_seconds(layout, published) <= most_seconds * ROUNDING


def test_a_heavy_head_leaves_the_other_stages_time_that_survivors_use():
    cluster = Cluster(2, 4, data_parallel=2, pipeline=4, num_layers=8, num_microbatches=2 * 32)
    heavy = replace(PLAIN, head_forward_seconds=3.0, head_backward_seconds=3.0)
    layout = plan(Situation(cluster, frozenset(range(8)) - {cluster.rank_at(0, 1)}, heavy))
    # The last stage sets the pace with 12 seconds; three survivors have 36 for 8 layers and the head, which take 30.
    assert layout.num_degraded_layers == 0
    assert [replica.num_microbatches for replica in layout.replicas] == [32, 32]
    assert len(layout.replicas[0].spans[-1].layers) <= 2
    assert step_seconds(layout, heavy) <= step_seconds(configured_layout(cluster), heavy) * (1 + TOLERANCE_RATIO)


def test_short_memory_is_met_by_degrading_and_then_by_recomputing():
    cluster = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=16)
    alive = frozenset(range(4)) - {cluster.rank_at(0, 1)}
    shares = {}
    # State of four layers and both ends takes 502, gradients twice; activations 40 exact, 24 degraded, 4 recomputed.
    for memory_bytes in (542, 530, 510):
        layout = plan(Situation(cluster, alive, replace(PLAIN, memory_bytes=memory_bytes), degraded_share_limit=1.0))
        (span,) = layout.replicas[0].spans
        shares[memory_bytes] = len(span.degraded), len(span.recomputed)
        assert most_memory_bytes(layout, PLAIN) <= memory_bytes
    assert shares[542] == shares[530] == (4, 0)
    assert shares[510] == (4, 4)


def test_a_replica_that_memory_cannot_hold_is_left_out():
    cluster = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=16)
    lost = cluster.rank_at(0, 1)
    tight = replace(PLAIN, memory_bytes=490)
    layout = plan(Situation(cluster, frozenset(range(4)) - {lost}, tight))
    assert [(replica.replica, replica.num_microbatches) for replica in layout.replicas] == [(1, 16)]
    with pytest.raises(NoLayout, match="memory"):
        plan(Situation(cluster, frozenset(range(4)) - {lost, cluster.rank_at(1, 0)}, tight))


def test_a_replica_that_only_fits_degraded_is_left_out_where_nothing_may_degrade():
    cluster = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=16)
    tight = replace(PLAIN, memory_bytes=530)
    alive = frozenset(range(4)) - {cluster.rank_at(0, 1)}
    assert len(plan(Situation(cluster, alive, tight)).replicas) == 2
    assert len(plan(Situation(cluster, alive, tight, degraded_share_limit=0.0)).replicas) == 1
    alone = alive - {cluster.rank_at(1, 1)}
    with pytest.raises(NoLayout, match="limit allows 0%"):
        plan(Situation(cluster, alone, tight, degraded_share_limit=0.0))
    with pytest.raises(NoLayout, match="at most 50%"):
        plan(Situation(cluster, alone, tight, degraded_share_limit=0.5))


def test_units_that_are_there_already_decide_between_equal_plans():
    cluster = Cluster(2, 3, data_parallel=2, pipeline=3, num_layers=6, num_microbatches=32)
    alive = frozenset(range(6)) - {cluster.rank_at(0, 1)}
    first, last = cluster.rank_at(0, 0), cluster.rank_at(0, 2)
    # Two degraded layers are enough for 2 + 4, 3 + 3 and 4 + 2 layers.
    cheap = replace(
        PLAIN, degraded_forward_seconds=0.025, degraded_backward_seconds=0.025, recomputed_backward_seconds=0.1
    )
    for held in (2, 3, 4):
        holdings = {rank: frozenset() for rank in alive} | {
            first: frozenset(f"layer.{layer}" for layer in range(held)),
            last: frozenset(f"layer.{layer}" for layer in range(held, 6)),
        }
        layout = plan(Situation(cluster, alive, cheap, holdings=holdings))
        assert layout.replicas[0].spans[0].end == held


def test_a_current_layout_of_other_ranks_does_not_stay():
    cluster = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=8)
    alive = frozenset(range(4)) - {cluster.rank_at(0, 1)}
    after = plan(Situation(cluster, alive, PLAIN))
    everybody = frozenset(range(4))
    assert plan(Situation(cluster, everybody, PLAIN, current=after)) == configured_layout(cluster)
    assert plan(Situation(cluster, alive, PLAIN, current=configured_layout(cluster))) == after
    lone = Layout(4, (Replica(1, configured_layout(cluster).replicas[1].spans, 8),))
    assert plan(Situation(cluster, alive, PLAIN, current=lone)) == after
    spans = tuple(Span(span.rank, span.first, span.end, frozenset(span.layers)) for span in after.replicas[1].spans)
    needless = replace(after, replicas=(after.replicas[0], replace(after.replicas[1], spans=spans)))
    assert plan(Situation(cluster, alive, PLAIN, current=needless)) == after


@pytest.mark.parametrize(
    ("cluster", "lost", "limit"),
    [
        (Cluster(8, 1, 4, 2, num_layers=5, num_microbatches=25), {5, 7}, 0.3),
        (Cluster(9, 1, 3, 3, num_layers=7, num_microbatches=19), {1, 3}, 0.5),
    ],
)
def test_a_current_layout_that_degrades_too_many_samples_does_not_stay(cluster, lost, limit):
    alive = frozenset(range(cluster.num_ranks)) - lost
    # It degrades fewer layers in all than one that keeps to the limit, in more of the samples.
    current = plan(Situation(cluster, alive, PLAIN))
    situation = Situation(cluster, alive, PLAIN, current, degraded_share_limit=limit)
    assert not fits(current, situation)
    assert fits(plan(situation), situation)


def test_a_current_layout_that_memory_does_not_hold_does_not_stay():
    cluster = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=16)
    tight = replace(PLAIN, memory_bytes=510)
    situation = Situation(cluster, frozenset(range(4)) - {cluster.rank_at(0, 1)}, tight)
    found = plan(situation)
    (span,) = found.replicas[0].spans
    assert span.recomputed
    # As few degraded layers, and faster.
    hit = replace(found.replicas[0], spans=(replace(span, recomputed=frozenset()),))
    current = replace(found, replicas=(hit, found.replicas[1]))
    assert plan(replace(situation, current=current)) == found


@pytest.mark.parametrize(
    ("data_parallel", "num_microbatches", "shares", "ends"),
    [(2, 7, (3, 4), (9, 20)), (4, 8, (0, 3, 3, 2), (10, 20))],
    ids=["other stages than configured", "nothing to do"],
)
def test_a_current_layout_stays_only_if_every_replica_works_and_whole_ones_keep_their_stages(
    data_parallel, num_microbatches, shares, ends
):
    cluster = Cluster(data_parallel, 2, data_parallel, 2, num_layers=20, num_microbatches=num_microbatches)
    alive = frozenset(range(cluster.num_ranks)) - {cluster.rank_at(0, 1)}
    situation = Situation(cluster, alive, PLAIN, degraded_share_limit=0.0)
    found = plan(situation)
    replicas = [replace(replica, num_microbatches=share) for replica, share in zip(found.replicas, shares, strict=True)]
    first, last = (span.rank for span in replicas[-1].spans)
    replicas[-1] = replace(replicas[-1], spans=(Span(first, 0, ends[0]), Span(last, ends[0], ends[1])))
    current = Layout(20, tuple(replicas))
    assert step_seconds(current, PLAIN) <= step_seconds(found, PLAIN), "it is as fast"
    assert plan(replace(situation, current=current)) == found


def test_microbatches_go_where_they_are_done_soonest():
    cluster = Cluster(4, 4, data_parallel=4, pipeline=4, num_layers=8, num_microbatches=4 * 40)
    lost = {cluster.rank_at(2, stage) for stage in (0, 1, 3)}
    layout = plan(Situation(cluster, frozenset(range(16)) - lost, PLAIN, degraded_share_limit=0.0))
    times = [replica_seconds(replica, 8, PLAIN) for replica in layout.replicas]
    slowest_microbatch = max(3.0 * len(span.layers) for replica in layout.replicas for span in replica.spans)
    assert max(times) - min(times) <= slowest_microbatch
    assert layout.replicas[2].num_microbatches < min(layout.replicas[n].num_microbatches for n in (0, 1, 3)) / 3


def test_a_thousand_ranks():
    model = replace(PRESETS["7b"], num_layers=96)
    predicted = predict_costs(model, 2048, 1, ApproximationConfig(rank=64), flops_per_second=1e14)
    cluster = Cluster(128, 8, data_parallel=32, pipeline=32, num_layers=96, num_microbatches=32 * 32)
    alive = frozenset(rank for rank in range(1024) if rank % 9)
    layout = plan(Situation(cluster, alive, predicted))
    layout.check(cluster, alive)
    assert len(layout.replicas) == 32
    assert step_seconds(layout, predicted) <= step_seconds(configured_layout(cluster), predicted) * 1.02


@st.composite
def projecting_situations(draw):
    """Where layers may be projected, and it saves something."""
    situation = draw(situations(is_ordered=True))
    saved_ratio = draw(st.sampled_from([0.05, 0.15, 0.3, 0.6]))
    backward_seconds = situation.costs.layer_backward_seconds * (1 - saved_ratio)
    return replace(
        situation,
        costs=replace(situation.costs, projected_backward_seconds=backward_seconds),
        projected_share_limit=draw(st.sampled_from([0.2, 0.5, 1.0])),
    )


@given(projecting_situations())
def test_projected_layers_keep_to_their_limit_and_make_no_step_longer(situation):
    try:
        layout = plan(situation)
    except NoLayout:
        return
    layout.check(situation.cluster, situation.alive)
    assert fits(layout, situation)
    assert projected_share_ratio(layout) <= situation.projected_share_limit * ROUNDING
    without = replace(situation, degraded_share_limit=0.0, projected_share_limit=0.0)
    try:
        exact_seconds = step_seconds(plan(without), situation.costs)
    except NoLayout:
        return
    assert step_seconds(layout, situation.costs) <= exact_seconds * (1 + TOLERANCE_RATIO) * ROUNDING
    if exact_seconds <= failure_free_seconds(situation):
        assert not layout.num_projected_layers and not layout.num_degraded_layers


@given(projecting_situations())
def test_a_layout_with_projected_layers_stays_as_long_as_nothing_happens(situation):
    try:
        layout = plan(situation)
    except NoLayout:
        return
    assert plan(replace(situation, current=layout)) == layout


def test_layers_are_projected_on_all_replicas_before_any_is_degraded():
    cluster = Cluster(nodes=4, gpus_per_node=8, data_parallel=8, pipeline=4, num_layers=32, num_microbatches=512)
    speeds = {"flops_per_second": 1.5e14, "accesses_bytes_per_second": 1.5e12}
    predicted = predict_costs(PRESETS["7b"], 256, 2, ApproximationConfig(rank=64), **speeds)
    alive = frozenset(range(32)) - {3}
    free_seconds = step_seconds(configured_layout(cluster), predicted)
    situation = Situation(cluster, alive, predicted, degraded_share_limit=1.0)
    degrading = plan(situation)
    assert degrading.num_degraded_layers and not degrading.num_projected_layers
    projecting = plan(replace(situation, projected_share_limit=0.5))
    assert not projecting.num_degraded_layers
    assert step_seconds(projecting, predicted) <= free_seconds * (1 + TOLERANCE_RATIO) * ROUNDING
    whole = [replica for replica in projecting.replicas if len(replica.spans) == cluster.pipeline]
    assert sum(any(span.projected for span in replica.spans) for replica in whole) > len(whole) / 2
    # Three lost ranks are more than projected layers make up for.
    fewer = replace(situation, alive=frozenset(range(32)) - {3, 4, 5}, projected_share_limit=0.2)
    both = plan(fewer)
    assert both.num_projected_layers and both.num_degraded_layers
    assert step_seconds(both, predicted) < step_seconds(plan(replace(fewer, degraded_share_limit=0.0)), predicted)


def test_layers_that_save_less_than_they_lose_are_not_projected():
    cluster = Cluster(nodes=8, gpus_per_node=1, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=32)

    def planned(saved_ratio):
        backward_seconds = PLAIN.layer_backward_seconds - saved_ratio * PLAIN.layer_seconds
        costs = replace(PLAIN, projected_backward_seconds=backward_seconds)
        alive = frozenset(range(8)) - {0}
        return plan(Situation(cluster, alive, costs, degraded_share_limit=0.0, projected_share_limit=0.5))

    assert not planned(PROJECTED_LOSS_RATIO * 0.9).num_projected_layers
    assert planned(PROJECTED_LOSS_RATIO * 1.5).num_projected_layers
