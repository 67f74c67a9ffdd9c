"""A rank's part in snapshots: its share of each unit, copied to its node's snapshot process while the rank computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.messages import (
    Keep,
    Part,
    Refused,
    Reserve,
    Reserved,
    Store,
    Stored,
    from_snapshots,
)
from mecefo_runtime.snapshots.peer import open_connection
from mecefo_runtime.snapshots.region import NUM_BUFFERS, Region, aligned
from mecefo_runtime.state.activity import StateActivity
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.staging import Staging
from mecefo_runtime.system.wire import Connection, WireError
from mecefo_runtime.system.wire_messages import to_wire

CONNECT_TIMEOUT_SECONDS = 0.5
RESERVE_TIMEOUT_SECONDS = 10.0
# How many steps go by before a process that could not be reached, or had no room, is asked again.
RETRY_STEPS = 10
# In place of the step of its newest snapshot: this rank's is lost, or could not be begun, and all begin another one.
LOST = -1


@dataclass(slots=True)
class _Memory:
    """The buffers that this rank writes to, and the version that was last begun in each."""

    number: int
    region: Region
    versions: list[Version | None]


@dataclass(slots=True)
class _Writing:
    """A snapshot under way."""

    version: Version
    memory: _Memory
    buffer: int
    sequence: int
    parts: tuple[Part, ...]
    staging: Staging


class SnapshotWriter(StateActivity):
    """Copies this rank's shares after every `every_steps` steps; all holders of a unit copy a share each.

    One snapshot is under way at a time, and a buffer with the newest version that all ranks have is never written over:
    as long as the last snapshot is not complete everywhere, none is begun, unless a rank says that its is `LOST`.
    `stored_step` is the step of the newest one that this rank's process has whole, 0: none, or `LOST`. Without a
    process, or without room, training goes on; `warn` hears why.
    """

    def __init__(self, address: str, token: str, rank: int, every_steps: int, warn: Callable[[str], None]) -> None:
        self._address = address
        self._token = token
        self._rank = rank
        self._every_steps = every_steps
        self._warn = warn
        self._connection: Connection | None = None
        self._answered = threading.Condition()
        self._reservation: Reserved | Refused | None = None
        self._memory: _Memory | None = None
        self._writing: _Writing | None = None
        self._state: ModelState | None = None
        self._lineage = ""
        self._ranks: tuple[int, ...] = (rank,)
        self._processes: Mapping[int, str] = {}
        self._unprotected: str | None = None
        self._begun_step = 0
        self._retry_step = 0
        self._agreed: Version | None = None
        self.stored_step = 0

    def enter(self, state: ModelState, lineage: str, ranks: tuple[int, ...], processes: Mapping[int, str]) -> None:
        """A new epoch begins with `state`: what is copied of it follows from who holds what.

        `ranks` are its members on this node, `processes` the addresses of all nodes' snapshot processes.
        """
        self._state, self._lineage = state, lineage
        self._ranks, self._processes = ranks, processes
        # Others may have skipped what this rank has begun, and the other way round.
        self._begun_step = self.stored_step = 0

    def begin(self, step: int) -> None:
        """Begin to copy the state after the step before, if it is due."""
        saved = step - 1
        agreed_step = self._agreed.step if self._agreed is not None and self._agreed.lineage == self._lineage else 0
        if self._memory is None and self._begun_step and step >= self._retry_step:
            # It is time to ask again, and the others have to begin another one with this rank.
            self.stored_step = LOST
        if saved < 1 or saved % self._every_steps or saved <= self._begun_step or agreed_step < self._begun_step:
            return
        assert self._state is not None
        self._begun_step, self.stored_step = saved, 0
        copies = self._shares(self._state, step)
        num_bytes = sum(aligned(source.nbytes) for _, _, source in copies)
        memory = self._room_for(num_bytes, step)
        if memory is None:
            return
        # Never over the version that all ranks have.
        free = (n for n in range(NUM_BUFFERS) if memory.versions[n] is None or memory.versions[n] != self._agreed)
        self._start(Version(saved, self._lineage), memory, next(free), copies)

    def advance(self) -> None:
        """Copy a slice."""
        if self._writing is not None:
            self._writing.staging.advance()
            self._tell_if_done()

    def finish(self) -> None:
        """Copy the rest."""
        if self._writing is not None:
            self._writing.staging.finish()
            self._tell_if_done()

    def leave(self) -> None:
        """Copy the rest: what all of them have copied counts, whatever follows."""
        self.finish()

    def agree(self, step: int) -> None:
        """Every rank has a snapshot of `step`, 0: of none; or one has `LOST` its own."""
        version = Version(step, self._lineage)
        if step == LOST:
            self._begun_step = 0
        if step <= 0 or version == self._agreed:
            return
        self._agreed = version
        self._send(Keep(version))

    def close(self) -> None:
        """Hang up; the snapshots stay."""
        self._hang_up()

    # ---- copying ----

    def _shares(self, state: ModelState, step: int) -> list[tuple[str, Share, Tensor]]:
        """(unit, share, its elements) of all that this rank has had since before `step`: of each unit its part."""
        found = []
        for holders, names in state.units_by_holders(step).items():
            share = Share(holders.index(self._rank), len(holders))
            for name in names:
                storage = state.units[name].storage
                first, end = share.extent(storage.numel())
                found.append((name, share, storage[first:end]))
        return found

    def _start(
        self, version: Version, memory: _Memory, buffer: int, copies: Sequence[tuple[str, Share, Tensor]]
    ) -> None:
        content = memory.region.buffer(buffer)
        parts, pairs, first = [], [], 0
        for unit, share, source in copies:
            parts.append(Part(unit, share, first, source.nbytes))
            if source.nbytes:
                place = content[first : first + source.nbytes]
                pairs.append((source, torch.frombuffer(place, dtype=source.dtype)))
            first = aligned(first + source.nbytes)
        sequence = memory.region.begin(buffer)
        memory.versions[buffer] = version
        self._writing = _Writing(version, memory, buffer, sequence, tuple(parts), Staging(pairs))

    def _tell_if_done(self) -> None:
        writing = self._writing
        if writing is not None and writing.staging.is_done:
            self._writing = None
            self._send(
                Store(
                    region=writing.memory.number,
                    buffer=writing.buffer,
                    sequence=writing.sequence,
                    version=writing.version,
                    parts=writing.parts,
                    ranks=self._ranks,
                    processes=self._processes,
                )
            )

    # ---- the snapshot process ----

    def _room_for(self, num_bytes: int, step: int) -> _Memory | None:
        """Buffers of at least so many bytes; None: there are none, and it is not the time to ask again."""
        if self._memory is not None and self._memory.region.num_bytes >= num_bytes and self._connection is not None:
            return self._memory
        if step < self._retry_step:
            return None
        reason = self._reserve(num_bytes)
        if reason is None:
            return self._memory
        self._memory = None
        self._retry_step = step + RETRY_STEPS
        self._warn(f"no snapshots: {reason}")
        return None

    def _reserve(self, num_bytes: int) -> str | None:
        """Ask for memory; returns why there is none."""
        try:
            if self._connection is None:
                self._connect()
            self._reservation = None
            self._send(Reserve(self._rank, num_bytes))
            with self._answered:
                self._answered.wait_for(lambda: self._reservation is not None, RESERVE_TIMEOUT_SECONDS)
            answer = self._reservation
            if isinstance(answer, Reserved):
                region = Region.attach(answer.pid, answer.descriptor, answer.num_bytes)
                self._memory = _Memory(answer.region, region, [None] * NUM_BUFFERS)
                return None
        except OSError as error:
            return f"the node's snapshot process cannot be reached: {error.strerror or error}"
        return answer.reason if isinstance(answer, Refused) else "the node's snapshot process does not answer"

    def _connect(self) -> None:
        connection = open_connection(self._address, self._token, CONNECT_TIMEOUT_SECONDS)
        connection.set_timeout(None)
        self._connection = connection
        threading.Thread(target=self._listen, args=(connection,), name="snapshots", daemon=True).start()

    def _send(self, message: Reserve | Store | Keep) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.send(to_wire(message))
        except OSError:
            self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        # What it had is gone with it, or will be found by those who restore.
        self._memory, self.stored_step = None, LOST
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def _listen(self, connection: Connection) -> None:
        while True:
            try:
                message = from_snapshots(connection.receive())
            except WireError:
                if connection is self._connection:
                    self._hang_up()
                return
            match message:
                case Stored(version, unprotected):
                    # One from before this epoch may lack what only lost ranks had.
                    if version == Version(self._begun_step, self._lineage):
                        self.stored_step = version.step
                        if unprotected is not None and unprotected != self._unprotected:
                            self._warn(f"snapshots are not protected against the loss of this node: {unprotected}")
                        self._unprotected = unprotected
                case Reserved() | Refused():
                    with self._answered:
                        self._reservation = message
                        self._answered.notify_all()
