"""A job is started again when all that failed is repaired, and repairs that are due in steps come without any steps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from chaos.faults import registry
from chaos.faults.base import OwnedProcess
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from chaos.plan.incident import Incident
from harness.run import restarts
from harness.run.restarts import Restarts
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB

pytestmark = pytest.mark.unit

DEADLINE_SECONDS = 120.0
STEP_SECONDS = 0.02


@dataclass
class FakeProcess:
    """A process that ends when it is told by a signal, or has `heard` of the end."""

    is_up: bool = True
    signals: list[int] = field(default_factory=list)

    def is_running(self) -> bool:
        return self.is_up

    def signal(self, number: int) -> bool:
        self.signals.append(number)
        self.is_up = False
        return True


class FakeJob:
    """Ranks that run, and that are started again when told; the first `deaf` orders are lost."""

    name = MAIN_JOB

    def __init__(self, num_ranks: int, deaf: int = 0) -> None:
        self.processes = {rank: FakeProcess() for rank in range(num_ranks)}
        self.deaf = deaf
        self.started: list[int] = []

    def rank_processes(self, ranks):
        return tuple(OwnedProcess("rank", self.processes[rank], rank=rank) for rank in ranks)

    def repair_rank(self, rank):
        if self.deaf:
            self.deaf -= 1
            return
        self.started.append(rank)
        self.processes[rank] = FakeProcess()

    def repair_node(self, node):
        self.repair_rank(node)


def incident(repair: Duration) -> Incident:
    return Incident(0, "kill-process", True, {}, ResolvedTarget(ranks=(1,)), "rank=1", Trigger(step=5), repair)


def conducted(job: FakeJob, repair: Duration | None, monkeypatch) -> tuple[Restarts, list]:
    monkeypatch.setattr(restarts, "END_SECONDS", 0.05)
    monkeypatch.setattr(restarts, "ORDER_AGAIN_SECONDS", 0.02)
    events: list = []
    incidents = {} if repair is None else {0: incident(repair)}
    emitter = Emitter(events.append, "conductor")
    return Restarts(incidents, registry(), emitter, lambda: job, lambda: STEP_SECONDS), events


async def until(is_done) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not is_done():
            await asyncio.sleep(0.005)


def kinds(events) -> list[str]:
    return [event.kind for event in events]


def test_who_does_not_hear_it_is_killed_and_all_are_started(monkeypatch):
    async def story():
        job = FakeJob(3, deaf=2)
        job.processes[0].is_up = False
        restarting, events = conducted(job, None, monkeypatch)
        old = dict(job.processes)
        restarting.on_restarting(range(3))
        await until(lambda: all(process.is_up for process in job.processes.values()))
        await restarting.close()
        assert old[1].signals and old[2].signals
        assert sorted(job.started) == [0, 1, 2]
        assert kinds(events) == ["isolated", "restart_started"]
        assert restarting.awaited_until_seconds == 0.0

    asyncio.run(story())


def test_one_that_ends_before_its_hello_is_started_again_until_all_are_in_the_job(monkeypatch):
    async def story():
        job = FakeJob(2)
        restarting, events = conducted(job, None, monkeypatch)
        restarting.on_restarting(range(2))
        for number in range(2, 5):
            await until(lambda number=number: len(job.started) >= number)
            await asyncio.sleep(3 * restarts.ORDER_AGAIN_SECONDS)
            assert len(job.started) == number, "all of them run"
            job.processes[1].is_up = False
        await until(lambda: len(job.started) >= 5)
        assert sorted(job.started) == [0, 1, 1, 1, 1]
        restarting.on_settled()
        job.processes[1].is_up = False
        await asyncio.sleep(3 * restarts.ORDER_AGAIN_SECONDS)
        assert len(job.started) == 5, "the coordinator misses it now"
        await restarting.close()
        assert kinds(events) == ["isolated", "restart_started"]

    asyncio.run(story())


def test_one_that_a_fault_ends_before_its_hello_waits_for_its_repair(monkeypatch):
    async def story():
        job = FakeJob(2)
        restarting, events = conducted(job, Duration(seconds=0.2), monkeypatch)
        restarting.on_restarting(range(2))
        await until(lambda: len(job.started) >= 2)
        restarting.on_injected(0, 5)
        job.processes[1].is_up = False
        await until(lambda: len(job.started) >= 3)
        assert "repair_started" in kinds(events)
        await restarting.close()

    asyncio.run(story())


def test_nothing_starts_before_the_repair_and_a_repair_in_steps_comes_as_late_as_they_take(monkeypatch):
    async def story():
        job = FakeJob(2)
        restarting, events = conducted(job, Duration(steps=4), monkeypatch)
        for step in range(1, 5):
            restarting.on_step(step)
            await asyncio.sleep(0.02)
        for process in job.processes.values():
            process.is_up = False
        restarting.on_injected(0, 5)
        restarting.on_restarting(range(2))
        assert restarting.are_due
        assert restarting.awaited_until_seconds > 0
        await until(lambda: len(job.started) >= 2)
        assert job.started == [1, 0]
        await restarting.close()
        assert kinds(events) == ["isolated", "repair_started", "restart_started"]
        assert not restarting.are_due

    asyncio.run(story())


def test_nobody_is_started_for_a_job_that_is_over(monkeypatch):
    async def story():
        job = FakeJob(2)
        repairs = Restarts(
            {0: incident(Duration(steps=3))}, registry(), Emitter([].append, "conductor"), lambda: job, lambda: None, 8
        )
        repairs.on_injected(0, 5)
        assert repairs.are_due
        repairs.on_step(8)
        assert not repairs.are_due
        assert job.started == []

    asyncio.run(story())


def test_what_affects_while_it_stands_still_is_repaired_too(monkeypatch):
    async def story():
        job = FakeJob(2)
        restarting, events = conducted(job, Duration(steps=3), monkeypatch)
        for step in (1, 2, 3):
            restarting.on_step(step)
        restarting.on_standstill()
        restarting.on_injected(0, 4)
        await until(lambda: "repair_started" in kinds(events))

    asyncio.run(story())


def test_while_steps_go_on_a_repair_waits_for_its_step(monkeypatch):
    async def story():
        restarting, events = conducted(FakeJob(2), Duration(steps=2), monkeypatch)
        restarting.on_injected(0, 5)
        restarting.on_step(6)
        assert restarting.are_due and not events
        restarting.on_step(7)
        assert kinds(events) == ["repair_started"]
        assert not restarting.are_due

    asyncio.run(story())
