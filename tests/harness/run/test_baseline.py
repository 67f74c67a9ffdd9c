"""When the twin trains: beside the main job, after it, or  againbecause it got no CPU."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from chaos.faults.base import OwnedProcess
from harness.analysis.state import RunState
from harness.run import baseline_beside as baseline_module
from harness.run.baseline_beside import BaselineBeside
from harness.run.job_run import JobRun
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import BASELINE_JOB, Event
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

DILATED = JobConfig(dilation_ratio=8.0, steps=10)
DEADLINE_SECONDS = 60.0


class FakeJob:
    """A job that ends when it is told to."""

    def __init__(self, job: JobConfig) -> None:
        self.job = job
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.was_stopped = False

    async def start(self):
        """Nothing has to be started."""

    async def ended(self):
        return await self.over

    async def stop(self):
        self.was_stopped = True

    def node_processes(self, nodes):
        return (OwnedProcess("rank", ProcessId(2**22 + 1, 0), rank=0),)

    def role_processes(self, role):
        return ()

    def cannot_begin(self):
        return False

    def note(self, event):
        """It has no processes."""


class FakeBackend:
    def __init__(self) -> None:
        self.jobs: list[FakeJob] = []

    async def prepare_job(self, name, job, *, with_agents):
        assert (name, with_agents) == (BASELINE_JOB, False)
        self.jobs.append(FakeJob(job))
        return self.jobs[-1]


def committed(step: int) -> Event:
    fields = {"loss": 1.0, "tokens": 1, "epoch": 1, "repeated": False}
    return Emitter(lambda event: None, "rank", job=BASELINE_JOB).emit(StepCommitted(**fields), step=step)


class Stage:
    """A twin on a backend that starts nothing, and the events that it emits."""

    def __init__(self, job: JobConfig = DILATED, *, can_run_beside: bool = True) -> None:
        self.backend = FakeBackend()
        self.events: list[Event] = []
        emitter = Emitter(self.events.append, "conductor")
        self.baseline = BaselineBeside(job, self.run_of, emitter, can_run_beside=can_run_beside)

    def run_of(self, job):
        return JobRun(BASELINE_JOB, job, self.backend, self.events.append, RunState())

    async def job(self, number: int) -> FakeJob:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.backend.jobs) <= number:
                await asyncio.sleep(0)
        return self.backend.jobs[number]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def ends(self, number: int, finishing: asyncio.Task) -> None:
        (await self.job(number)).over.set_result("completed")
        await finishing


def test_beside_the_main_job_it_is_idle_and_nobody_takes_its_silence_for_loss():
    async def check():
        stage = Stage()
        stage.baseline.on_main_step()
        stage.baseline.on_main_step()
        job = (await stage.job(0)).job
        assert (job.priority, job.dilation_ratio) == ("idle", 1.0)
        stage.baseline.run.on_step(RunState().feed(committed(1)))
        assert job.heartbeat_timeout_seconds > 100 * DILATED.heartbeat_timeout_seconds
        await stage.ends(0, asyncio.create_task(stage.baseline.finish()))
        assert stage.kinds() == ["job_started", "job_ended"]
        assert len(stage.backend.jobs) == 1

    asyncio.run(check())


@pytest.mark.parametrize(("job", "can_run_beside"), [(DILATED, False), (JobConfig(steps=10), True)])
def test_where_it_shares_too_much_with_the_main_job_it_comes_after_it_as_any_other(job, can_run_beside):
    async def check():
        stage = Stage(job, can_run_beside=can_run_beside)
        stage.baseline.on_main_step()
        await asyncio.sleep(0.01)
        assert not stage.events
        finishing = asyncio.create_task(stage.baseline.finish())
        assert (await stage.job(0)).job.priority == "normal"
        await stage.ends(0, finishing)
        assert stage.kinds() == ["job_started", "job_ended"]

    asyncio.run(check())


@pytest.mark.parametrize(
    ("is_allowed", "steps", "begins_again"), [(False, 4, True), (False, 5, False), (True, 1, False), (True, 0, True)]
)
def test_one_that_got_no_cpu_begins_again_unless_it_may_have_its_priority_back(
    monkeypatch, is_allowed, steps, begins_again
):
    monkeypatch.setattr(baseline_module, "leave_idle_priority", lambda pid: is_allowed)

    async def check():
        stage = Stage()
        stage.baseline.on_main_step()
        first = await stage.job(0)
        for step in range(1, steps + 1):
            stage.baseline.run.on_step(RunState().feed(committed(step)))
        finishing = asyncio.create_task(stage.baseline.finish())
        if begins_again:
            again = await stage.job(1)
            assert (first.was_stopped, again.job.priority) == (True, "normal")
        await stage.ends(int(begins_again), finishing)
        # Only one that is still idle may be silent for so long that it is a while until it counts as hanging.
        usual_seconds = DILATED.heartbeat_timeout_seconds
        assert (stage.baseline.run.heartbeat_timeout_seconds == usual_seconds) == (is_allowed or begins_again)
        # It is one job in the log: its steps are the same, whoever computes them.
        assert stage.kinds() == ["job_started", *["warning"] * begins_again, "job_ended"]

    asyncio.run(check())


def test_one_that_is_stopped_says_so_and_one_that_never_began_says_nothing():
    async def check():
        stage = Stage()
        await stage.baseline.stop()
        assert not stage.events
        stage.baseline.on_main_step()
        job = await stage.job(0)
        await stage.baseline.stop()
        await stage.baseline.stop()
        assert job.was_stopped
        assert [event.fields.get("outcome") for event in stage.events] == [None, "stopped"]

    asyncio.run(check())


def test_why_it_could_not_be_started_reaches_who_waits_for_it():
    async def check():
        stage = Stage()

        async def refuse(name, job, *, with_agents):
            raise OSError("no more processes")

        stage.backend.prepare_job = refuse
        stage.baseline.on_main_step()
        with pytest.raises(OSError, match="no more processes"):
            await stage.baseline.finish()
        with suppress(OSError):
            await stage.baseline.stop()

    asyncio.run(check())
