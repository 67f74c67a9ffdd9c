"""The fault-free baseline: at idle priority beside the main job, where no fault of that can reach it, else after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from harness.run.baseline_after import BaselineAfter
from harness.run.job_run import JobRun
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import leave_idle_priority
from mecefo_runtime.system.run_records import Warned

# Idle ranks are silent for as long as others compute. Nobody is lost who is: no fault is meant for them.
_IDLE_TIMEOUT_SECONDS = 600.0
# One that has come this far when the main job ends continues as it is, else it is sooner done from the beginning.
_WORTH_KEEPING_RATIO = 0.5
_STARVED = "no idle CPU time for the fault-free baseline beside the job: it restarts after the job, at normal priority"


class BaselineBeside(BaselineAfter[JobConfig]):
    """The baseline of `job`, which runs it as `run_of` says; its losses are all that is looked at."""

    _has_agents = False

    def __init__(
        self, job: JobConfig, run_of: Callable[[JobConfig], JobRun], emitter: Emitter, *, can_run_beside: bool
    ) -> None:
        """`can_run_beside`: faults of the main job reach nothing that the baseline shares with it.

        What is not dilated has no time to spare, and a GPU knows no idle priority.
        """
        super().__init__(replace(job.unpaced(), checkpoint=None), run_of)
        self._emitter = emitter
        self._is_beside = can_run_beside and job.is_padded

    def on_main_step(self) -> None:
        """The main job trains: what it leaves free can be used."""
        if self._is_beside and self._task is None:
            idle = replace(
                self._job,
                priority="idle",
                heartbeat_timeout_seconds=_IDLE_TIMEOUT_SECONDS,
                collective_timeout_seconds=_IDLE_TIMEOUT_SECONDS,
            )
            self._begin(idle).is_patient = True

    async def finish(self) -> None:
        """The main job is over: come to an end."""
        if self._task is not None and self.run is not None and not (self._task.done() or self._may_go_on(self.run)):
            await self._cancel()
            self.run = self._run_of(self._job)
            self._emitter.emit(Warned(message=_STARVED))
            self._task = asyncio.get_running_loop().create_task(self._train(self.run))
        if self.run is None:
            self._begin(self._job)
        assert self._task is not None
        await self._task

    def _may_go_on(self, run: JobRun) -> bool:
        """Give it its normal priority back, if that is allowed; False: it is idle, and not worth waiting for."""
        run.is_patient = False
        if run.running is None or not run.committed_steps:
            # Not all of its processes are known yet.
            return False
        owned = (
            *run.running.node_processes(tuple(range(self._job.cluster().nodes))),
            *run.running.role_processes("coordinator"),
        )
        # Of all of them, whatever the first one says.
        are_normal = False not in {leave_idle_priority(one.process.local_pid) for one in owned}
        if are_normal:
            run.heartbeat_timeout_seconds = self._job.heartbeat_timeout_seconds
        return are_normal or run.committed_steps >= _WORTH_KEEPING_RATIO * self._job.steps
