"""SPARe: the other replicas compute a lost replica's shards, exactly; each holds several shards (arXiv 2603.00357).

A replica that lost a rank is out as a whole until the rank is back, and no state moves. RECTLR
(`mecefo_runtime.stacks`) says who computes which shards. When some shard has no living holder left, all ranks start
again from the newest snapshot or checkpoint, as if nothing had failed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from mecefo_runtime.job.assignment import Assignment
from mecefo_runtime.job.layout import Layout, configured_layout
from mecefo_runtime.planners import NoLayout, Situation, WipeOut
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import Stacks, original_stacks, reorder

PLACES_SHARDS = True
# Replicas stay as they are or are out: there is no layout with which to bridge the time until state has moved.
FIXED_SETTINGS = {"takeover": "direct"}


def plan(situation: Situation) -> Layout:
    """See `Planner`; losses equal the fault-free run's up to the order of floating-point sums."""
    configured = configured_layout(situation.cluster)
    alive = situation.alive
    whole = {one.replica for one in configured.replicas if all(span.rank in alive for span in one.spans)}
    if len(whole) == len(configured.replicas):
        return configured
    if not alive:
        raise NoLayout("no replica has a living rank left")
    return masked(situation, configured, whole)


def masked(situation: Situation, configured: Layout, computing: Collection[int]) -> Layout:
    """The replicas that are `computing` compute all shards of a step, as if each had its configured stages.

    Raises:
        WipeOut: they do not hold all shards.
    """
    placement = situation.placement or Placement.of(len(configured.replicas))
    alive = np.zeros(placement.num_groups, dtype=bool)
    alive[sorted(computing)] = True
    stacks = reorder(_present(situation, placement), alive)
    if stacks is None:
        raise WipeOut(
            f"{len(computing)} whole replicas of {placement.num_groups} do not hold all shards of a step, of which "
            f"each is held by {placement.redundancy}"
        )
    unshared = replace(configured, assignment=_to_assignment(stacks))
    replicas = (
        replace(configured.replicas[number], num_microbatches=len(unshared.microbatches_of(number)))
        for number in sorted(computing)
    )
    return replace(unshared, replicas=tuple(replicas))


def _present(situation: Situation, placement: Placement) -> Stacks:
    """The stacks as they were computed last."""
    assignment = None if situation.current is None else situation.current.assignment
    if assignment is None:
        return original_stacks(placement)
    return Stacks(np.array(assignment.orders), assignment.depth, np.array(assignment.counted))


def _to_assignment(stacks: Stacks) -> Assignment:
    orders = tuple(tuple(stack) for stack in stacks.orders.tolist())
    return Assignment(orders, stacks.depth, tuple(stacks.counted.tolist()))
