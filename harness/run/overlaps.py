"""Watches which other runs of chaos share the machine with this one, and says so in its log."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from chaos.undo.other_runs import OtherRun, OtherRuns
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.run_records import RunOverlapped, Warned

LOOK_SECONDS = 1.0
"""A run that is there for a shorter time may be missed."""


class Overlaps:
    """Looks from `start` to `stop`; another run is in the log as soon as it is seen, and again when it has ended."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._others: OtherRuns | None = None
        # By run: what it is, and since when both are there.
        self._alive: dict[str, tuple[OtherRun, float]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, own: str) -> None:
        """`own` is the name of this run in the registry."""
        self._others = OtherRuns(own)
        self._look()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Look for the last time."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            self._look()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        try:
            self._compare()
        except Exception as error:
            # Without it only a caveat may be missing.
            self._others = None
            message = f"other runs on this machine are no longer looked for: {type(error).__name__}: {error}"
            self._emitter.emit(Warned(message=message))

    def _compare(self) -> None:
        if self._others is None:
            return
        alive, now = self._others.alive(), time.monotonic()
        for run in self._alive.keys() - alive.keys():
            other, began = self._alive.pop(run)
            self._tell(other, began, now)
        for run in alive.keys() - self._alive.keys():
            self._alive[run] = alive[run], now
            self._tell(alive[run], now, None)

    def _tell(self, other: OtherRun, began: float, ended: float | None) -> None:
        self._emitter.emit(
            RunOverlapped(
                other_run=other.run,
                folder=None if other.folder is None else str(other.folder),
                uid=other.uid,
                began_monotonic=began,
                ended_monotonic=ended,
            )
        )
