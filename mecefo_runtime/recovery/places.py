"""Spare nodes for any planner: which rank takes which place of the configured layout.

A place is named after the rank that has it when nothing has failed. A planner is asked as if there were only places:
with enough spares none is empty, and it answers with the configured layout, in which others stand in for the lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.planners import Planner, Situation


def filling_places(planner: Planner) -> Planner:
    """`planner`, asked for the places that living ranks fill; without spare nodes it is asked as it is."""

    def plan(situation: Situation) -> Layout:
        cluster, current = situation.cluster, situation.current
        if not cluster.spares:
            return planner(situation)
        before = {} if current is None else dict(current.stand_ins)
        rank_at = fill_places(cluster, situation.alive, before)
        had_by = {rank: place for place, rank in before.items()}
        layout = planner(
            replace(
                situation,
                cluster=replace(cluster, nodes=cluster.nodes - cluster.spares, spares=0),
                alive=frozenset(rank_at),
                current=None if current is None else renamed(current, had_by),
                holdings={
                    place: situation.holdings[rank] for place, rank in rank_at.items() if rank in situation.holdings
                },
            )
        )
        stand_ins = tuple(sorted((place, rank) for place, rank in rank_at.items() if place != rank))
        return replace(renamed(layout, rank_at), stand_ins=stand_ins)

    return plan


def fill_places(cluster: Cluster, alive: Collection[int], before: Mapping[int, int]) -> dict[int, int]:
    """Place -> the living rank that has it; a place for which nobody is left is not in it.

    `before` are the stand-ins: place -> rank. A rank keeps its place, so that no state moves without need: a rank
    that returns while another one stands in for it becomes a spare. Places lost with one node go to one node where
    one has enough spare ranks.
    """
    had = {place: before.get(place, place) for place in range(cluster.num_places)}
    filled = {place: rank for place, rank in had.items() if rank in alive}
    spare = set(alive) - set(filled.values())
    for place in sorted(had.keys() - filled.keys()):
        # It is back, and knows its place: no other rank has to move for that.
        if place in spare:
            filled[place] = place
            spare.remove(place)
    empty = sorted(had.keys() - filled.keys(), key=lambda place: (cluster.node_of(had[place]), place))
    for _, lost_together in groupby(empty, key=lambda place: cluster.node_of(had[place])):
        places = list(lost_together)
        for place, rank in zip(places, _nearest(cluster, spare, len(places)), strict=False):
            filled[place] = rank
            spare.remove(rank)
    return filled


def _nearest(cluster: Cluster, spare: Iterable[int], number: int) -> list[int]:
    """`spare` ranks in the order in which `number` places are filled: the node that they fill up best comes first."""
    by_node = [list(ranks) for _, ranks in groupby(sorted(spare), key=cluster.node_of)]
    by_node.sort(key=lambda ranks: (len(ranks) < number, abs(len(ranks) - number), ranks))
    return [rank for ranks in by_node for rank in ranks]


def renamed(layout: Layout, names: Mapping[int, int]) -> Layout:
    """`layout` with ranks called by their `names`; those without keep their number. Nobody stands in for others."""
    return replace(
        layout,
        replicas=tuple(
            replace(
                replica,
                spans=tuple(replace(span, rank=names.get(span.rank, span.rank)) for span in replica.spans),
            )
            for replica in layout.replicas
        ),
        stand_ins=(),
    )
