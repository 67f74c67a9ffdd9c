"""One job of the built-in runtime: its nodes' processes, as they start, exit, are repaired and stopped.

Its backend decides where the nodes run.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from chaos.faults.base import LinkHost, OwnedProcess
from harness.backends.command.start import agent_environment
from harness.backends.ending_job import EndingJob
from harness.control.control_server import ControlServer
from mecefo_runtime.comm.messages import StartRank
from mecefo_runtime.job.config import JOB_FAILED, JobConfig
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import this_host
from mecefo_runtime.system.job_records import ProcessExited, ProcessStarted
from mecefo_runtime.system.process import ProcessId

HOOKS = "chaos.agent:install"
STOP_TIMEOUT_SECONDS = 5.0
FAREWELL_SECONDS = 3.0
END_POLL_SECONDS = 0.02
# A coordinator that crashes by itself (no signal) is started again this often before the job counts as failed.
MAX_COORDINATOR_CRASHES = 3


def with_agent(environment: RankEnvironment) -> dict[str, str]:
    """The variables of `environment`, and those of an agent in each rank, which reports where events go."""
    return replace(environment, hooks=HOOKS).variables() | agent_environment(environment.events, environment.name)


class NodeLauncher(Protocol):
    """Where a job's processes are started."""

    async def fork(self, command: Mapping[str, Any]) -> ProcessId:
        """Have a coordinator or a node's supervisor started; returns it.

        Raises:
            EnvironmentFailure: it cannot be.
        """
        ...

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """What there is of `nodes` beside their supervisors and ranks, and goes with them: their containers."""
        ...


