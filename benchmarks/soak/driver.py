"""One run of the soak: starts the job, deals the blows of its plan, repairs, and records what really happened."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soak.knowledge import Knowledge
from benchmarks.soak.plan import Blow, RunPlan
from benchmarks.soak.shared_backend import SharedBackend, find_by_environment
from chaos.errors import ChaosError, EnvironmentFailure
from chaos.faults.base import OwnedProcess
from chaos.host.run_files import EVENTS_FILE, LOGS_FOLDER
from harness.backends.base import RunningJob
from harness.control.recorder import Recorder
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import JobEnded, JobStarted
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.run_records import Warned

# Without a committed step for so long a job hangs: more than all its time-outs but that of a collective, which is there
# for what cannot happen.
STALL_SECONDS = 40.0
DEADLINE_SECONDS = 240.0
POLL_SECONDS = 0.05
# A repair takes effect within this time, or is tried again: whoever was told may have died of it.
REPAIR_AGAIN_SECONDS = 3.0
# How long a blow waits for its event, or for anybody who can be spared.
PATIENCE_SECONDS = 6.0
DUMP_SECONDS = 1.0
GDB_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Loss:
    """One target that was really hit, `monotonic_seconds` being the last moment before."""

    name: str
    target: str
    ranks: tuple[int, ...]
    step: int
    monotonic_seconds: float


@dataclass(frozen=True, slots=True)
class Victim:
    """What is hit, and the ranks that are lost by it."""

    label: str
    processes: tuple[OwnedProcess, ...]
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Record:
    """What was done to a run and what came of it; `outcome` is the backend's, or `hung`, or `failed to run: ...`."""

    losses: list[Loss] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    outcome: str = "failed to run"
    leftovers: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wall_seconds: float = 0.0


