"""A job that is under way ends once, whoever says so first."""

import asyncio
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chaos.errors import EnvironmentFailure
from harness.backends.ending_job import EndingJob
from harness.backends.node_job import MAX_COORDINATOR_CRASHES, NodeJob
from harness.control.control_server import ControlServer
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

TIMEOUT_SECONDS = 60.0


def test_the_first_word_on_the_end_counts_for_everybody_who_waits():
    async def end():
        job = EndingJob()
        waiting = [asyncio.create_task(job.ended()) for _ in range(2)]
        await asyncio.sleep(0)
        job.give_up()
        job.on_backend_lost(EnvironmentFailure("too late"))
        return [*await asyncio.gather(*waiting), await job.ended()]

    assert asyncio.run(end()) == ["failed"] * 3


def test_of_a_job_whose_ground_is_gone_nothing_can_be_said():
    async def lose():
        job = EndingJob()
        job.on_backend_lost(EnvironmentFailure("the fork server is gone"))
        job.give_up()
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match="fork server"):
                await job.ended()

    asyncio.run(lose())


def test_who_gives_up_waiting_ends_nothing():
    async def give_up():
        job = EndingJob()
        impatient = asyncio.create_task(job.ended())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait({impatient})
        job.give_up()
        return await job.ended()

    assert asyncio.run(give_up()) == "failed"


class FakeLauncher:
    """Starts what ends before anybody has heard that it was started, where it is one of `doomed`."""

    def __init__(self, *doomed: str) -> None:
        self.doomed, self.job = doomed, None
        # No process has such a pid.
        self._pids = count(2**30)

    async def fork(self, command: Mapping[str, Any]) -> ProcessId:
        process = ProcessId(next(self._pids), 1)
        await asyncio.sleep(0)
        if command["command"] in self.doomed:
            assert self.job is not None
            self.job.on_exit(process, 1)
        return process

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[()]:
        return ()


def job_on(launcher: FakeLauncher, told: list[Event]) -> NodeJob:
    emitter, control = Emitter(told.append, "conductor"), ControlServer(told.append)
    launcher.job = NodeJob(launcher, control, "main", JobConfig(nodes=2, data_parallel=2), {}, Path("logs"), emitter)
    return launcher.job


def test_a_coordinator_that_is_over_before_its_start_was_heard_of_is_missed():
    told: list[Event] = []

    async def start() -> str:
        job = job_on(FakeLauncher("coordinator"), told)
        await job.start()
        return await asyncio.wait_for(job.ended(), TIMEOUT_SECONDS)

    assert asyncio.run(start()) == "failed"
    of_it = [event.kind for event in told if event.fields["role"] == "coordinator"]
    assert of_it == ["process_started", "process_exited"] * (MAX_COORDINATOR_CRASHES + 1)


def test_a_node_that_is_over_before_its_start_was_heard_of_can_be_repaired():
    told: list[Event] = []

    async def start() -> None:
        launcher = FakeLauncher("supervisor")
        job = job_on(launcher, told)
        await job.start()
        assert not job.node_processes((0, 1))
        launcher.doomed = ()
        job.repair_node(1)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not job.node_processes((1,)):
                await asyncio.sleep(0)
        await job.stop()

    asyncio.run(start())
    assert [event.fields["exited_node"] for event in told if event.kind == "process_exited"] == [0, 1]
