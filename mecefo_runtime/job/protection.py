"""Which nodes protect each other's snapshots, and how: groups, and rows of stripes within one.

The bytes that a node of a group of n keeps are cut into n - m stripes, where the code bears m losses. A row takes one
stripe each from n - m members; the m others hold its parity (RAIM5, arXiv 2310.12670, generalised to two parities).
Rows rotate, so that every member holds as much parity as any other: m / (n - m) of what it keeps itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    nodes: Collection[int],
    protection: Protection,
    group_size: int,
    nodes_per_rack: int | None = None,
    apart: Iterable[Collection[int]] = (),
) -> tuple[Group, ...]:
    """All of `nodes` in groups of about `group_size`; those of one rack in as many different groups as there are.

    As far as that allows it, those of each set of `apart`, too: what all holders of a stage have is needed only when
    they are lost together. A group that is too small for its code has the strongest one that it can have; a single node
    none. The same input gives the same groups.
    """
    wanted = NUM_PARITIES[protection]
    if not wanted or not nodes:
        return tuple(Group((node,), 0) for node in sorted(nodes))
    size = 2 if protection == "copy" else group_size
    num_groups = max(1, len(nodes) // size)
    sets = frozenset(frozenset(some) for some in apart)
    members = _dealt(frozenset(nodes), num_groups, nodes_per_rack, sets)
    return tuple(Group(group, min(wanted, len(group) - 1)) for group in members)


# Asked for with every snapshot, and the same as long as the same nodes are there.
@lru_cache(maxsize=256)
def _dealt(
    nodes: frozenset[int], num_groups: int, nodes_per_rack: int | None, apart: frozenset[frozenset[int]]
) -> tuple[tuple[int, ...], ...]:
    mates: dict[int, set[int]] = {node: set() for node in nodes}
    for some in apart:
        for node in some & nodes:
            mates[node] |= some
    members: list[list[int]] = [[] for _ in range(num_groups)]

    def rack_of(node: int) -> int:
        return node // nodes_per_rack if nodes_per_rack else 0

    for node in sorted(nodes):

        def cost(group: list[int], node: int = node) -> tuple[int, int, int]:
            in_rack = sum(rack_of(other) == rack_of(node) for other in group)
            return in_rack, len(group), len(mates[node].intersection(group))

        # Their sizes never differ by more than one: a rack goes round all groups before it comes to one again.
        min(members, key=cost).append(node)
    return tuple(map(tuple, members))


@dataclass(frozen=True, slots=True)
class ParityHeld:
    """One member of `group` holds its parities at `version`; `shares` are what each member keeps of each unit.

    Where nodes were lost, a version is protected again, as a later `generation`. That counts as soon as it
    `is_settled`: every member has its parities of it.
    """

    version: Version
    group: Group
    shares: Mapping[int, Mapping[str, frozenset[Share]]]
    generation: int = 0
    is_settled: bool = False

    @property
    def counts(self) -> bool:
        """Whether what is lost may be rebuilt from it."""
        return self.is_settled or not self.generation


@dataclass(frozen=True, slots=True)
class Standing:
    """How a version is protected by its newest `generation` of parities that counts.

    `rebuilders` have their parities of it. Of those who belong to it, `unprotected` have none, among them the `lost`,
    who have nothing at all of the version. `losses_left` more may be lost of any group.
    """

    generation: int
    rebuilders: frozenset[int]
    unprotected: frozenset[int]
    lost: frozenset[int]
    losses_left: int

    @property
    def is_protected(self) -> bool:
        """Whether all nodes are alive and have their parities."""
        return bool(self.rebuilders) and not self.unprotected


def standing(version: Version, held: Mapping[int, Collection[ParityHeld]], holders: Collection[int]) -> Standing:
    """How well `version` is protected, given the nodes that hold parts of it and the parities of each living node."""
    counting = [
        (node, parity)
        for node, parities in held.items()
        for parity in parities
        if parity.version == version and parity.counts
    ]
    generation = max((parity.generation for _, parity in counting), default=0)
    rebuilders = frozenset(node for node, parity in counting if parity.generation == generation)
    groups = {parity.group for _, parity in counting if parity.generation == generation}
    members = {node for group in groups for node in group.nodes}
    left = [group.num_parities - len(set(group.nodes) - rebuilders) for group in groups]
    return Standing(
        generation,
        rebuilders,
        unprotected=frozenset(members | set(holders)) - rebuilders,
        lost=frozenset(members) - rebuilders - set(holders),
        losses_left=0 if set(holders) - members else max(0, min(left, default=0)),
    )


@dataclass(frozen=True, slots=True)
class EncodingFailed:
    """A node failed to re-encode `version` as this `generation`; the text says why."""

    version: Version
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotOffers:
    """What a node's snapshot process at `address` can provide, and the parities that it holds.

    `agreed` is the newest version that all ranks have, as its ranks reported, and after which a further step was
    committed. `failed` is the newest generation of parities that failed.
    """

    address: str
    agreed: Version | None = None
    offers: tuple[Offer, ...] = ()
    parities: tuple[ParityHeld, ...] = ()
    failed: EncodingFailed | None = None


def rebuildable(
    held: Mapping[int, Collection[ParityHeld]],
    addresses: Mapping[int, str],
    damaged: Collection[tuple[Version, int]] = (),
) -> tuple[Offer, ...]:
    """What of lost nodes can be rebuilt: `held` is what each living node has, `addresses` is where it is asked.

    A member that lacks its parities at a version lacks its snapshots, too: it was started again. What is `damaged`, of
    a (version, node), is lost as well, but not the parities there.
    """
    holders: dict[tuple[Version, Group, int], dict[int, ParityHeld]] = {}
    for node, parities in held.items():
        for parity in parities:
            holders.setdefault((parity.version, parity.group, parity.generation), {})[node] = parity
    offers = []
    in_order = sorted(holders.items(), key=lambda item: (item[0][0].step, item[0][2], item[0][1].nodes))
    for (version, group, _), by_node in in_order:
        if not any(parity.counts for parity in by_node.values()):
            continue
        lost = [node for node in group.nodes if node not in by_node or (version, node) in damaged]
        if len(lost) > group.num_parities:
            continue
        for node, parity in sorted(by_node.items()):
            offers += [
                Offer(version, ParitySource(node, addresses[node], lost_node), parity.shares[lost_node])
                for lost_node in lost
                if lost_node != node
            ]
    return tuple(offers)
