"""Starts a job again that ended all its ranks after a loss, as a launcher would: when it can start all of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from harness.backends.node_job import END_POLL_SECONDS
from harness.run.repairs import Repairs
from mecefo_runtime.system.job_records import Isolated, RestartStarted

# Ranks are told to end by their coordinator. One that is stopped or hangs does not hear it.
END_SECONDS = 1.0
# An order that comes before the supervisor has reaped the rank's old process is lost.
ORDER_AGAIN_SECONDS = 0.5


class Restarts(Repairs):
    """The repairs of one run, and the restarts of its main job, which wait for them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._task: asyncio.Task[None] | None = None
        self._awaited_until_seconds = 0.0

    @property
    def awaited_until_seconds(self) -> float:
        """Until when the job stood still because something was to be repaired: now, if it does. The loop's clock."""
        if self.are_due and self._task is not None and not self._task.done():
            self._awaited_until_seconds = asyncio.get_running_loop().time()
        return self._awaited_until_seconds

    def on_restarting(self, ranks: Sequence[int]) -> None:
        """The coordinator has told all `ranks` to end."""
        if self._task is not None:
            self._task.cancel()
        self.on_standstill()
        self._task = asyncio.get_running_loop().create_task(self._restart(tuple(ranks)))

    def on_settled(self) -> None:
        """All ranks are in the job, and the coordinator misses whoever ends from now on; or the job has failed."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Start nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _restart(self, ranks: tuple[int, ...]) -> None:
        running = self._running()
        if running is None:
            return
        loop = asyncio.get_running_loop()
        old = running.rank_processes(ranks)
        deadline = loop.time() + END_SECONDS
        while any(owned.process.is_running() for owned in old):
            if loop.time() > deadline:
                for owned in old:
                    owned.process.signal(signal.SIGKILL)
            await asyncio.sleep(END_POLL_SECONDS)
        self._emitter.emit(Isolated())
        while self.are_due:
            await asyncio.sleep(END_POLL_SECONDS)
        self._emitter.emit(RestartStarted(ranks=tuple(ranks)))
        # Until they are in the job, not merely until they run: nobody but us misses one that ends before its hello.
        while True:
            if not self.are_due:
                new = {owned.rank for owned in running.rank_processes(ranks) if owned.process.is_running()}
                for rank in ranks:
                    if rank not in new:
                        running.repair_rank(rank)
            await asyncio.sleep(ORDER_AGAIN_SECONDS)
