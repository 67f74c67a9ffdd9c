"""The fault-free baseline of an external job: the same command once more, after the run with the faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from chaos.errors import ChaosError
from chaos.experiment.command_job import CommandConfig
from harness.run.job_run import JobRun


class Baseline:
    """Runs `job` as `run_of` says: nobody is held in it, and nothing is done to it.

    Not beside the job: both would have half of the machine, and the same files.
    """

    def __init__(self, job: CommandConfig, run_of: Callable[[CommandConfig], JobRun]) -> None:
        self._job = job
        self._run_of = run_of
        self._task: asyncio.Task[None] | None = None
        self.run: JobRun | None = None

    def on_main_step(self) -> None:
        """Does nothing: the baseline waits for the end of the job."""

    async def finish(self) -> None:
        """The main job is over: run it."""
        self.run = self._run_of(self._job)
        self.run.tell_start()
        self._task = asyncio.get_running_loop().create_task(self._train(self.run))
        await self._task

    async def stop(self) -> None:
        """Stop it."""
        if self._task is None or self._task.done() or self.run is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError, ChaosError):
            await self._task
        if self.run.running is not None:
            await self.run.running.stop()
        self.run.tell_end("stopped")

    async def _train(self, run: JobRun) -> None:
        running = await run.prepare(with_agents=True)
        await running.start()
        run.tell_end(await run.finish())
