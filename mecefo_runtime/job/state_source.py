"""Where a rank's state comes from: the version, the pieces, and for each piece the source.

State is lost in ways that leave different copies behind: a data-parallel peer, a snapshot in a node's memory, parity of
such snapshots, a durable checkpoint. Each copy is an `Offer`: some shares of some units, at one version.
`choose_version` takes the newest at which every unit can be put together, and for each piece the cheapest source.
Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from mecefo_runtime.job.layout import Layout, Transfer
from mecefo_runtime.job.share import WHOLE as WHOLE
from mecefo_runtime.job.share import Share as Share


@dataclass(frozen=True, slots=True)
class Version:
    """The state after `step`, in the course of training `lineage`."""

    step: int
    lineage: str = ""


NOTHING_HELD: Mapping[int, Iterable[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PeerSource:
    """A living rank, which sends what it holds."""

    rank: int


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """The snapshot process of `node`, which gives what its ranks have copied to its memory at `address`."""

    node: int
    address: str


@dataclass(frozen=True, slots=True)
class ParitySource:
    """The snapshot process of `node`, which rebuilds what `lost_node` had from the parity of their group."""

    node: int
    address: str
    lost_node: int


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """A durable checkpoint, which the rank itself reads from `folder`."""

    folder: str


Source = PeerSource | SnapshotSource | ParitySource | CheckpointSource
# The cheapest first: as it is, computed, from the disk.
_BY_COST: tuple[type[Source], ...] = (PeerSource, SnapshotSource, ParitySource, CheckpointSource)
SourceKind = Literal["peer", "snapshot", "parity", "checkpoint"]
# In the same order.
SOURCE_KINDS: tuple[SourceKind, ...] = ("peer", "snapshot", "parity", "checkpoint")


def kind_of(source: Source) -> SourceKind:
    """The name of `source` in a log."""
    return SOURCE_KINDS[_BY_COST.index(type(source))]


@dataclass(frozen=True, slots=True)
class Piece:
    """`share` of `unit` goes from `source` to the rank `destination`."""

    unit: str
    source: Source
    destination: int
    share: Share = WHOLE


@dataclass(frozen=True, slots=True)
class Offer:
    """The shares of each unit that `source` has at `version`."""

    version: Version
    source: Source
    shares: Mapping[str, frozenset[Share]]

    @classmethod
    def whole(cls, version: Version, source: Source, units: Iterable[str]) -> Offer:
        """An offer of these units in full."""
        return cls(version, source, dict.fromkeys(units, frozenset({WHOLE})))


@dataclass(frozen=True, slots=True)
class Choice:
    """`version` is what a job continues with, `pieces` are what its ranks lack of it."""

    version: Version
    pieces: tuple[Piece, ...] = ()


def choose_version(
    layout: Layout,
    offers: Sequence[Offer],
    present: Version | None = None,
    held: Mapping[int, Iterable[str]] = NOTHING_HELD,
) -> Choice | None:
    """The newest version at which every unit that `layout` needs can be put together; None: there is none.

    Of the version `present` ranks have `held` already. A rank that rolls back to another version holds nothing of it.
    """
    versions = {offer.version for offer in offers} | ({present} if present is not None else set())
    for version in sorted(versions, key=lambda v: (v.step, v == present, v.lineage), reverse=True):
        at_version = [offer for offer in offers if offer.version == version]
        pieces, missing = plan_pieces(layout, at_version, held if version == present else NOTHING_HELD)
        if not missing:
            return Choice(version, pieces)
    return None


def plan_pieces(
    layout: Layout, offers: Sequence[Offer], held: Mapping[int, Iterable[str]]
) -> tuple[tuple[Piece, ...], tuple[str, ...]]:
    """What must move before `layout` can run, where ranks have `held` already; `offers` are of one version.

    Sources take turns, so that none gives much more than another; a rank is its own source of what it offers itself.
    Returns (pieces, units that cannot be put together).
    """
    load = {offer.source: 0 for offer in offers}
    pieces: list[Piece] = []
    missing: set[str] = set()
    for rank in sorted(layout.ranks()):
        own = PeerSource(rank)
        has = frozenset(held.get(rank, ()))
        for unit in layout.units(rank):
            if unit in has:
                continue
            shares = _shares_of(unit, offers)
            if not shares:
                missing.add(unit)
            for share, sources in shares.items():
                source = own if own in sources else min(sources, key=load.__getitem__)
                load[source] += source != own
                pieces.append(Piece(unit, source, rank, share))
    return tuple(pieces), tuple(sorted(missing))


def _shares_of(unit: str, offers: Sequence[Offer]) -> dict[Share, tuple[Source, ...]]:
    """The shares that make up `unit`, each with its sources of the cheapest kind; empty when one is missing.

    Only shares of one size are put together: where several sizes cover the unit, those with the cheapest sources, then
    the fewest.
    """
    offered: dict[Share, list[Source]] = {}
    for offer in offers:
        for share in offer.shares.get(unit, ()):
            offered.setdefault(share, []).append(offer.source)
    complete = []
    for size in {share.of for share in offered}:
        shares = [Share(index, size) for index in range(size)]
        if all(share in offered for share in shares):
            complete.append({share: _cheapest(offered[share]) for share in shares})
    return min(complete, key=_cost, default={})


def _cheapest(sources: Sequence[Source]) -> tuple[Source, ...]:
    least = min(_BY_COST.index(type(source)) for source in sources)
    return tuple(source for source in sources if type(source) is _BY_COST[least])


def _cost(shares: Mapping[Share, Sequence[Source]]) -> tuple[int, int]:
    return max(_BY_COST.index(type(sources[0])) for sources in shares.values()), len(shares)


def transfers(pieces: Iterable[Piece]) -> tuple[Transfer, ...]:
    """Those of `pieces` that one rank sends another."""
    return tuple(
        Transfer(piece.unit, piece.source.rank, piece.destination, piece.share)
        for piece in pieces
        if isinstance(piece.source, PeerSource) and piece.source.rank != piece.destination
    )
