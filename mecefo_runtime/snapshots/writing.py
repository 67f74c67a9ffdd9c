"""A rank's part in snapshots: its share of each unit, copied to its node's snapshot process while the rank computes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from statistics import median

import torch
from torch import Tensor

from mecefo_runtime.job.share import Share, share_of
from mecefo_runtime.job.snapshot_interval import NO_SNAPSHOT_COSTS, SnapshotCosts
from mecefo_runtime.job.state_source import Version
from mecefo_runtime.snapshots.messages import (
    Keep,
    NotStored,
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
from mecefo_runtime.state.staging import Staging, page_lock
from mecefo_runtime.system.wire import Connection, WireError
from mecefo_runtime.system.wire_messages import to_wire

CONNECT_TIMEOUT_SECONDS = 0.5
# Training waits so long for memory, which takes a second for each gigabyte; then it continues, and is told later.
RESERVE_TIMEOUT_SECONDS = 2.0
# How many steps go by before a process that could not be reached, or had no room, is asked again.
RETRY_STEPS = 10
# What a snapshot costs is the median of so many.
_NUM_RECENT = 7
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
    has_begun: bool = False


class SnapshotWriter(StateActivity):
    """Copies this rank's shares after every `every_steps` steps; all holders of a unit copy a share each.

    One snapshot is under way at a time, and a buffer with the newest version that all ranks have is never written over:
    as long as the last snapshot is not complete everywhere, none is begun, unless a rank says that its is `LOST`.
    `stored_step` is the step of the newest one that this rank's process has whole, 0: none, or `LOST`. Without a
    process, or without room, training continues; `warn` hears why. `announce` hears when some of a snapshot is copied
    and some is not: its step, and `snapshot`. `costs` are what snapshots took lately.
    """

    def __init__(
        self,
        address: str,
        token: str,
        rank: int,
        every_steps: int,
        warn: Callable[[str], None],
        announce: Callable[[int, str], None] = lambda step, phase: None,
    ) -> None:
        self._address = address
        self._token = token
        self._rank = rank
        self.every_steps = every_steps
        self._warn = warn
        self._announce = announce
        self._connection: Connection | None = None
        self._answered = threading.Condition()
        self._reservation: Reserved | Refused | None = None
        self._awaits_memory = False
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
        self._begin_seconds = self._began_seconds = self._stopped_seconds = 0.0
        self._recent: dict[str, deque[float]] = {
            field.name: deque(maxlen=_NUM_RECENT) for field in fields(SnapshotCosts)
        }
        # What the others restore from, until a step is committed. This rank need not have heard that all have it.
        self._restored: Version | None = None
        self.stored_step = 0
        self.costs = NO_SNAPSHOT_COSTS

    def enter(
        self,
        state: ModelState,
        lineage: str,
        ranks: tuple[int, ...],
        processes: Mapping[int, str],
        restored: Version | None = None,
    ) -> None:
        """A new epoch begins with `state`: what is copied of it follows from who holds what.

        `ranks` are its members on this node, `processes` the addresses of all nodes' snapshot processes. The snapshot
        of `restored` others may be reading until a step is committed.
        """
        self._restored = restored
        self._state, self._lineage = state, lineage
        self._ranks, self._processes = ranks, processes
        # Others may have skipped what this rank has begun, and the other way round.
        self._begun_step = self.stored_step = 0
        self._begin_seconds = 0.0

    def begin(self, step: int) -> None:
        """Begin to copy the state after the step before, if it is due."""
        saved = step - 1
        last_seconds, self._begin_seconds = self._begin_seconds, time.monotonic()
        if last_seconds:
            self._measure(step_seconds=self._begin_seconds - last_seconds)
        agreed_step = self._agreed.step if self._agreed is not None and self._agreed.lineage == self._lineage else 0
        if self._memory is None and self._begun_step and step >= self._retry_step and not self._awaits_memory:
            # It is time to ask again, and the others have to begin another one with this rank.
            self.stored_step = LOST
        is_due = saved >= 1 and saved % self.every_steps == 0 and saved > self._begun_step
        if not is_due or agreed_step < self._begun_step or self._restored is not None:
            return
        assert self._state is not None
        self._begun_step, self.stored_step = saved, 0
        copies = self._shares(self._state, step)
        num_bytes = sum(aligned(sum(source.nbytes for source in sources)) for _, _, sources in copies)
        memory = self._room_for(num_bytes, step)
        if memory is None:
            return
        # Never over the version that all ranks have.
        free = (n for n in range(NUM_BUFFERS) if memory.versions[n] is None or memory.versions[n] != self._agreed)
        # Without what it took to get memory, which is done once.
        self._began_seconds, self._stopped_seconds = time.monotonic(), 0.0
        with self._counted():
            self._start(Version(saved, self._lineage), memory, next(free), copies)

    def advance(self) -> None:
        """Copy a slice."""
        if self._writing is not None and not self._begin_copy(self._writing):
            with self._counted():
                self._writing.staging.advance()
            self._tell_if_done()

    def finish(self) -> None:
        """Copy the rest."""
        if self._writing is not None:
            self._begin_copy(self._writing)
            with self._counted():
                self._writing.staging.finish()
            self._tell_if_done()

    def leave(self) -> None:
        """Copy the rest: a snapshot that all ranks have copied is valid, whatever follows."""
        self.finish()

    def agree(self, step: int) -> None:
        """Every rank has a snapshot of `step`, 0: of none; or one has `LOST` its own."""
        if self._restored is not None:
            self._agreed, self._restored = self._restored, None
        version = Version(step, self._lineage)
        if step == LOST:
            self._begun_step = 0
        if step <= 0 or version == self._agreed:
            return
        self._agreed = version
        self._send(Keep(version))

    def close(self) -> None:
        """Close the connection; the snapshots stay."""
        self._hang_up()

    # ---- copying ----

    def _shares(self, state: ModelState, step: int) -> list[tuple[str, Share, tuple[Tensor, ...]]]:
        """(unit, share, what it consists of) of all that this rank has had since before `step`: its part of each."""
        return [
            (name, share_of(self._rank, holders), state.units[name].views(share_of(self._rank, holders)))
            for holders, names in state.units_by_holders(step).items()
            for name in names
        ]

    def _start(
        self,
        version: Version,
        memory: _Memory,
        buffer: int,
        copies: Sequence[tuple[str, Share, tuple[Tensor, ...]]],
    ) -> None:
        content = memory.region.buffer(buffer)
        parts, pairs, first = [], [], 0
        for unit, share, sources in copies:
            end = first
            for source in sources:
                if source.nbytes:
                    place = content[end : end + source.nbytes]
                    pairs.append((source, torch.frombuffer(place, dtype=source.dtype)))
                end += source.nbytes
            parts.append(Part(unit, share, first, end - first))
            first = aligned(end)
        sequence = memory.region.begin(buffer)
        memory.versions[buffer] = version
        self._writing = _Writing(version, memory, buffer, sequence, tuple(parts), Staging(pairs))

    def _begin_copy(self, writing: _Writing) -> bool:
        """Copy the first slice and say so, unless that is done; returns whether it was not."""
        if writing.has_begun:
            return False
        writing.has_begun = True
        with self._counted():
            is_partly_copied = writing.staging.begin()
        if not is_partly_copied:
            return False
        self._announce(writing.version.step, "snapshot")
        return True

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

    # ---- what it costs ----

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Training is stopped meanwhile."""
        began_seconds = time.monotonic()
        yield
        self._stopped_seconds += time.monotonic() - began_seconds

    def _measure(self, **seconds: float) -> None:
        # Steps are measured by the training thread, what is complete by the one that listens.
        with self._answered:
            for name, value in seconds.items():
                self._recent[name].append(value)
            self.costs = SnapshotCosts(**{name: median(values) for name, values in self._recent.items() if values})

    # ---- the snapshot process ----

    def _room_for(self, num_bytes: int, step: int) -> _Memory | None:
        """Buffers of at least so many bytes; None: there are none, and it is not the time to ask again."""
        if self._memory is not None and self._memory.region.num_bytes >= num_bytes and self._connection is not None:
            return self._memory
        if step < self._retry_step or self._awaits_memory:
            return None
        self._memory = None
        reason = self._reserve(num_bytes)
        if reason is None:
            return self._memory
        self._do_without(reason, step)
        return None

    def _do_without(self, reason: str, step: int) -> None:
        self._retry_step = step + RETRY_STEPS
        self._warn(f"no snapshots: {reason}")

    def _reserve(self, num_bytes: int) -> str | None:
        """Ask for memory, and take it if it comes in time; returns why there is none."""
        try:
            if self._connection is None:
                self._connect()
            self._reservation = None
            self._send(Reserve(self._rank, num_bytes))
            with self._answered:
                self._answered.wait_for(lambda: self._reservation is not None, RESERVE_TIMEOUT_SECONDS)
                answer = self._reservation
                self._awaits_memory = answer is None and self._connection is not None
            if answer is None and not self._awaits_memory:
                return "the node's snapshot process is gone"
            return None if answer is None else self._take(answer)
        except OSError as error:
            return f"the node's snapshot process cannot be reached: {error.strerror or error}"

    def _take(self, answer: Reserved | Refused) -> str | None:
        """Take the memory that is offered; returns why it is not.

        Raises:
            OSError: who has offered it is gone.
        """
        if isinstance(answer, Refused):
            return answer.reason
        region = Region.attach(answer.pid, answer.descriptor, answer.num_bytes)
        assert self._state is not None
        device = self._state.device
        if device.type == "cuda" and not page_lock(region.memory, region, device):
            self._warn("snapshots stop training: their memory cannot be page-locked for the GPU")
        self._memory = _Memory(answer.region, region, [None] * NUM_BUFFERS)
        return None

    def _take_late(self, answer: Reserved | Refused) -> None:
        """Training has not waited for it: all begin another snapshot, with this rank."""
        try:
            reason = self._take(answer)
        except OSError:
            self._hang_up()
            return
        if reason is None:
            self.stored_step = LOST
        else:
            self._do_without(reason, self._begun_step)

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
        self._memory, self._awaits_memory, self.stored_step = None, False, LOST
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
                        complete_seconds = time.monotonic() - self._began_seconds
                        self._measure(stopped_seconds=self._stopped_seconds, complete_seconds=complete_seconds)
                        self.stored_step = version.step
                        if unprotected is not None and unprotected != self._unprotected:
                            self._warn(f"snapshots are not protected against the loss of this node: {unprotected}")
                        self._unprotected = unprotected
                case NotStored(version, reason):
                    self._warn(f"the snapshot of step {version.step} is not kept: {reason}")
                    # The next one is written to other memory, and begun by all.
                    self._memory = None
                    if version == Version(self._begun_step, self._lineage):
                        self.stored_step = LOST
                case Reserved() | Refused():
                    with self._answered:
                        is_late, self._awaits_memory = self._awaits_memory, False
                        self._reservation = message
                        self._answered.notify_all()
                    if is_late:
                        self._take_late(message)