class Driver:
    """Drives one run in `folder`, which must not be there yet."""

    def __init__(self, plan: RunPlan, folder: Path, shared: SharedBackend) -> None:
        self._plan = plan
        self._draw = random.Random(f"victims {plan.seed}/{plan.number}")
        folder.mkdir(parents=True)
        logs = folder / LOGS_FOLDER
        logs.mkdir()
        self._recorder = Recorder(folder / EVENTS_FILE)
        self._emitter = Emitter(self._on_event, "soak")
        self._shared = shared
        self._logs = logs
        self._job: RunningJob | None = None
        self._known = Knowledge()
        self._waiting: list[tuple[Callable[[Event], bool], asyncio.Future[Event]]] = []
        # rank -> (the step after which it is repaired, the process that was killed)
        self._due: dict[int, tuple[int, ProcessId]] = {}
        self._repaired: dict[int, float] = {}
        self._hung: list[tuple[float, OwnedProcess]] = []
        self._last_progress_seconds = 0.0
        self._record = Record()

    async def run(self) -> Record:
        """Run it to its end, whatever that is; nothing of it runs when this returns, or `leftovers` says what."""
        record = self._record
        began = time.monotonic()
        self._shared.begin(self._logs, self._on_event)
        before = find_by_environment(self._shared.mark)
        try:
            record.outcome = await self._run_job()
        except ChaosError as error:
            record.outcome = f"failed to run: {error}"
        finally:
            if self._job is not None:
                await self._shared.settle()
                # The last events may have told of processes that nobody knew of before.
                await self._job.stop()
                record.leftovers += [str(owned) for owned in self._job.leftovers()]
            left = set(find_by_environment(self._shared.mark)) - set(before)
            record.leftovers += [f"pid {process.pid}" for process in sorted(left, key=lambda process: process.pid)]
            self._recorder.close()
        record.wall_seconds = time.monotonic() - began
        return record

    async def _run_job(self) -> str:
        config = self._plan.job()
        self._emitter.emit(
            JobStarted(
                num_ranks=config.cluster().num_ranks,
                nodes=config.nodes,
                steps=config.steps,
                tokens_per_step=config.tokens_per_step,
                samples_per_step=config.samples_per_step,
                dilation_ratio=config.dilation_ratio,
            )
        )
        self._job = job = await self._shared.backend.prepare_job(MAIN_JOB, config, with_agents=False)
        await job.start()
        self._last_progress_seconds = time.monotonic()
        tasks = [asyncio.create_task(work) for work in (self._deal(), self._repair(), self._wake())]
        watch = asyncio.create_task(self._watch())
        ended = asyncio.create_task(job.ended())
        try:
            await asyncio.wait({watch, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                outcome: str = ended.result()
            else:
                outcome = await self._dump(watch.result())
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise EnvironmentFailure(f"the soak itself failed: {task.exception()!r}")
        finally:
            has_ended = ended.done()
            for task in tasks:
                task.cancel()
            watch.cancel()
            ended.cancel()
            for _, owned in self._hung:
                owned.process.signal(signal.SIGCONT)
            self._emitter.emit(JobEnded(outcome="ended" if has_ended else "hung"), step=self._known.step)
            await job.stop()
        return outcome

    # ---- what happens ----

    def _on_event(self, event: Event) -> None:
        self._recorder.write(event)
        self._record.events.append(event)
        if self._job is not None:
            self._job.note(event)
        before = self._known.step
        self._known.feed(event)
        if self._known.step > before:
            self._last_progress_seconds = time.monotonic()
        still = []
        for is_wanted, future in self._waiting:
            if future.done():
                continue
            if is_wanted(event):
                future.set_result(event)
            else:
                still.append((is_wanted, future))
        self._waiting = still

    async def _event(self, is_wanted: Callable[[Event], bool], timeout_seconds: float) -> Event | None:
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiting.append((is_wanted, future))
        try:
            return await asyncio.wait_for(future, timeout_seconds)
        except TimeoutError:
            return None

    async def _step(self, step: int) -> None:
        while self._known.step < step:
            await self._event(lambda event: event.kind == "step_committed", DEADLINE_SECONDS)

    async def _watch(self) -> str:
        """Until the job hangs; returns why it is thought to."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - self._last_progress_seconds > STALL_SECONDS:
                return f"no step was committed for {STALL_SECONDS:.0f} s after step {self._known.step}"
            if now - began > DEADLINE_SECONDS:
                return f"at step {self._known.step} after {DEADLINE_SECONDS:.0f} s"

    async def _dump(self, reason: str) -> str:
        """Keep what tells why: the stacks of all ranks in their logs, native ones (where there is gdb) beside them."""
        assert self._job is not None
        ranks = [owned for owned in self._job.leftovers() if owned.role == "rank"]
        for owned in ranks:
            owned.process.signal(signal.SIGUSR1)
        await asyncio.sleep(DUMP_SECONDS)
        if shutil.which("gdb"):
            for owned in ranks:
                command = ["gdb", "-p", str(owned.process.pid), "-batch", "-ex", "thread apply all bt 30"]
                with (self._logs / f"rank-{owned.rank}.stacks").open("wb") as file:
                    gdb = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=subprocess.STDOUT)
                    try:
                        await asyncio.wait_for(gdb.wait(), GDB_SECONDS)
                    except TimeoutError:
                        gdb.kill()
                        await gdb.wait()
        return f"hung: {reason}"

    # ---- blows ----

    async def _deal(self) -> None:
        await self._step(2)
        for blow in self._plan.blows:
            if blow.kind.is_at_end:
                await self._step(self._plan.num_steps - blow.gap_steps % 3)
            else:
                await self._step(self._known.step + blow.gap_steps)
            await asyncio.sleep(blow.delay_seconds)
            first = await self._inject_into(blow, blow.kind.first, ())
            for _ in range(blow.num_times if blow.kind.second else 0):
                event = await self._event(lambda event, kind=blow.event: event.kind == kind, PATIENCE_SECONDS)  # type: ignore[misc]
                if event is None:
                    self._record.skipped.append(f"{blow.name}: no {blow.event}")
                    break
                await asyncio.sleep(blow.second_delay_seconds)
                newcomers = tuple(event.fields.get("ranks", ()))
                await self._inject_into(blow, blow.kind.second, first if blow.kind.second == ("same",) else newcomers)

    async def _inject_into(self, blow: Blow, targets: Sequence[str], given: tuple[int, ...]) -> tuple[int, ...]:
        """Hit all `targets` at once, as soon as they can be spared; returns the ranks that are lost by it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (victims := self._choose(targets, given)) is None:
            if time.monotonic() > deadline:
                self._record.skipped.append(f"{blow.name}: nobody can be spared")
                return ()
            await asyncio.sleep(POLL_SECONDS)
        assert self._job is not None
        everybody: list[int] = []
        for target, victim in zip(targets, victims, strict=True):
            now = time.monotonic()
            number = signal.SIGSTOP if target.startswith("hung") else signal.SIGKILL
            hit = [owned for owned in victim.processes if owned.process.signal(number)]
            if not hit:
                self._record.skipped.append(f"{blow.name}: {victim.label} was gone already")
                continue
            self._known.inject(victim.ranks, now)
            loss = Loss(blow.name, victim.label, victim.ranks, self._known.step, now)
            self._record.losses.append(loss)
            message = f"struck {victim.label} ({blow.name})"
            self._emitter.emit(Warned(message=message), step=loss.step, monotonic_seconds=now)
            everybody += victim.ranks
            if number == signal.SIGSTOP:
                self._hung += [(now + blow.hang_seconds, owned) for owned in hit]
            elif not self._plan.is_fatal:
                for owned in self._job.rank_processes(victim.ranks):
                    assert owned.rank is not None
                    self._due[owned.rank] = (self._known.step + blow.repair_steps, owned.process)
        return tuple(everybody)

    def _choose(self, targets: Sequence[str], given: tuple[int, ...]) -> list[Victim] | None:
        """A victim for every target; None when training could not go on without them all."""
        chosen: list[Victim] = []
        lost: set[int] = set()
        for target in targets:
            victim = self._choose_one(target, given, lost)
            if victim is None:
                return None
            lost |= set(victim.ranks)
            if lost and not self._plan.is_fatal and not self._known.can_lose(lost):
                return None
            chosen.append(victim)
        return chosen

    def _choose_one(self, target: str, given: tuple[int, ...], lost: set[int]) -> Victim | None:
        assert self._job is not None
        match target:
            case "coordinator" | "hung-coordinator":
                coordinator = self._job.role_processes("coordinator")
                return Victim(target, coordinator, ()) if coordinator else None
            case "newcomer":
                return self._victim(f"newcomer {given}", given)
            case "same":
                return self._node_victim("node", given[0]) if given else None
            case "holders":
                ranks = self._known.holders(self._draw.choice(self._known.units()))
                return self._victim(f"holders {ranks}", ranks)
            case "everybody":
                return self._victim(target, self._known.living())
        drawn = self._draw_ranks(target, lost)
        if drawn is None:
            return None
        if target in ("rank", "hung-rank"):
            return self._victim(f"{target} {drawn[0]}", drawn)
        return self._node_victim(target, drawn[0])

    def _victim(self, label: str, ranks: tuple[int, ...]) -> Victim | None:
        assert self._job is not None
        processes = self._job.rank_processes(ranks)
        return Victim(label, processes, ranks) if processes else None

    def _node_victim(self, target: str, rank: int) -> Victim | None:
        """The node of `rank`, or its supervisor alone, with which its ranks die too."""
        assert self._job is not None
        node = self._node_of(rank)
        processes = self._job.node_processes((node,))
        if target == "supervisor":
            processes = tuple(owned for owned in processes if owned.role == "supervisor")
        return Victim(f"{target} {node}", processes, self._ranks_of(node)) if processes else None

    def _draw_ranks(self, target: str, lost: set[int]) -> tuple[int, ...] | None:
        """A rank or all ranks of a node that can be lost on top of `lost`; None when there is none."""
        living = [rank for rank in self._known.living() if rank not in lost]
        candidates = (
            [(rank,) for rank in living]
            if target in ("rank", "hung-rank")
            else [self._ranks_of(node) for node in sorted({self._node_of(rank) for rank in living})]
        )
        candidates = [ranks for ranks in candidates if self._known.can_lose(lost | set(ranks))]
        return self._draw.choice(candidates) if candidates else None

    def _node_of(self, rank: int) -> int:
        return rank // self._plan.shape.gpus_per_node

    def _ranks_of(self, node: int) -> tuple[int, ...]:
        size = self._plan.shape.gpus_per_node
        return tuple(range(node * size, (node + 1) * size))

    # ---- what heals ----

    async def _repair(self) -> None:
        """Start again what is due and dead, node-wise where the supervisor is dead too."""
        assert self._job is not None
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            for rank, (step, killed) in sorted(self._due.items()):
                node = self._node_of(rank)
                if self._known.processes[rank] != killed:
                    del self._due[rank]
                elif (
                    step <= self._known.step
                    and not killed.is_running()
                    and now - self._repaired.get(node, 0.0) > REPAIR_AGAIN_SECONDS
                ):
                    self._repaired[node] = now
                    self._start_again(node)

    def _start_again(self, node: int) -> None:
        assert self._job is not None
        dead = [rank for rank in self._ranks_of(node) if rank in self._due]
        message = f"ranks {', '.join(map(str, dead))} of node {node} start again"
        self._emitter.emit(Warned(message=message), step=self._known.step)
        supervisors = [owned for owned in self._job.node_processes((node,)) if owned.role == "supervisor"]
        if not any(supervisor.process.is_running() for supervisor in supervisors):
            self._job.repair_node(node)
            return
        for rank in dead:
            self._job.repair_rank(rank)

    async def _wake(self) -> None:
        """Let hung processes continue."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            due = [owned for until, owned in self._hung if until <= now]
            self._hung = [(until, owned) for until, owned in self._hung if until > now]
            for owned in due:
                if owned.rank is not None:
                    # Lost or not, it knows nothing of what happened meanwhile.
                    self._known.inject([owned.rank], now)
                owned.process.signal(signal.SIGCONT)
