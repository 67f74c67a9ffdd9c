"""The fault-free baseline of a job: the same job once more, after the run with the faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from chaos.errors import ChaosError
from chaos.experiment.command_job import CommandConfig
from harness.run.job_run import JobRun
from mecefo_runtime.job.config import JobConfig

J = TypeVar("J", JobConfig, CommandConfig)


class BaselineAfter(Generic[J]):
    """Runs `job` as `run_of` says: no rank is held in it, and no fault is injected.

    Not beside the job: both would have half of the machine, and the same files.
    """

    # Only its agents know the steps of a script.
    _has_agents = True

    def __init__(self, job: J, run_of: Callable[[J], JobRun]) -> None:
        self._job: J = job
        self._run_of: Callable[[J], JobRun] = run_of
        self._task: asyncio.Task[None] | None = None
        self.run: JobRun | None = None

    def on_main_step(self) -> None:
        """Does nothing: the baseline waits for the end of the job."""

    async def finish(self) -> None:
        """The main job is over: run it."""
        self._begin(self._job)
        assert self._task is not None
        await self._task

    async def stop(self) -> None:
        """Stop it, wherever it is."""
        if self._task is not None and not self._task.done() and self.run is not None:
            await self._cancel()
            self.run.tell_end("stopped")

    def _begin(self, job: J) -> JobRun:
        self.run = self._run_of(job)
        self.run.tell_start()
        self._task = asyncio.get_running_loop().create_task(self._train(self.run))
        return self.run

    async def _train(self, run: JobRun) -> None:
        running = await run.prepare(with_agents=self._has_agents)
        await running.start()
        run.tell_end(await run.finish())

    async def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError, ChaosError):
            await self._task
        if self.run is not None and self.run.running is not None:
            # While its processes were started.
            await self.run.running.stop()
