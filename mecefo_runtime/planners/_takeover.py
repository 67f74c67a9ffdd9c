"""Takeover: a lost stage goes whole to a living neighbour in the same replica (arXiv 2510.16415, section 3)."""

from __future__ import annotations

from collections.abc import Collection

from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span, split_evenly
from mecefo_runtime.planners import NoLayout


def plan_takeover(cluster: Cluster, alive: Collection[int], *, degrade: bool, recompute_fully: bool = False) -> Layout:
    """The configured layout with every lost stage at a neighbour, equal microbatches for all replicas that are left.

    With `degrade`, all layers of a rank that holds more than its own stage are degraded and recomputed.
    """
    living = frozenset(alive)
    spans_of: dict[int, tuple[Span, ...]] = {}
    for replica in range(cluster.data_parallel):
        owners = _owners([cluster.rank_at(replica, stage) for stage in range(cluster.pipeline)], living)
        if owners is not None:
            spans_of[replica] = _spans(cluster, owners, degrade, recompute_fully)
    if not spans_of:
        raise NoLayout("no replica has a living rank left")
    shares = split_evenly(cluster.num_microbatches, len(spans_of))
    return Layout(
        num_layers=cluster.num_layers,
        replicas=tuple(
            Replica(replica, spans, share) for (replica, spans), share in zip(spans_of.items(), shares, strict=True)
        ),
    )


def _owners(ranks: list[int], living: frozenset[int]) -> list[int] | None:
    """For every stage the rank that runs it, None when the replica has no living rank.

    A run of lost stages between two living neighbours is shared: the nearer half to each, a middle one to the earlier.
    """
    alive_stages = [stage for stage, rank in enumerate(ranks) if rank in living]
    if not alive_stages:
        return None

    def nearest(lost: int) -> int:
        return min(alive_stages, key=lambda stage: (abs(stage - lost), stage))

    return [ranks[nearest(stage)] for stage in range(len(ranks))]


def _spans(cluster: Cluster, owners: list[int], degrade: bool, recompute_fully: bool) -> tuple[Span, ...]:
    spans: list[Span] = []
    for rank in dict.fromkeys(owners):
        stages = [stage for stage, owner in enumerate(owners) if owner == rank]
        layers = range(cluster.stage_layers(stages[0]).start, cluster.stage_layers(stages[-1]).stop)
        degraded = frozenset(layers) if degrade and len(stages) > 1 else frozenset[int]()
        # Technique II: a neighbour that does both recomputes.
        spans.append(Span(rank, layers.start, layers.stop, degraded, degraded, bool(degraded) and recompute_fully))
    return tuple(spans)
