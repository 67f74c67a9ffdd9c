"""Which nodes protect each other's snapshots, and how: groups, and rows of stripes within one.

The bytes that a node of a group of n keeps are cut into n - m stripes, where the code bears m losses. A row takes one
stripe each from n - m members; the m others hold its parity (RAIM5, arXiv 2310.12670, generalised to two parities).
Rows rotate, so that every member holds as much parity as any other: m / (n - m) of what it keeps itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from mecefo_runtime.job.state_source import Offer, ParitySource, Share, Version

Protection = Literal["none", "copy", "xor", "pq"]

# How many nodes of a group may be lost at once.
NUM_PARITIES: Mapping[Protection, int] = {"none": 0, "copy": 1, "xor": 1, "pq": 2}


@dataclass(frozen=True, slots=True)
class Group:
    """`nodes` that protect each other, in a fixed order, so that any `num_parities` of them may be lost."""

    nodes: tuple[int, ...]
    num_parities: int

    @property
    def num_data(self) -> int:
        """Stripes of a node, and data stripes of a row."""
        return len(self.nodes) - self.num_parities

    def parity_nodes(self, row: int) -> tuple[int, ...]:
        """Who holds the parities of `row`: P, then Q."""
        return tuple(self.nodes[(row + index) % len(self.nodes)] for index in range(self.num_parities))

    def data_nodes(self, row: int) -> tuple[int, ...]:
        """Whose stripes are in `row`, in the order of the code's coefficients."""
        size = len(self.nodes)
        return tuple(self.nodes[(row + index) % size] for index in range(self.num_parities, size))

    def rows_of_parity(self, node: int) -> tuple[tuple[int, int], ...]:
        """The (row, index of the parity) that `node` holds."""
        place = self.nodes.index(node)
        return tuple(((place - index) % len(self.nodes), index) for index in range(self.num_parities))

    def stripe_of(self, node: int, row: int) -> int:
        """Which of its stripes `node` has in `row`."""
        place = (self.nodes.index(node) - row) % len(self.nodes)
        if place < self.num_parities:
            raise ValueError(f"node {node} holds a parity of row {row}")
        return place - self.num_parities

    def row_of(self, node: int, stripe: int) -> int:
        """The row of a stripe of `node`."""
        return (self.nodes.index(node) - self.num_parities - stripe) % len(self.nodes)


def groups_of(
    nodes: Collection[int], protection: Protection, group_size: int, nodes_per_rack: int | None = None
) -> tuple[Group, ...]:
    """All of `nodes` in groups of about `group_size`; those of one rack in as many different groups as there are.

    A group that is too small for its code has the strongest one that it can have; a single node none. The same input
    gives the same groups.
    """
    wanted = NUM_PARITIES[protection]
    if not wanted or not nodes:
        return tuple(Group((node,), 0) for node in sorted(nodes))
    size = 2 if protection == "copy" else group_size
    num_groups = max(1, len(nodes) // size)
    by_rack = sorted(nodes, key=lambda node: (node // (nodes_per_rack or len(nodes) or 1), node))
    members = [by_rack[first::num_groups] for first in range(num_groups)]
    return tuple(Group(tuple(group), min(wanted, len(group) - 1)) for group in members)


@dataclass(frozen=True, slots=True)
class ParityHeld:
    """One member of `group` holds its parities at `version`; `shares` are what each member keeps of each unit."""

    version: Version
    group: Group
    shares: Mapping[int, Mapping[str, frozenset[Share]]]


def rebuildable(held: Mapping[int, Collection[ParityHeld]], addresses: Mapping[int, str]) -> tuple[Offer, ...]:
    """What of lost nodes can be rebuilt: `held` is what each living node has, `addresses` is where it is asked.

    A member that lacks its parities at a version lacks its snapshots, too: it was started again.
    """
    holders: dict[tuple[Version, Group], dict[int, ParityHeld]] = {}
    for node, parities in held.items():
        for parity in parities:
            holders.setdefault((parity.version, parity.group), {})[node] = parity
    offers = []
    for (version, group), by_node in sorted(holders.items(), key=lambda item: (item[0][0].step, item[0][1].nodes)):
        lost = [node for node in group.nodes if node not in by_node]
        if len(lost) > group.num_parities:
            continue
        for node, parity in sorted(by_node.items()):
            offers += [
                Offer(version, ParitySource(node, addresses[node], lost_node), parity.shares[lost_node])
                for lost_node in lost
            ]
    return tuple(offers)
