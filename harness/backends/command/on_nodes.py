"""External jobs on separate nodes: the command is started once on each; environment variables name its node."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from chaos.experiment.command_job import CommandConfig
from chaos.faults.base import LauncherLeft, LinkHost, OwnedProcess
from chaos.host.run_files import JOB_LOG, job_log_of
from harness.analysis.job_failures import job_failed
from harness.backends.command.run import CommandRun
from harness.control.control_server import ControlServer
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import Warned
from mecefo_runtime.system.wire import Message

KILLED = -9


class CommandNodes(Protocol):
    """The nodes that the command is started on; see `harness.backends.nodes.Nodes`."""

    @property
    def where(self) -> str:
        """The place of a process that runs on one of them, in messages."""
        ...

    @property
    def links(self) -> LinkHost | None:
        """What changes the links between them."""
        ...

    async def fork(self, order: Mapping[str, Any]) -> ProcessId:
        """Have it started on a node."""
        ...

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes that end with `nodes`, without those that were ordered."""
        ...

    def own_processes(self) -> Collection[ProcessId]:
        """The processes that belong to no job."""
        ...

    def hint(self, log: Path, folder: Path, code: int) -> str | None:
        """What may have been in the way of a command that failed."""
        ...


def job_logs(logs: Path, num_nodes: int) -> dict[int, Path]:
    """The file in the folder `logs` that takes what the command prints, by node."""
    names = [JOB_LOG] if num_nodes == 1 else [job_log_of(node) for node in range(num_nodes)]
    return {node: logs / name for node, name in enumerate(names)}


class CommandOnNodes(CommandRun):
    """One command, with the `environments` of its starts, by node. All that it started ends with its node."""

    _has_hosts: ClassVar[bool] = True

    def __init__(
        self,
        nodes: CommandNodes,
        control: ControlServer,
        name: str,
        job: CommandConfig,
        run_id: str,
        environments: Mapping[int, Mapping[str, str]],
        logs: Path,
        emitter: Emitter,
    ) -> None:
        super().__init__(control, name, job, run_id, job_logs(logs, job.nodes), emitter)
        self._nodes = nodes
        self._environments = environments
        self._has_warned = False
        self._early_exits: dict[ProcessId, int] = {}
        self.links = nodes.links

    async def start(self) -> None:
        """Start the command on all nodes at once.

        Raises:
            EnvironmentFailure: a node is not there any more.
        """
        self._control.on_agent, self._control.on_launch = self.on_agent, self.on_launch
        await asyncio.gather(*(self._start_on(node) for node in self._logs))
        self._follow()

    async def _start_again(self) -> None:
        """See `CommandRun`."""
        await asyncio.gather(*(self._start_on(node) for node in self._logs))

    async def _start_on(self, node: int) -> None:
        process = await self._nodes.fork(
            {
                "command": "command",
                "job": self.name,
                "node": node,
                "log": self._logs[node].stem,
                "words": list(self._job.command),
                "folder": str(folder_of(self._job)),
                "environment": dict(self._environments[node]),
                "where": self._nodes.where,
            }
        )
        self._has_begun(node, process)
        if (code := self._early_exits.pop(process, None)) is not None:
            self._has_ended(node, code)

    def on_exit(self, process: ProcessId, code: int) -> None:
        """A process that was started for this job is gone, perhaps before whoever had it started has heard of it."""
        node = next((node for node, owned in self._launchers.items() if owned.process == process), None)
        if node is None:
            self._early_exits[process] = code
        else:
            self._has_ended(node, code)

    def on_unobserved(self, process: ProcessId) -> None:
        """Whether the command still runs on a node is not known, nor will be."""
        for node, owned in self._launchers.items():
            if owned.process == process:
                self._lose_sight(node)
                return

    def on_agent(self, hello: Message, process: ProcessId) -> int:
        """See `CommandRun.on_agent`.

        Says so when a rank is on another node than targets count on; two at once on two nodes end the job.
        """
        rank, node, cluster = int(hello["rank"]), int(hello["node"]), self._job.cluster()
        already = self._attempts.ranks.get(rank)
        # A launcher that starts its ranks again may do that on another node, and counts it.
        is_first = already is not None and already.node != node and int(hello["attempt"]) == 1
        if already is not None and is_first and self._table.is_running(already.process):
            sentence = _not_one_job(rank, (int(already.node or 0), node))
            self._fail(job_failed(Reason("command_failed", sentence=sentence)))
        is_as_planned = rank >= cluster.num_ranks or cluster.node_of(rank) == node
        if not is_as_planned and not self._has_warned:
            self._has_warned = True
            message = (
                f"rank {rank} is on node {node}, and the plan expected node {cluster.node_of(rank)}: a fault "
                "of a node hits the ranks that are on it, and one of a link the nodes that the plan expected"
            )
            self._emitter.emit(Warned(message=message))
        return super().on_agent(hello, process)

    def _hint(self, node: int) -> str:
        may_be = self._nodes.hint(self._logs[node], folder_of(self._job), self._codes[node])
        return f". {may_be[0].upper()}{may_be[1:]}" if may_be else ""

    def _own_processes(self) -> list[ProcessId]:
        """Without those of the nodes themselves, which carry the mark too."""
        of_nodes = self._nodes.own_processes()
        return [process for process in super()._own_processes() if process not in of_nodes]

    def _start_setting(self, name: str) -> str | None:
        return self._environments[min(self._environments)].get(name)

    def _launchers_on(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """Whatever the command's own process is, it ends with its node."""
        return tuple(owned for node, owned in self._launchers.items() if node in nodes)

    def launchers_left(self, nodes: tuple[int, ...]) -> tuple[LauncherLeft, ...]:
        """None: nothing of a node outlives it."""
        return ()

    def _hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return self._nodes.node_hosts(nodes)

    def _where(self, process: ProcessId, hello: Message) -> tuple[int, int]:
        """By the pid that the rank has there: in a container, pids count from 1."""
        return int(hello["node"]), int(hello["pid"])

    async def _bury(self) -> None:
        # A node that was stopped as a whole reports no exits.
        for node, owned in list(self._launchers.items()):
            if not self._table.is_running(owned.process):
                self._has_ended(node, KILLED)
        if self._waiting is not None and self._are_over.is_set():
            await self._waiting


def _not_one_job(rank: int, nodes: tuple[int, int]) -> str:
    return (
        f"nodes {min(nodes)} and {max(nodes)} both have a rank {rank}: the command trains on each node by itself, and "
        "not as one job. Plain `python` is a job of one node: leave --nodes out. For a job of several, start it by "
        "torchrun, or by a launcher that is told by $PET_NODE_RANK, $PET_MASTER_ADDR and $PET_MASTER_PORT "
        "(docs/how-to/containers.md)"
    )


def folder_of(job: CommandConfig) -> Path:
    """Where the command runs: as it was said, since links on the way are the user's, and without `..`."""
    folder = Path(job.folder or ".").absolute()
    return folder.resolve() if ".." in folder.parts else folder
