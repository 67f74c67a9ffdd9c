"""Reordered stacks cover every type once, at the smallest depth, with the fewest moves: another solver agrees."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import Stacks, least_depth, original_stacks, reorder
from mecefo_runtime.stacks.rulers import largest_redundancy

pytestmark = pytest.mark.unit


def flow_graph(stacks: Stacks, alive: frozenset[int], depth: int) -> nx.DiGraph:
    """Types to the groups that hold them: a type among the first `depth` costs nothing, another one a move."""
    graph = nx.DiGraph()
    for group in alive:
        graph.add_edge(f"group {group}", "sink", capacity=depth, weight=0)
        for layer, held in enumerate(stacks.orders[group].tolist()):
            graph.add_edge("source", held, capacity=1, weight=0)
            graph.add_edge(held, f"group {group}", capacity=1, weight=int(layer >= depth))
    return graph


def smallest_depth(stacks: Stacks, alive: frozenset[int]) -> int | None:
    num_types, redundancy = stacks.orders.shape
    for depth in range(1, redundancy + 1):
        if alive and nx.maximum_flow_value(flow_graph(stacks, alive, depth), "source", "sink") == num_types:
            return depth
    return None


def fewest_moves(stacks: Stacks, alive: frozenset[int], depth: int) -> int:
    graph = flow_graph(stacks, alive, depth)
    return int(nx.cost_of_flow(graph, nx.max_flow_min_cost(graph, "source", "sink")))


def check(before: Stacks, after: Stacks, alive: frozenset[int]) -> None:
    num_types = len(before.orders)
    # Every type is counted once, by a living group that computes it.
    assert len(after.counted) == num_types
    for type_, group in enumerate(after.counted.tolist()):
        assert group in alive and type_ in after.orders[group, : after.depth]
    assert max(Counter(after.counted.tolist()).values()) <= after.depth
    # Nobody holds anything else than before.
    assert (np.sort(after.orders) == np.sort(before.orders)).all()
    assert after.depth == smallest_depth(before, alive)
    assert after.depth >= least_depth(num_types, len(alive))
    gone = [group for group in range(num_types) if group not in alive]
    assert (after.orders[gone] == before.orders[gone]).all()
    moves = [
        set(after.orders[group, : after.depth].tolist()) - set(before.orders[group, : after.depth].tolist())
        for group in alive
    ]
    assert sum(map(len, moves)) == fewest_moves(before, alive, after.depth)


@given(data=st.data())
def test_through_losses_and_returns_an_independent_solver_finds_nothing_better(data: st.DataObject) -> None:
    num_groups = data.draw(st.integers(1, 14))
    kind = data.draw(st.sampled_from(["golomb", "consecutive"]))
    redundancy = data.draw(st.integers(1, largest_redundancy(num_groups, kind)))
    present = original_stacks(Placement.of(num_groups, redundancy, kind))
    alive = set(range(num_groups))
    for _ in range(data.draw(st.integers(1, 8))):
        changed = data.draw(st.sets(st.integers(0, num_groups - 1), min_size=1, max_size=3))
        alive ^= changed
        mask = np.isin(np.arange(num_groups), list(alive))
        after = reorder(present, mask)
        if after is None:
            assert smallest_depth(present, frozenset(alive)) is None
            return
        check(present, after, frozenset(alive))
        again = reorder(present, mask)
        assert again is not None and (again.orders == after.orders).all() and (again.counted == after.counted).all()
        present = after


def test_a_wipe_out_is_when_all_that_hold_a_type_are_lost() -> None:
    present = original_stacks(Placement.of(8, 3))
    alive = np.ones(8, dtype=bool)
    # Type 3 is held by groups 3, 2 and 0.
    alive[[3, 2]] = False
    assert (after := reorder(present, alive)) is not None and after.counted[3] == 0
    alive[0] = False
    assert reorder(after, alive) is None


def test_what_is_covered_already_is_not_moved() -> None:
    present = original_stacks(Placement.of(12, 4))
    alive = np.ones(12, dtype=bool)
    alive[5] = False
    first = reorder(present, alive)
    assert first is not None and first.depth == 2
    # The groups next to the lost one have its type as the second of their stacks.
    assert (first.orders == present.orders).all()
    alive[8] = False
    second = reorder(first, alive)
    assert second is not None and (second.orders == first.orders).all()
