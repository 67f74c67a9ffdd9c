"""The networks of a run as values, shared by the code that makes them and the code that changes their links."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chaos.host.join_network import NETWORKS_VARIABLE as NETWORKS_VARIABLE
from mecefo_runtime.system.json_values import from_list, to_list
from mecefo_runtime.system.own_network import OwnNetwork
from mecefo_runtime.system.process import ProcessId

PREFIX_LENGTH = 16
_PREFIX = "10.77"
# The third number of an address says what is there; each of these may go on for 250 / 3 of them.
_COORDINATOR, _FIRST_OF_NODES, _FIRST_OF_RANKS = 0, 1, 84
_PER_NUMBER = 250


@dataclass(frozen=True, slots=True)
class Site:
    """One network to be made: `name` is its interface's on the bridge's side, `address` its own."""

    name: str
    address: str


def sites(num_nodes: int, num_ranks: int) -> Iterator[Site]:
    """The coordinator's, every node's (its supervisor is there), and every rank's."""
    yield Site("coordinator", f"{_PREFIX}.{_COORDINATOR}.1")
    for node in range(num_nodes):
        yield Site(f"node-{node}", _address(_FIRST_OF_NODES, node))
    for rank in range(num_ranks):
        yield Site(f"rank-{rank}", _address(_FIRST_OF_RANKS, rank))


def _address(first: int, index: int) -> str:
    return f"{_PREFIX}.{first + index // _PER_NUMBER}.{1 + index % _PER_NUMBER}"


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks of a run, as descriptors of the process that holds them."""

    by_name: Mapping[str, OwnNetwork]

    def to_text(self) -> str:
        """As text for another process; `chaos.host.join_network` reads it in a rank, without our classes."""
        return json.dumps({name: to_list(own) for name, own in self.by_name.items()})

    @classmethod
    def from_text(cls, text: str) -> Networks:
        """Read what `to_text` wrote."""
        return cls({name: from_list(OwnNetwork, raw) for name, raw in json.loads(text).items()})

    @property
    def coordinator(self) -> OwnNetwork:
        """The coordinator's network."""
        return self.by_name["coordinator"]

    def of_node(self, node: int) -> OwnNetwork:
        """The network of `node`'s supervisor."""
        return self.by_name[f"node-{node}"]

    def of_rank(self, rank: int) -> OwnNetwork:
        """The network of `rank`."""
        return self.by_name[f"rank-{rank}"]

    def of(self, end: int | str) -> OwnNetwork:
        """That of a rank, or of what has the name."""
        return self.of_rank(end) if isinstance(end, int) else self.by_name[end]

    def ends(self) -> tuple[int | str, ...]:
        """What `of` takes: ranks as numbers."""
        prefix = "rank-"
        return tuple(int(name.removeprefix(prefix)) if name.startswith(prefix) else name for name in self.by_name)


@dataclass(frozen=True, slots=True)
class HeldNetworks:
    """The networks of a run and the process whose descriptors they are: as long as it runs, they can be entered."""

    holder: ProcessId
    networks: Networks
