"""The shared memory of a rank becomes full: /dev/shm, through which DataLoader workers hand their batches over.

The fault's file takes the free space, also what other processes free later, until the fault ends. Only a tmpfs is
filled, and only while enough memory remains for the machine. A /dev/shm that `chaos` has too is shared with all
processes here: it is filled up to a size that the user names, and some space stays free.
"""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, InjectionError, TargetNotFound
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, Fault, FaultContext, Fidelity, OwnedProcess
from chaos.faults.process._processes import require_here
from chaos.host import memory_limit, shared_memory
from chaos.host.undo_record import UndoRecord
from chaos.language.quantities import BytesText
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

# What stays free of a shared memory that all on the machine use.
LEAVE_SHARED_BYTES = 16 * 2**20
# Memory that must remain, on the machine and in the control group of this process, when the file has its full size.
SPARE_BYTES = 2**30
# Shorter than a batch takes to be written; the check itself must not load the machine.
_FILL_SECONDS = 0.01
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FillShmParameters(BaseModel):
    """How much is taken, and how much is left."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: BytesText | None = Field(
        default=None, description="at most this much is taken; needed where /dev/shm is shared with the whole machine"
    )
    leave: BytesText | None = Field(
        default=None, description="so much stays free; default: nothing, 16MiB where /dev/shm is shared"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FullShmRecord(ProcessesRecord):
    """The ranks' processes, and the file in each shared memory that they have."""

    files: tuple[shared_memory.RoomFile, ...] = ()


@dataclass(slots=True)
class _Place:
    """One shared memory: whose it is, its folder as long as the fault lasts, and how far it is filled."""

    ranks: tuple[int, ...]
    folder: int
    file: shared_memory.RoomFile
    limit_bytes: int
    leave_bytes: int
    free_before_bytes: int
    taken_bytes: int = 0

    def fill(self) -> None:
        self.taken_bytes = shared_memory.grow(
            self.folder, self.file.name, limit_bytes=self.limit_bytes, leave_bytes=self.leave_bytes
        )


