"""Looks at the checkpoints that a command saved, when all ranks of an attempt have ended and when the job has."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.checkpoints.findings import ELSEWHERE, TOO_MANY_BYTES, VALUES_NOT_READ
from harness.checkpoints.finite import Python, look
from harness.checkpoints.look import Health, look_at, pass_by, with_values
from harness.checkpoints.pointers import read_pointers
from harness.checkpoints.saves import Located, SeenSaves, locate
from harness.checkpoints.whole import Budget
from mecefo_runtime.system.command_records import CheckpointChecked, CheckpointPointed
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import JobStarted, ProcessExited, ProcessStarted
from mecefo_runtime.system.record import Record

# The limits at the end of the job; the newest checkpoint is read first.
MAX_BYTES = 1 << 30
MAX_SECONDS = 20.0
MAX_CHECKPOINTS = 64
# When an attempt has ended, the next one is about to begin.
MAX_BYTES_BETWEEN = 256 << 20
MAX_CHECKPOINTS_BETWEEN = 2


@dataclass(frozen=True, slots=True)
class _Looked:
    located: Located
    health: Health


class CheckpointChecks:
    """Fed with the records of the main job; its reports go to `emitter`.

    It reads in a separate thread, while the run continues.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._saves = SeenSaves()
        self._ranks: set[int] = set()
        self._python: Python | None = None
        self._began_unix_seconds = 0.0
        self._looks: set[asyncio.Task[None]] = set()
        self._at_end: Sequence[_Looked] | None = None
        self._is_closed = False

    def feed(self, record: Record) -> None:
        """Take up a record."""
        self._saves.feed(record)
        if isinstance(record, JobStarted):
            self._began_unix_seconds = record.time_seconds
        elif isinstance(record, ProcessStarted) and record.role == "rank" and record.started_pid is not None:
            self._ranks.add(record.started_pid)
            if self._python is None:
                self._python = Python.of_process(record.started_pid)
        elif isinstance(record, ProcessExited) and record.role == "rank" and record.exited_pid in self._ranks:
            self._ranks.discard(record.exited_pid)
            if not self._ranks and self._saves.newest_first:
                self._look_between(record.rank_attempt)

    def _look_between(self, attempt: int | None) -> None:
        task = asyncio.get_running_loop().create_task(self._report_between(self._copied(), attempt))
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _report_between(self, saves: SeenSaves, attempt: int | None) -> None:
        looked = await asyncio.to_thread(
            _look, saves, MAX_CHECKPOINTS_BETWEEN, MAX_BYTES_BETWEEN, MAX_SECONDS, VALUES_NOT_READ
        )
        for one in looked:
            self._report(one.health, "attempt_ended", attempt)

    async def look_at_end(self) -> None:
        """The job has ended: see which files are whole, before anything is put back."""
        if self._at_end is None:
            saves = self._copied()
            self._at_end = await asyncio.to_thread(_look, saves, MAX_CHECKPOINTS, MAX_BYTES, MAX_SECONDS, None)

    async def finish(self) -> None:
        """Look at the values as well, and report all of it."""
        await self.look_at_end()
        if self._looks:
            await asyncio.wait(self._looks)
        looked, self._at_end = self._at_end or (), ()
        for health in await asyncio.to_thread(_read_values, looked, self._python, lambda: self._is_closed):
            self._report(health, "job_ended")
        folders = self._saves.folders()
        for pointer in await asyncio.to_thread(read_pointers, folders, self._began_unix_seconds):
            self._emitter.emit(
                CheckpointPointed(
                    folder=str(pointer.folder),
                    name=pointer.name,
                    says=pointer.says,
                    target=None if pointer.target is None else str(pointer.target),
                    is_there=pointer.is_there,
                )
            )

    async def close(self) -> None:
        """Report nothing more."""
        self._is_closed = True
        for task in list(self._looks):
            task.cancel()
        if self._looks:
            await asyncio.wait(self._looks)

    def _copied(self) -> SeenSaves:
        return copy.deepcopy(self._saves)

    def _report(self, health: Health, moment: str, attempt: int | None = None) -> None:
        self._emitter.emit(
            CheckpointChecked(
                path=None if health.path is None else str(health.path),
                found=health.found,
                moment=moment,
                of_attempt=attempt,
                is_finished=health.is_finished,
                whole=health.whole,
                readable=health.readable,
                finite=health.finite,
                damage=tuple(one.to_dict() for one in health.damage),
                unchecked=health.unchecked,
                num_files=health.num_files,
                num_bytes=health.num_bytes,
                seconds=round(health.seconds, 6),
            ),
            step=health.step,
        )


def _look(
    saves: SeenSaves, most: int, max_bytes: int, max_seconds: float, outside_only: str | None
) -> Sequence[_Looked]:
    budget, until = Budget(max_bytes), time.monotonic() + max_seconds
    found: list[_Looked] = []
    for located in locate(saves):
        if len(found) >= most:
            break
        is_late = time.monotonic() > until
        health = pass_by(located) if is_late else look_at(located, budget, is_outside_only=outside_only)
        found.append(_Looked(located, health))
    return found


def _read_values(looked: Sequence[_Looked], python: Python | None, is_closed: Callable[[], bool]) -> Sequence[Health]:
    """By one child for all: of what is damaged, or larger than the limit, the values are not read."""
    places = {
        number: sorted(set(one.located.places.values()))
        for number, one in enumerate(looked)
        if one.health.whole is not False and not {TOO_MANY_BYTES, ELSEWHERE} & set(one.health.unchecked)
    }
    began = time.monotonic()
    values = look([place for some in places.values() for place in some], python, MAX_SECONDS, is_closed)
    share = (time.monotonic() - began) / max(1, len(places))
    return [
        with_values(one.health, [values[place] for place in places[number]], share)
        if places.get(number)
        else one.health
        for number, one in enumerate(looked)
    ]
