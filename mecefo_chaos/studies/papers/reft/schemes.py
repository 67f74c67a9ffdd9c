"""Ways to protect snapshots, as the runtime has them, and clusters for which the odds are computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mecefo_runtime.job.protection import NUM_PARITIES, Group, Protection, groups_of


@dataclass(frozen=True, slots=True)
class Scheme:
    """`protection` in groups of about `group_size` nodes."""

    name: str
    protection: Protection
    group_size: int

    def groups(
        self, num_nodes: int, nodes_per_rack: int | None = None, apart: Iterable[Collection[int]] = ()
    ) -> tuple[Group, ...]:
        """The runtime's groups of so many nodes."""
        return self.groups_among(range(num_nodes), nodes_per_rack, apart)

    def groups_among(
        self, nodes: Collection[int], nodes_per_rack: int | None = None, apart: Iterable[Collection[int]] = ()
    ) -> tuple[Group, ...]:
        """The runtime's groups of these."""
        return groups_of(nodes, self.protection, self.group_size, nodes_per_rack, apart)

    @property
    def extra_memory_ratio(self) -> float:
        """Memory for protection, of what is protected."""
        parities = NUM_PARITIES[self.protection]
        return parities / (self.group_size - parities)


# What the paper's readers ask about: its RAIM5 in groups of 4 and 8, plain copies, and two losses borne.
SCHEMES = (
    Scheme("2 copies", "copy", 2),
    Scheme("XOR n=4", "xor", 4),
    Scheme("XOR n=8", "xor", 8),
    Scheme("P+Q 4+2", "pq", 6),
    Scheme("P+Q 6+2", "pq", 8),
)
XOR_4 = SCHEMES[1]
# Later versions of the paper protect the shares within a node alone: for the loss of the node that is no protection.
IN_NODE = Scheme("within the node", "none", 1)
# (nodes, schemes) of the table.
TABLE = ((64, (*SCHEMES, IN_NODE)), (1024, (XOR_4,)))
MOST_LOST = 4
# On eight nodes, where every case can be tried: as the runtime is configured by default, four nodes to a group.
NUM_NODES = 8
SMALL: tuple[Scheme, ...] = (
    Scheme("none", "none", 1),
    Scheme("copy", "copy", 2),
    Scheme("xor", "xor", 4),
    Scheme("pq", "pq", 4),
)
