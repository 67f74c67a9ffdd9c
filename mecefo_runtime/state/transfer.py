"""State that moves between ranks before an epoch begins."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import EpochBroken, wait_all
from mecefo_runtime.job.layout import Transfer
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.units import UnitState

# Tags of state messages start here: activations use the lower ones.
STATE_TAG = 1 << 20


class StateCorrupt(RuntimeError):
    """State arrived with another checksum than it was sent with."""


def move_units(
    groups: Groups, state: ModelState, previous: dict[str, UnitState], transfers: Sequence[Transfer]
) -> tuple[float, int]:
    """Carry out this rank's part of `transfers`; returns (seconds, bytes sent and received).

    All messages are under way at once, from and to any number of peers; the checksum travels behind each unit.

    Raises:
        EpochBroken: a peer died meanwhile.
        StateCorrupt: a unit arrived damaged.
    """
    began = time.monotonic()
    moved_bytes = 0
    sending, receiving, kept = [], [], []
    for index, transfer in enumerate(transfers):
        tag = STATE_TAG + 2 * index
        if transfer.source == groups.rank:
            unit = previous.get(transfer.unit) or state.units.get(transfer.unit)
            if unit is None:
                raise EpochBroken(f"asked to send {transfer.unit}, which this rank does not hold")
            checksum = torch.tensor([unit.checksum()], dtype=torch.int64)
            kept.append(checksum)
            sending.append(groups.send(unit.storage, transfer.destination, tag))
            sending.append(groups.send(checksum, transfer.destination, tag + 1))
            moved_bytes += unit.storage.nbytes
        elif transfer.destination == groups.rank:
            unit = state.units[transfer.unit]
            checksum = torch.empty(1, dtype=torch.int64)
            works = (
                groups.start_receive(unit.storage, transfer.source, tag),
                groups.start_receive(checksum, transfer.source, tag + 1),
            )
            receiving.append((unit, checksum, transfer.source, works))
            moved_bytes += unit.storage.nbytes
    for unit, checksum, source, works in receiving:
        wait_all(works)
        if unit.checksum() != int(checksum[0]):
            raise StateCorrupt(f"{unit.unit} arrived damaged from rank {source}")
    wait_all(sending)
    return time.monotonic() - began, moved_bytes
