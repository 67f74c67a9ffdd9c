"""Complete the step in flight instead of repeating it: which contributions count, and who computes the rest.

A replica that lost nobody has the gradients of some of the step's microbatches, summed over each of its stages. They
count if all its ranks have those of the same ones, and continue with the same layers. The other microbatches are shared
out over the replicas of the new layout, so that the slowest is done as soon as can be. Without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace

from mecefo_runtime.job.contribution import Completion, ComputedPart, Contribution, Work
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, Replica, shards_of
from mecefo_runtime.prediction.step_time import pipeline_seconds, span_seconds
from mecefo_runtime.stacks.placement import Placement


def complete(
    step: int,
    layout: Layout,
    contributions: Mapping[int, Contribution],
    costs: Costs,
    before: Layout | None,
    *,
    averages_rest: bool = False,
    placement: Placement | None = None,
) -> Completion | None:
    """How the members of `layout` complete `step`, of which ranks have these `contributions`; None: they begin again.

    `before` is the layout that they were computed in. `averages_rest`: what was computed with low-rank gradients does
    not count, since its bases end with their epoch. `placement`: who holds the data, None: everybody all of it.
    """
    kept: list[Work] = []
    taken: set[int] = set()
    for replica in layout.replicas:
        work = _kept_of(replica, contributions)
        microbatches = {index for one in work for index in one.microbatches}
        is_approximated = any(span.degraded or span.projected for one in work for span in one.spans)
        is_known = all(0 <= index < layout.num_microbatches for index in microbatches)
        if microbatches & taken or not is_known or (averages_rest and is_approximated):
            continue
        kept += work
        taken |= microbatches
    if not kept:
        return None
    left = [index for index in range(layout.num_microbatches) if index not in taken]
    return Completion(step, tuple(kept), share_out(left, layout, costs, placement), _lost_work_ratio(kept, before))


def _kept_of(replica: Replica, contributions: Mapping[int, Contribution]) -> tuple[Work, ...]:
    """What the ranks of `replica` have all computed, by the epochs in which they did; nothing if they disagree."""
    said = [contributions.get(span.rank) for span in replica.spans]
    parts: list[tuple[ComputedPart, ...]] = []
    for span, contribution in zip(replica.spans, said, strict=True):
        if contribution is None:
            return ()
        if any((part.span.first, part.span.end) != (span.first, span.end) for part in contribution.parts):
            return ()
        parts.append(contribution.parts)
    if len({tuple(part.microbatches for part in of_rank) for of_rank in parts}) != 1:
        return ()
    return tuple(
        Work(replica.replica, together[0].microbatches, tuple(part.span for part in together))
        for together in zip(*parts, strict=True)
    )


def share_out(
    microbatches: Iterable[int], layout: Layout, costs: Costs, placement: Placement | None = None
) -> dict[int, tuple[int, ...]]:
    """`microbatches` by replica of `layout`, so that the slowest finishes as early as possible; some may get none.

    Each goes to the replica that would finish it first, which is optimal since all microbatches take a replica the
    same time, unless a `placement` restricts which replica holds their data.
    """
    stages = {
        replica.replica: [span_seconds(span, layout.num_layers, costs) for span in replica.spans]
        for replica in layout.replicas
    }
    shares: dict[int, list[int]] = {replica.replica: [] for replica in layout.replicas}
    most = {replica.replica: _most(replica) for replica in layout.replicas}

    def seconds(replica: int) -> float:
        number = len(shares[replica]) + 1
        return pipeline_seconds(max(stages[replica]), sum(stages[replica]), number)

    if placement is not None:
        _share_out_held(microbatches, layout.num_microbatches, placement, shares, seconds)
        return {replica: tuple(share) for replica, share in shares.items()}
    queue = [(seconds(replica), replica) for replica in shares if most[replica]]
    heapify(queue)
    for index in microbatches:
        replica = queue[0][1]
        shares[replica].append(index)
        is_full = len(shares[replica]) >= most[replica]
        heapreplace(queue, (float("inf") if is_full else seconds(replica), replica))
    return {replica: tuple(share) for replica, share in shares.items()}


def _share_out_held(
    microbatches: Iterable[int],
    num_microbatches: int,
    placement: Placement,
    shares: Mapping[int, list[int]],
    seconds: Callable[[int], float],
) -> None:
    """One after the other to that holder of its shard who is through with it first (SPARe's patch compute)."""
    shards = shards_of(placement.num_groups, num_microbatches)
    type_of = {index: shard_type for shard_type, shard in enumerate(shards) for index in shard}
    holders: dict[int, list[int]] = {}
    for replica in shares:
        for held in placement.held_by(replica):
            holders.setdefault(held, []).append(replica)
    for index in microbatches:
        shares[min(holders[type_of[index]], key=lambda replica: (seconds(replica), replica))].append(index)


def _most(replica: Replica) -> float:
    """How many a replica can take: with fewer than it has stages, more would need memory that it may not have."""
    return replica.num_microbatches if replica.num_microbatches < len(replica.spans) else float("inf")


def _lost_work_ratio(kept: Iterable[Work], before: Layout | None) -> float:
    """The share of the step that those replicas had to compute of which nothing is kept."""
    if before is None or not before.num_microbatches:
        return 0.0
    replicas = {work.replica for work in kept}
    lost = sum(replica.num_microbatches for replica in before.replicas if replica.replica not in replicas)
    return lost / before.num_microbatches
