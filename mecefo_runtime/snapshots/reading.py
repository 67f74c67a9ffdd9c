"""State out of snapshot processes, into the memory of a rank that restores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import torch

from mecefo_runtime.job.state_source import ParitySource, Piece, SnapshotSource, Version
from mecefo_runtime.snapshots.messages import Fetch
from mecefo_runtime.snapshots.peer import SnapshotPeer
from mecefo_runtime.state.stored import StoredStateRefused
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.devices import host_bytes


def fetch_pieces(
    pieces: Iterable[Piece], version: Version, units: Mapping[str, UnitState], token: str
) -> tuple[float, int]:
    """Get what of `pieces` lies in snapshots of `version` into `units`; returns (seconds, bytes fetched).

    Raises:
        StoredStateRefused: a process is gone, or what it has is damaged.
    """
    began = time.monotonic()
    num_bytes = 0
    by_source: dict[SnapshotSource | ParitySource, list[Piece]] = {}
    for piece in pieces:
        if isinstance(piece.source, SnapshotSource | ParitySource):
            by_source.setdefault(piece.source, []).append(piece)
    for source, wanted in by_source.items():
        num_bytes += _fetch(source, version, wanted, units, token)
    return time.monotonic() - began, num_bytes


def _fetch(
    source: SnapshotSource | ParitySource,
    version: Version,
    pieces: Iterable[Piece],
    units: Mapping[str, UnitState],
    token: str,
) -> int:
    num_bytes = 0
    reason = None
    try:
        with SnapshotPeer(source.address, token) as peer:
            for piece in pieces:
                unit = units[piece.unit]
                content = torch.empty(unit.num_elements(piece.share), dtype=unit.storage.dtype)
                peer.read_into(host_bytes(content).cast("B"), Fetch(version, piece.unit, piece.share))
                unit.load(piece.share, content)
                num_bytes += content.nbytes
    except OSError as error:
        reason = str(error) or type(error).__name__
    # Outside the except block: a traceback would keep what it refers to alive.
    if reason is not None:
        raise StoredStateRefused(source, f"node {source.node}'s snapshots: {reason}")
    return num_bytes
