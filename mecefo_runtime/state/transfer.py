"""Moves state between ranks: any number of units at once, with their checksums computed in parallel."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import EpochBroken, Operation, wait_all
from mecefo_runtime.job.layout import Transfer
from mecefo_runtime.job.share import WHOLE, Share
from mecefo_runtime.job.state_source import PeerSource, Piece
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.devices import host_bytes

# Tags of state messages start here: activations use the lower ones.
STATE_TAG = 1 << 20
# One thread computes a CRC-32 at some 1.4 GB/s, without Python's lock: a few keep up with a fast network.
MAX_CHECKSUM_THREADS = 4


class StateCorrupt(EpochBroken):
    """Units arrived with another checksum than they were sent with; `damaged` says which, and who sent them."""

    def __init__(self, damaged: Sequence[Transfer]) -> None:
        units = ", ".join(f"{transfer.unit} from rank {transfer.source}" for transfer in damaged)
        super().__init__(f"state arrived damaged: {units}")
        self.damaged = tuple(damaged)


class UnitTransfers:
    """One rank's part of some transfers, which all ranks number alike; messages have the tags from `first_tag` on.

    A unit's checksum travels behind it, with the time at which it is due on a link of known speed. What is sent, and
    what is received, must not be touched until `finish`.
    """

    def __init__(self, groups: Groups, first_tag: int, traffic: Traffic = FREE) -> None:
        self._groups = groups
        self._traffic = traffic
        self._first_tag = first_tag
        self._threads: ThreadPoolExecutor | None = None
        # What is sent and received has to live as long: of a share it is a tensor of its own.
        self._sending: list[tuple[Transfer, int, float, Operation, Tensor, Future[int]]] = []
        self._receiving: list[tuple[Transfer, UnitState, Tensor, Tensor, tuple[Operation, Operation]]] = []

    def send(self, number: int, transfer: Transfer, unit: UnitState) -> None:
        """Start sending its share of `unit`; computing its checksum starts too."""
        tag = self._first_tag + 2 * number
        content = unit.packed(transfer.share)
        due_seconds = self._traffic.post_state(transfer.unit, content.nbytes, transfer.destination, transfer.share.of)
        work = self._groups.send(content, transfer.destination, tag)
        self._sending.append((transfer, tag + 1, due_seconds, work, content, self._start_checksum(content)))

    def receive(self, number: int, transfer: Transfer, unit: UnitState) -> None:
        """Start receiving into `unit`."""
        tag = self._first_tag + 2 * number
        checksum = torch.empty(2, dtype=torch.int64)
        content = unit.storage
        if not transfer.share == unit.share == WHOLE:
            content = unit.storage.new_empty(unit.num_elements(transfer.share))
        works = (
            self._groups.start_receive(content, transfer.source, tag),
            self._groups.start_receive(checksum, transfer.source, tag + 1),
        )
        self._receiving.append((transfer, unit, content, checksum, works))

    def finish(self) -> tuple[tuple[str, ...], tuple[Transfer, ...]]:
        """Wait for all that was started; returns (the units that arrived whole, what arrived damaged).

        Raises:
            EpochBroken: a peer died meanwhile.
        """
        try:
            return self._finish()
        finally:
            self._sending.clear()
            self._receiving.clear()
            if self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None

    def _finish(self) -> tuple[tuple[str, ...], tuple[Transfer, ...]]:
        works: list[Operation] = []
        # They have to live until they are sent.
        checksums = [
            torch.tensor([checksum.result(), round(due_seconds * 1e9)], dtype=torch.int64)
            for _, _, due_seconds, _, _, checksum in self._sending
        ]
        for (transfer, tag, _, work, _, _), checksum in zip(self._sending, checksums, strict=True):
            works += [self._groups.send(checksum, transfer.destination, tag), work]
        arrived: list[Future[int]] = []
        until_seconds = 0.0
        for transfer, _, content, checksum, unit_works in self._receiving:
            wait_all(unit_works)
            arrived.append(self._start_checksum(content))
            due_seconds, moved = int(checksum[1]) / 1e9, (content.nbytes, transfer.source, transfer.share.of)
            here_seconds = self._traffic.state_arrives(transfer.unit, *moved, due_seconds)
            until_seconds = max(until_seconds, here_seconds)
        wait_all(works)
        self._traffic.wait(self._groups, until_seconds)
        whole, damaged = [], []
        for (transfer, unit, content, expected, _), actual in zip(self._receiving, arrived, strict=True):
            if actual.result() != int(expected[0]):
                damaged.append(transfer)
                continue
            if content is not unit.storage:
                unit.load(transfer.share, content)
            whole.append(transfer.unit)
        return tuple(whole), tuple(damaged)

    def _start_checksum(self, content: Tensor) -> Future[int]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(MAX_CHECKSUM_THREADS, os.cpu_count() or 1), "checksum")
        return self._threads.submit(lambda: zlib.crc32(host_bytes(content)))


def move_units(
    groups: Groups,
    units: Mapping[str, UnitState],
    previous: Mapping[tuple[str, Share], UnitState],
    transfers: Sequence[Transfer],
    traffic: Traffic = FREE,
) -> tuple[float, int]:
    """Carry out this rank's part of `transfers`; returns (seconds, bytes sent and received).

    What comes is received into `units`, what goes is taken from `previous` first. All messages are under way at once,
    from and to any number of peers.

    Raises:
        EpochBroken: a peer died meanwhile.
        StateCorrupt: units arrived damaged.
    """
    began = time.monotonic()
    moved_bytes = 0
    moving = UnitTransfers(groups, STATE_TAG, traffic)
    for number, transfer in enumerate(transfers):
        if transfer.source == groups.rank:
            unit = previous.get((transfer.unit, transfer.share)) or units.get(transfer.unit)
            if unit is None or unit.share != transfer.share:
                raise EpochBroken(f"asked to send {transfer.unit}, which this rank does not hold")
            moving.send(number, transfer, unit)
        elif transfer.destination == groups.rank:
            unit = units[transfer.unit]
            moving.receive(number, transfer, unit)
        else:
            continue
        num_bytes = unit.num_elements(transfer.share) * unit.storage.element_size()
        moved_bytes += traffic.moved_bytes(transfer.unit, num_bytes, transfer.share.of)
    _, damaged = moving.finish()
    if damaged:
        raise StateCorrupt(damaged)
    return time.monotonic() - began, moved_bytes


def keep_own(
    rank: int,
    pieces: Iterable[Piece],
    units: Mapping[str, UnitState],
    previous: Mapping[tuple[str, Share], UnitState],
) -> None:
    """Copy those of `pieces` whose source is this rank itself from `previous` into `units`."""
    for piece in pieces:
        if piece.source == PeerSource(rank):
            units[piece.unit].load(piece.share, previous[piece.unit, piece.share].packed(piece.share))
