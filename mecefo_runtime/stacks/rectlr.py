"""Who computes which shards of a step, after groups were lost or came back (RECTLR, arXiv 2603.00357).

Each group holds a stack of shard types in some order, and computes the first S of it. Phase 0: do they still cover all
types? Phase 1: else, the smallest S for which some order does. Phase 2: of such orders, the one nearest to the present
one. In one point we deviate: of several copies among the first S one counts, and only that one is computed. It takes as
long, and less energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mecefo_runtime.stacks.placement import Placement

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
# What a type costs that a group computes already, and what one costs that has to be brought forward in its stack.
# scipy knows no costs of zero.
_STAYS, _MOVES = 1, 2


@dataclass(frozen=True, slots=True)
class Stacks:
    """`orders[g]` is the stack of group g, of which it computes the first `depth`.

    Of shard type t the copy of group `counted[t]` counts.
    """

    orders: Ints
    depth: int
    counted: Ints


def original_stacks(placement: Placement) -> Stacks:
    """When nothing has failed: every group computes the first type of its stack."""
    groups = np.arange(placement.num_groups)
    return Stacks((groups[:, None] + np.array(placement.offsets)) % placement.num_groups, 1, groups)


def least_depth(num_groups: int, num_alive: int) -> int:
    """ceil(N / (N - k)): no fewer layers can be enough."""
    return -(-num_groups // num_alive)


def reorder(present: Stacks, alive: Mask) -> Stacks | None:
    """The stacks with which the groups that are `alive` compute all types; None: they cannot (a wipe-out).

    `depth` is the smallest that will do. The stacks of others are as they were. The same input gives the same output.
    """
    groups = np.flatnonzero(alive)
    if not groups.size:
        return None
    least = least_depth(len(alive), len(groups))
    # After a loss nothing can be better than before; after a return it can.
    if present.depth <= least and (counted := _cover(present, groups)) is not None:
        return Stacks(present.orders, present.depth, counted)
    for depth in range(least, present.orders.shape[1] + 1):
        if depth == present.depth and (counted := _cover(present, groups)) is not None:
            return Stacks(present.orders, depth, counted)
        if _is_enough(present.orders, groups, depth):
            return _move_fewest(present.orders, groups, depth)
    return None


def _cover(present: Stacks, groups: Ints) -> Ints | None:
    """Phase 0: whose copy of each type counts, if the first layers of these groups still cover all; else None.

    Who counts already does so further on; else it is the group with the least to do.
    """
    orders, depth, counted = present.orders, present.depth, present.counted.copy()
    is_open = ~np.isin(counted, groups)
    first = orders[groups, :depth]
    if len(np.unique(first)) < len(counted):
        return None
    load = np.bincount(counted[~is_open], minlength=len(orders))
    for lost_type in np.flatnonzero(is_open):
        holders = groups[np.any(first == lost_type, axis=1)]
        chosen = holders[np.argmin(load[holders])]
        counted[lost_type] = chosen
        load[chosen] += 1
    return counted


def _is_enough(orders: Ints, groups: Ints, depth: int) -> bool:
    """Phase 1: whether every type can be computed by a group that holds it, each of them `depth` types."""
    num_types, num_held, num_groups = len(orders), orders.shape[1], len(groups)
    # Here and below: `chaos forecast --example`, and all who only ask for the stacks, need no scipy.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    # From the source to every type, from a type to the groups that hold it, from each of them to the sink.
    source, sink = num_types + num_groups, num_types + num_groups + 1
    types, nodes = np.arange(num_types), num_types + np.arange(num_groups)
    tails = np.concatenate([np.full(num_types, source), orders[groups].ravel(), nodes])
    heads = np.concatenate([types, np.repeat(nodes, num_held), np.full(num_groups, sink)])
    capacities = np.ones(len(tails), dtype=np.int32)
    capacities[-num_groups:] = depth
    graph = csr_array((capacities, (tails, heads)), shape=(sink + 1, sink + 1))
    return bool(maximum_flow(graph, source, sink).flow_value == num_types)


def _move_fewest(orders: Ints, groups: Ints, depth: int) -> Stacks:
    """Phase 2: the orders in which the first `depth` layers cover all types, with the fewest types brought forward."""
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    num_types, num_held = orders.shape
    held = orders[groups]
    # A place of each group for each layer. A type that is among the first ones has a place already, where it costs
    # least: types of one group that stay can always keep theirs.
    places = np.arange(len(groups) * depth).reshape(len(groups), depth)
    # Among equals those come first that groups compute first, so that nobody is left without a type for no reason;
    # over all types that adds up to less than one move.
    stays = _STAYS + np.tile(np.arange(depth) / (depth * num_types), len(groups))
    staying = coo_array((stays, (held[:, :depth].ravel(), places.ravel())))
    behind = held[:, depth:]
    rows = np.repeat(behind.ravel(), depth)
    columns = np.repeat(places, num_held - depth, axis=0).ravel()
    weights = np.concatenate([staying.data, np.full(len(rows), _MOVES)])
    where = np.concatenate([staying.row, rows]), np.concatenate([staying.col, columns])
    graph = csr_array((weights, where), shape=(num_types, places.size))
    types, found = min_weight_full_bipartite_matching(graph)
    found_groups, found_layers = np.divmod(found, depth)
    counted = np.empty(num_types, dtype=np.int64)
    counted[types] = groups[found_groups]
    changed = orders.copy()
    moved = held[found_groups, found_layers] != types
    for type_, group, layer in zip(types[moved], groups[found_groups[moved]], found_layers[moved], strict=True):
        stack = changed[group]
        behind_at = int(np.flatnonzero(stack == type_)[0])
        stack[layer], stack[behind_at] = type_, stack[layer]
    return Stacks(changed, depth, counted)
