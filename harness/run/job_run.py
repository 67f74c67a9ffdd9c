"""One job of a run, the main one or its baseline, from start to end: how far it has come, and whether it stalls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from chaos.host.process_table import is_stopped
from harness.analysis.job_failures import job_failed
from harness.analysis.state import RunState
from harness.backends.base import AnyConfig, Backend, Outcome, RunningJob
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import JobEnded, JobFailed, StepCommitted
from mecefo_runtime.system.reason import Reason

# A job that commits nothing for this long, and for this many times its usual step, hangs.
STALL_SECONDS = 60.0
STALL_STEPS = 50
STALL_HEARTBEATS = 10
STALL_CHECK_SECONDS = 1.0


class JobRun:
    """The job `name` on `backend`; its events go to `on_event`, and what they come to is in `state`.

    `awaited_until_seconds` says until when (the loop's clock) it stood still because something was to be repaired, and
    `may_be_repaired` whether anything still will be. While `is_patient`, no stall ends it. `heartbeat_timeout_seconds`:
    its ranks may be silent for so long without being lost; what hangs has been silent many times as long.
    """

    def __init__(
        self,
        name: str,
        job: AnyConfig,
        backend: Backend,
        on_event: Callable[[Event], None],
        state: RunState,
        awaited_until_seconds: Callable[[], float] = lambda: 0.0,
        may_be_repaired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.job = job
        self.is_patient = False
        self.heartbeat_timeout_seconds = job.heartbeat_timeout_seconds
        self.running: RunningJob | None = None
        self.committed_steps = 0
        self._backend = backend
        self._emitter = Emitter(on_event, "conductor", job=name)
        self._state = state
        self._awaited_until_seconds = awaited_until_seconds
        self._may_be_repaired = may_be_repaired
        self._last_progress_seconds = 0.0

    async def prepare(self, *, with_agents: bool) -> RunningJob:
        """Everything but the start of its processes."""
        self._last_progress_seconds = asyncio.get_running_loop().time()
        self.running = await self._backend.prepare_job(self.name, self.job, with_agents=with_agents)
        return self.running

    async def finish(self, before_stop: Callable[[], Awaitable[None]] | None = None) -> Outcome:
        """Wait until it has ended, then do what is to be done `before_stop`, and stop what is left of it."""
        assert self.running is not None
        outcome: Outcome = "stopped"
        stall_watch = asyncio.create_task(self._watch_for_stall(self.running))
        try:
            outcome = await self.running.ended()
        finally:
            stall_watch.cancel()
            if before_stop is not None:
                await before_stop()
            await self.running.stop()
            self.running = None
        return outcome

    def tell_start(self) -> None:
        """Say in the log that it begins."""
        self._emitter.emit(self.job.start_record())

    def tell_end(self, outcome: Outcome) -> None:
        """Say in the log how it ended."""
        self._emitter.emit(JobEnded(outcome=outcome, steps_committed=self.committed_steps))

    def on_event(self, event: Event) -> None:
        """One of its events arrived."""
        if self.running is not None:
            self.running.note(event)

    def on_step(self, record: StepCommitted) -> None:
        """It committed a step."""
        self.committed_steps = max(record.step or 0, self.committed_steps)
        if not record.repeated:
            # One that has gone back is at work again.
            self._last_progress_seconds = asyncio.get_running_loop().time()

    async def _watch_for_stall(self, running: RunningJob) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(STALL_CHECK_SECONDS)
            patience_seconds = self._patience_seconds()
            self._last_progress_seconds = max(self._last_progress_seconds, self._awaited_until_seconds())
            is_lost = running.cannot_begin() and not self._may_be_repaired()
            if is_lost or loop.time() - self._last_progress_seconds > patience_seconds:
                why = Reason("all_nodes_gone") if is_lost else self._why_stalled(running, patience_seconds)
                stopped = tuple(owned.to_dict() for owned in running.leftovers() if is_stopped(owned.process))
                failed = JobFailed(**job_failed(why).given(), stopped=stopped)
                self._emitter.emit(failed, step=self.committed_steps or None)
                running.give_up()
                return

    def _why_stalled(self, running: RunningJob, patience_seconds: float) -> Reason:
        if not self.committed_steps:
            return Reason("never_began", seconds=patience_seconds, unseen=running.why_unseen())
        is_command = self.job.traits.is_user_script or None
        return Reason("stalled", seconds=patience_seconds, step=self.committed_steps, is_command=is_command)

    def _patience_seconds(self) -> float:
        if self.is_patient:
            return math.inf
        timeout_seconds = self.job.step_timeout_seconds(has_steps=self.committed_steps > 0)
        if timeout_seconds is not None:
            return timeout_seconds
        usual_seconds = self._state.usual_step_seconds(self.name) or 0.0
        until_missed_seconds = STALL_HEARTBEATS * self.heartbeat_timeout_seconds
        return max(STALL_SECONDS, STALL_STEPS * usual_seconds, until_missed_seconds)