class FillShm(Fault[FillShmParameters]):
    """Fills /dev/shm of a rank, through which DataLoader workers and NCCL share memory."""

    kind: ClassVar[str] = "fill-shm"
    brief: ClassVar[str] = "fill /dev/shm"
    scope: ClassVar[Scope] = "rank"
    fidelity: ClassVar[Fidelity] = "real"
    undo_summary: ClassVar[str] = "the file that takes the room is removed"
    has_lifetime: ClassVar[bool] = True
    exclusive: ClassVar[str | None] = "how full /dev/shm is"
    Record: ClassVar[type[UndoRecord]] = FullShmRecord
    Parameters: ClassVar[type[BaseModel]] = FillShmParameters

    def __init__(self, parameters: FillShmParameters) -> None:
        super().__init__(parameters)
        self._places: list[_Place] = []
        self._is_lifted = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None

    def outlives_processes(self, act: Act) -> bool:
        """A file in memory does."""
        return True

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Find the mounts of the ranks, and check that enough memory remains when they are full."""
        found = context.processes.rank_processes(target.ranks)
        require_here(found)
        running = tuple(owned for owned in found if owned.process.is_running())
        if not running:
            raise TargetNotFound(Reason("no_running_rank", target=target))
        rooms: dict[int, tuple[shared_memory.Room, list[int]]] = {}
        for owned in running:
            room = _look(owned)
            rooms.setdefault(room.device, (room, []))[1].append(owned.rank or 0)
        needed_bytes = sum(self._planned(room, ranks)[0] for room, ranks in rooms.values())
        _refuse_last_memory(needed_bytes)
        files = tuple(
            shared_memory.RoomFile(device=device, name=f"{shared_memory.NAME_PREFIX}{uuid.uuid4().hex[:12]}")
            for device in rooms
        )
        return Act(running, FullShmRecord.of(running, files=files).to_json())

    def _planned(self, room: shared_memory.Room, ranks: list[int]) -> tuple[int, int]:
        """The limits of one shared memory: (the most bytes that are taken, the bytes that stay free).

        Raises:
            InjectionError: it is shared and the size is missing, or nothing can be taken.
        """
        names = ", ".join(map(str, ranks))
        is_shared = room.device == shared_memory.own_device()
        if is_shared and self.parameters.size is None:
            raise InjectionError(Reason("shm_is_shared", ranks=names, free_mib=room.free_bytes >> 20))
        leave_bytes = self.parameters.leave or (LEAVE_SHARED_BYTES if is_shared else 0)
        limit_bytes = room.total_bytes - leave_bytes
        if self.parameters.size is not None:
            limit_bytes = min(limit_bytes, self.parameters.size)
        if min(limit_bytes, room.free_bytes - leave_bytes) < _PAGE_BYTES:
            raise InjectionError(
                Reason("shm_no_room", ranks=names, free_mib=room.free_bytes >> 20, leave_mib=leave_bytes >> 20)
            )
        return limit_bytes, leave_bytes

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Create the files and fill them; from now on they take what is freed."""
        record = FullShmRecord.from_json(act.undo_record)
        try:
            for file in record.files:
                self._places.append(self._opened(file, act.processes))
            for place in self._places:
                shared_memory.create(place.folder, place.file.name)
                await asyncio.to_thread(place.fill)
        except OSError as error:
            raise InjectionError(Reason("shm_not_filled", error=error.strerror)) from error
        self._filling = asyncio.create_task(self._keep_full())

    def _opened(self, file: shared_memory.RoomFile, processes: tuple[OwnedProcess, ...]) -> _Place:
        ranks: list[int] = []
        folder: int | None = None
        for owned in processes:
            with shared_memory.opened(owned.process) as here:
                if os.fstat(here).st_dev != file.device:
                    continue
                ranks.append(owned.rank or 0)
                if folder is None:
                    folder = os.dup(here)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "another /dev/shm is mounted now")
        room = shared_memory.room_of(folder)
        limit_bytes, leave_bytes = self._planned(room, ranks)
        return _Place(tuple(ranks), folder, file, limit_bytes, leave_bytes, room.free_bytes)

    async def _keep_full(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_lifted.wait(), _FILL_SECONDS)
            if self._is_lifted.is_set():
                return
            for place in self._places:
                # Undone by the watchdog, while this process stood still.
                with suppress(OSError):
                    place.fill()

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Every shared memory has no more room than asked; with no room, a write of one byte fails with ENOSPC."""
        if not self._places:
            raise EffectNotSeen(Reason("shm_not_full", outcome="nothing was written"))
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        found = []
        for place in self._places:
            while True:
                try:
                    evidence, why = _seen(place)
                except FileNotFoundError:
                    path = f"{shared_memory.FOLDER}/{place.file.name}"
                    raise EffectNotSeen(Reason("undone_before_seen", path=path)) from None
                if why is None:
                    found.append(evidence)
                    break
                if asyncio.get_running_loop().time() > deadline:
                    raise EffectNotSeen(Reason("shm_not_full", outcome=why))
                await asyncio.sleep(_FILL_SECONDS)
        return {"summary": "; ".join(_sentence(one) for one in found), "places": found}

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Take no more; the record removes what was taken."""
        self._is_lifted.set()
        if self._filling is not None:
            await self._filling
        for place in self._places:
            os.close(place.folder)
        self._places.clear()

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the files, wherever their mount can still be reached."""
        known = FullShmRecord.from_json(record)
        outcomes = [shared_memory.remove(file, known.ids) for file in known.files]
        return {"undone": "the file that took the room is gone", "files": outcomes}


def _look(owned: OwnedProcess) -> shared_memory.Room:
    try:
        with shared_memory.opened(owned.process) as folder:
            if not shared_memory.is_in_memory(folder):
                raise InjectionError(Reason("shm_no_tmpfs", rank=owned.rank))
            return shared_memory.room_of(folder)
    except OSError as error:
        raise InjectionError(Reason("shm_unreachable", rank=owned.rank, error=error.strerror)) from error


def _refuse_last_memory(needed_bytes: int) -> None:
    """Compare with the free memory of the machine, and of this process's control group, which the file counts in.

    Raises:
        InjectionError: there is not enough of it.
    """
    groups = memory_limit.room_bytes(ProcessId.of(os.getpid())).values()
    free_bytes = min([memory_limit.available_bytes(), *groups])
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise InjectionError(
            Reason(
                "shm_too_little_memory",
                free_mib=max(0, free_bytes) >> 20,
                needed_mib=(needed_bytes + SPARE_BYTES) >> 20,
            )
        )


def _seen(place: _Place) -> tuple[dict[str, Any], str | None]:
    """The figures now, and the reason why they are not the effect; None if they are."""
    status = os.stat(place.file.name, dir_fd=place.folder, follow_symlinks=False)
    room = shared_memory.room_of(place.folder)
    taken_bytes = status.st_blocks * 512
    evidence: dict[str, Any] = {
        "ranks": list(place.ranks),
        "total_bytes": room.total_bytes,
        "free_before_bytes": place.free_before_bytes,
        "free_bytes": room.free_bytes,
        "taken_bytes": taken_bytes,
        "is_shared": room.device == shared_memory.own_device(),
        "write": None,
    }
    if room.free_bytes >= place.leave_bytes + _PAGE_BYTES:
        # Else all that was to be taken is taken, whatever stays free.
        is_short = taken_bytes <= place.limit_bytes - _PAGE_BYTES
        return evidence, f"{room.free_bytes} bytes are free" if is_short else None
    if place.leave_bytes:
        return evidence, None
    refusal = shared_memory.refusal(place.folder, f"{place.file.name}-probe")
    evidence["write"] = None if refusal is None else errno.errorcode.get(refusal, str(refusal))
    return evidence, None if refusal == errno.ENOSPC else "a write of 1 byte succeeds"


def _sentence(seen: Mapping[str, Any]) -> str:
    names = ", ".join(map(str, seen["ranks"]))
    write = f", and a write of 1 byte fails with {seen['write']}" if seen["write"] else ""
    return (
        f"/dev/shm of rank{'s' if len(seen['ranks']) > 1 else ''} {names}: {seen['taken_bytes'] / 2**20:.1f} of "
        f"{seen['total_bytes'] / 2**20:.1f} MiB taken, {seen['free_bytes'] / 2**20:.1f} MiB free{write}"
    )