class NodeJob(EndingJob):
    """One job."""

    def __init__(
        self,
        backend: NodeLauncher,
        control: ControlServer,
        name: str,
        job: JobConfig,
        environment: dict[str, str],
        logs: Path,
        emitter: Emitter,
        links: LinkHost | None = None,
    ) -> None:
        super().__init__()
        self._backend = backend
        self._control = control
        self.name = name
        self.links = links
        self._cluster = job.cluster()
        self._environment = environment
        self._logs = logs
        self._emitter = emitter.of_job(name)
        self._coordinator: OwnedProcess | None = None
        self._coordinator_attempt = 0
        self._num_crashes = 0
        self._supervisors: dict[int, OwnedProcess] = {}
        self._has_snapshots = job.snapshots is not None
        self._snapshots: dict[int, OwnedProcess] = {}
        # Nodes whose start is under way.
        self._starting: set[int] = set()
        self._node_attempts = dict.fromkeys(range(self._cluster.nodes), 0)
        self._ranks: dict[int, OwnedProcess] = {}
        self._rank_attempts = dict.fromkeys(range(self._cluster.num_ranks), 0)
        # Ends that were heard of while somebody still waits to hear of the start.
        self._num_forks_under_way = 0
        self._over_already: dict[ProcessId, int] = {}
        self._is_stopping = False
        self._has_stepped = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the coordinator, then all nodes."""
        await self._start_coordinator()
        await asyncio.gather(*(self._start_node(node) for node in range(self._cluster.nodes)))

    # ---- what injectors ask ----

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes of `ranks`."""
        return tuple(self._ranks[rank] for rank in ranks if rank in self._ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """Supervisor, snapshot process, ranks and container of `nodes`."""
        supervisors = tuple(self._supervisors[node] for node in nodes if node in self._supervisors)
        snapshots = tuple(self._snapshots[node] for node in nodes if node in self._snapshots)
        ranks = tuple(owned for owned in self._ranks.values() if owned.node in nodes)
        return (*supervisors, *snapshots, *ranks, *self._backend.node_hosts(nodes))

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """The coordinator, between its start and its exit: it is also the store by which groups are formed."""
        is_there = role in ("coordinator", "store") and self._coordinator is not None
        return (self._coordinator,) if is_there and self._coordinator is not None else ()

    # ---- what happens ----

    def note(self, event: Event) -> None:
        """Learn of ranks that supervisors started, and of steps."""
        self._has_stepped = self._has_stepped or event.kind == "step_committed"
        if event.kind == "process_started" and event.source == "supervisor" and event.job == self.name:
            rank = int(event.fields["started_rank"])
            numbers = int(event.fields["started_pid"]), int(event.fields["start_ticks"])
            process = ProcessId(*numbers, this_host() if event.host is None else event.host)
            self._ranks[rank] = OwnedProcess("rank", process, rank=rank, node=event.node)

    def on_exit(self, process: ProcessId, code: int) -> None:
        """A process that was forked for this job, a coordinator or a supervisor, is gone."""
        if self._num_forks_under_way:
            self._over_already[process] = code
        if self._coordinator is not None and process == self._coordinator.process:
            self._coordinator = None
            self._emit_exit("coordinator", process, code)
            self._on_coordinator_exit(code)
        for node, owned in list(self._supervisors.items()):
            if owned.process == process:
                del self._supervisors[node]
                self._emit_exit("supervisor", process, code, node)
        for node, owned in list(self._snapshots.items()):
            if owned.process == process:
                del self._snapshots[node]
                self._emit_exit("snapshots", process, code, node)
                supervisor = self._supervisors.get(node)
                if not self._is_stopping and supervisor is not None and supervisor.process.is_running():
                    self._spawn(self._start_snapshots(node))

    def on_out_of_memory(self, why: Exception) -> None:
        """The kernel ended a process of a node. Nobody starts it again: without it a job cannot begin."""
        if not self._has_stepped:
            self.on_backend_lost(why)

    def _on_coordinator_exit(self, code: int) -> None:
        if self._is_stopping:
            return
        if code in (0, JOB_FAILED):
            self._finish("completed" if code == 0 else "failed")
            return
        self._num_crashes += code > 0
        if self._num_crashes > MAX_COORDINATOR_CRASHES:
            self._finish("failed")
        else:
            self._spawn(self._start_coordinator())

    def why_unseen(self) -> None:
        """Nothing that its logs do not say."""

    def cannot_begin(self) -> bool:
        """Whether every node was gone before the first step. After it, the coordinator knows what is left."""
        is_any_up = any(owned.process.is_running() for owned in self._supervisors.values())
        return not (self._has_stepped or self._starting or is_any_up)

    # ---- starting and stopping ----

    def repair_node(self, node: int) -> None:
        """Start a dead node again."""
        is_up = node in self._supervisors or node in self._starting
        if not is_up and not self._is_stopping and not self._outcome.done():
            self._starting.add(node)
            self._spawn(self._start_node(node))

    def repair_rank(self, rank: int) -> None:
        """Start a dead rank again, by its node's supervisor or with its whole node."""
        if rank in self._ranks and self._ranks[rank].process.is_running():
            return
        node = self._cluster.node_of(rank)
        self._rank_attempts[rank] += 1
        if not self._control.order(self.name, node, StartRank(rank, self._rank_attempts[rank])):
            self.repair_node(node)

    async def stop(self) -> None:
        """Kill what is left, after those who said goodbye had time to go."""
        self._is_stopping = True
        self._finish("stopped")
        if self._outcome.exception() is None and self._outcome.result() == "completed":
            deadline = asyncio.get_running_loop().time() + FAREWELL_SECONDS
            while any(owned.process.is_running() for owned in self._ranks.values()):
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(END_POLL_SECONDS)
        for task in self._tasks:
            task.cancel()
        deadline = asyncio.get_running_loop().time() + STOP_TIMEOUT_SECONDS
        # More than once: the start of a process may be heard of only after its supervisor is dead.
        while (left := self.leftovers()) and asyncio.get_running_loop().time() < deadline:
            for owned in left:
                owned.process.signal(signal.SIGKILL)
            await asyncio.sleep(END_POLL_SECONDS)

    def leftovers(self) -> tuple[OwnedProcess, ...]:
        """The processes of the job that still run."""
        return tuple(owned for owned in self._all_processes() if owned.process.is_running())

    def _all_processes(self) -> list[OwnedProcess]:
        coordinator = [] if self._coordinator is None else [self._coordinator]
        return [*coordinator, *self._supervisors.values(), *self._snapshots.values(), *self._ranks.values()]

    async def _fork(self, command: Mapping[str, Any]) -> ProcessId:
        self._num_forks_under_way += 1
        try:
            return await self._backend.fork(command)
        finally:
            self._num_forks_under_way -= 1

    def _look_whether_over(self, process: ProcessId) -> None:
        """One that ends at once can be heard of before its start is."""
        code = self._over_already.pop(process, None)
        if not self._num_forks_under_way:
            self._over_already.clear()
        if code is not None:
            self.on_exit(process, code)

    async def _start_coordinator(self) -> None:
        self._coordinator_attempt += 1
        process = await self._fork(
            {
                "command": "coordinator",
                "job": self.name,
                "attempt": self._coordinator_attempt,
                "environment": self._environment,
            }
        )
        self._coordinator = OwnedProcess("coordinator", process)
        self._emit_start("coordinator", process)
        self._look_whether_over(process)

    async def _start_node(self, node: int) -> None:
        self._node_attempts[node] += 1
        if self._has_snapshots and node not in self._snapshots:
            await self._start_snapshots(node)
        ranks = self._cluster.ranks_of(node)
        for rank in ranks:
            self._rank_attempts[rank] += 1
        process = await self._fork(
            {
                "command": "supervisor",
                "job": self.name,
                "node": node,
                "attempt": self._node_attempts[node],
                "ranks": [ranks.start, ranks.stop],
                "rank_attempts": {rank: self._rank_attempts[rank] for rank in ranks},
                "environment": self._environment,
            }
        )
        self._starting.discard(node)
        self._supervisors[node] = OwnedProcess("supervisor", process, node=node)
        self._emit_start("supervisor", process, node)
        self._look_whether_over(process)

    async def _start_snapshots(self, node: int) -> None:
        command = {"command": "snapshots", "job": self.name, "node": node, "environment": self._environment}
        process = await self._fork(command)
        self._snapshots[node] = OwnedProcess("snapshots", process, node=node)
        self._emit_start("snapshots", process, node)
        self._look_whether_over(process)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.on_backend_lost(error)

    def _emit_start(self, role: str, process: ProcessId, node: int | None = None) -> None:
        pid, ticks = process.pid, process.start_ticks
        self._emitter.emit(ProcessStarted(role=role, started_pid=pid, start_ticks=ticks, started_node=node))

    def _emit_exit(self, role: str, process: ProcessId, code: int, node: int | None = None) -> None:
        self._emitter.emit(ProcessExited(role=role, exited_pid=process.pid, exit=code, exited_node=node))
