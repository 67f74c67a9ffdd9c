"""A step is completed: what counts of it, who computes the rest, and that nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.contribution import Completion, ComputedPart, Contribution
from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span, configured_layout
from mecefo_runtime.planners import NoLayout, Situation, find
from mecefo_runtime.prediction.step_time import replica_seconds
from mecefo_runtime.recovery.completion import complete, share_out
from tests.planning import COSTS

pytestmark = pytest.mark.unit

STEP = 7
CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=12)
LAYOUT = configured_layout(CLUSTER)


def span_of(layout: Layout, rank: int) -> Span:
    place = layout.find(rank)
    assert place is not None
    return place[0].spans[place[1]]


def said(layout: Layout, rank: int, *microbatches: int) -> Contribution:
    return Contribution(STEP, 0, (ComputedPart(microbatches, span_of(layout, rank)),))


def drained(layout: Layout, done: dict[int, int]) -> dict[int, Contribution]:
    """What all ranks of these replicas say when each replica has done so many of its microbatches."""
    return {
        span.rank: said(layout, span.rank, *layout.microbatches_of(replica.replica)[: done[replica.replica]])
        for replica in layout.replicas
        if done.get(replica.replica)
        for span in replica.spans
    }


def counted(completion: Completion) -> list[int]:
    kept = [index for work in completion.kept for index in work.microbatches]
    return sorted(kept + [index for share in completion.assigned.values() for index in share])


def test_replicas_that_lost_nobody_keep_what_they_have_and_all_share_the_rest():
    new = replace(LAYOUT, replicas=LAYOUT.replicas[:3])
    new = replace(new, replicas=tuple(replace(replica, num_microbatches=4) for replica in new.replicas))
    completion = complete(STEP, new, drained(LAYOUT, {0: 2, 1: 3, 2: 1}), COSTS, LAYOUT)
    assert completion is not None and completion.step == STEP
    assert [completion.kept_by(replica) for replica in range(4)] == [(0, 1), (3, 4, 5), (6,), ()]
    assert completion.num_kept == 6 and sorted(map(len, completion.assigned.values())) == [2, 2, 2]
    assert counted(completion) == list(range(12))
    assert completion.lost_work_ratio == pytest.approx(0.25)


@pytest.mark.parametrize("what", ["a rank says less", "a rank says nothing", "other layers", "other parts"])
def test_what_not_all_ranks_of_a_replica_have_does_not_count(what: str):
    contributions = drained(LAYOUT, {0: 2, 1: 2})
    rank = LAYOUT.replicas[0].spans[1].rank
    if what == "a rank says less":
        contributions[rank] = said(LAYOUT, rank, 0)
    elif what == "a rank says nothing":
        del contributions[rank]
    elif what == "other layers":
        contributions[rank] = Contribution(STEP, 0, (ComputedPart((0, 1), Span(rank, 1, 4)),))
    else:
        span = span_of(LAYOUT, rank)
        contributions[rank] = Contribution(STEP, 0, (ComputedPart((0,), span), ComputedPart((1,), span)))
    completion = complete(STEP, LAYOUT, contributions, COSTS, LAYOUT)
    assert completion is not None and {work.replica for work in completion.kept} == {1}
    assert counted(completion) == list(range(12))


def test_the_same_microbatch_counts_once_however_often_it_was_computed():
    contributions = drained(LAYOUT, {0: 2})
    contributions |= {span.rank: said(LAYOUT, span.rank, 1, 3) for span in LAYOUT.replicas[1].spans}
    completion = complete(STEP, LAYOUT, contributions, COSTS, LAYOUT)
    assert completion is not None and counted(completion) == list(range(12))
    assert {work.replica for work in completion.kept} == {0}


def test_nothing_to_keep_is_no_completion():
    assert complete(STEP, LAYOUT, {}, COSTS, LAYOUT) is None
    assert complete(STEP, LAYOUT, {rank: Contribution(STEP, 0) for rank in LAYOUT.ranks()}, COSTS, LAYOUT) is None


@pytest.mark.parametrize(("averages_rest", "is_kept"), [(True, False), (False, True)])
def test_bases_end_with_their_epoch_and_gradients_within_them_too(averages_rest: bool, is_kept: bool):
    first = LAYOUT.replicas[0]
    spans = tuple(replace(span, degraded=frozenset({span.first})) for span in first.spans)
    before = replace(LAYOUT, replicas=(replace(first, spans=spans), *LAYOUT.replicas[1:]))
    completion = complete(STEP, LAYOUT, drained(before, {0: 2}), COSTS, before, averages_rest=averages_rest)
    assert (completion is not None) is is_kept
    if completion is not None:
        # Under what it was computed, not under what is to come.
        assert completion.kept[0].spans == spans


@given(
    layers=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    shares=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    number=st.integers(0, 9),
)
def test_the_slowest_is_done_as_soon_as_can_be(layers: list[int], shares: list[int], number: int):
    """Against all ways of sharing them out."""
    num_layers = 6
    replicas = []
    for index, cut in enumerate(layers):
        spans = (Span(2 * index, 0, cut), Span(2 * index + 1, cut, num_layers)) if cut < num_layers else ()
        replicas.append(Replica(index, spans or (Span(2 * index, 0, num_layers),), shares[index] + 2))
    layout = Layout(num_layers, tuple(replicas))
    found = share_out(range(number), layout, COSTS)
    assert sorted(index for share in found.values() for index in share) == list(range(number))

    def seconds(numbers: tuple[int, ...]) -> float:
        changed = (replace(replica, num_microbatches=n) for replica, n in zip(replicas, numbers, strict=True))
        return max(replica_seconds(replica, num_layers, COSTS) for replica in changed)

    ways = (way for way in product(range(number + 1), repeat=len(replicas)) if sum(way) == number)
    assert seconds(tuple(map(len, found.values()))) == pytest.approx(min(map(seconds, ways)))


@pytest.mark.parametrize("strategy", ["ndb", "exact", "mecefo", "oobleck-like"])
@given(data=st.data())
def test_every_microbatch_of_a_step_counts_once_through_any_number_of_losses(strategy: str, data: st.DataObject):
    """Losses in any phase: some replicas are drained after some microbatches, of others the ranks disagree."""
    layout, alive = LAYOUT, set(range(CLUSTER.num_ranks))
    own: dict[int, Contribution] = {}
    assigned = {replica.replica: tuple(layout.microbatches_of(replica.replica)) for replica in layout.replicas}
    for _ in range(data.draw(st.integers(1, 3))):
        for replica in layout.replicas:
            share = assigned.get(replica.replica, ())
            together = data.draw(st.integers(0, len(share)))
            for span in replica.spans:
                known = own.get(span.rank, Contribution(STEP, 0))
                mine = together if data.draw(st.integers(0, 4)) else data.draw(st.integers(0, len(share)))
                if mine:
                    own[span.rank] = replace(known, parts=(*known.parts, ComputedPart(share[:mine], span)))
        alive -= data.draw(st.sets(st.sampled_from(sorted(alive)), min_size=1, max_size=2))
        situation = Situation(CLUSTER, frozenset(alive), COSTS, layout, {})
        try:
            new = find(strategy)(situation)
        except NoLayout:
            return
        left = {rank: one for rank, one in own.items() if rank in alive}
        completion = complete(STEP, new, left, COSTS, layout, averages_rest=data.draw(st.booleans()))
        own = {}
        assigned = {replica.replica: tuple(new.microbatches_of(replica.replica)) for replica in new.replicas}
        layout = new
        if completion is None:
            continue
        assert counted(completion) == list(range(CLUSTER.num_microbatches))
        assert 0.0 <= completion.lost_work_ratio <= 1.0
        assigned = dict(completion.assigned)
        for replica in new.replicas:
            kept = completion.kept_by(replica.replica)
            for span in replica.spans if kept else ():
                assert left[span.rank].microbatches == kept, "a rank would go on with other microbatches"
                own[span.rank] = left[span.rank]
