"""Where and what: nodes on which processes can be started, and the jobs of either kind that run on them."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from chaos.errors import EnvironmentFailure
from chaos.experiment.command_job import CommandConfig
from chaos.faults.base import LinkHost, OwnedProcess
from chaos.host.join_network import NCCL_LOG_VARIABLE
from chaos.host.run_processes import RUN_VARIABLE
from harness.backends.base import AnyConfig, BackendSetup, OnThisHost
from harness.backends.command.on_nodes import CommandOnNodes
from harness.backends.command.start import agent_environment, node_environment
from harness.backends.node_job import NodeJob, with_agent
from harness.control.control_server import ControlServer
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.run_records import Warned
from mecefo_runtime.system.wire import LOOPBACK

# What ranks and the coordinator import when they first need it: seconds, were every one of them to do so.
_CHECKPOINT_MODULES = ("mecefo_runtime.checkpoint.checkpoint", "mecefo_runtime.checkpoint.writer")
_METRICS_MODULES = ("mecefo_runtime.system.metrics_server", "prometheus_client.core")


class NodesListener(Protocol):
    """Gets what happens on nodes: the backend that runs jobs on them."""

    def on_exit(self, process: ProcessId, code: int) -> None:
        """A process that was started by an order has ended."""
        ...

    def on_unobserved(self, process: ProcessId) -> None:
        """Whether a process that was started by an order still runs is not known, nor will be."""
        ...

    def on_lost(self, loss: EnvironmentFailure) -> None:
        """No process can be started any more, and those that ran may be gone."""
        ...

    def on_out_of_memory(self, message: str) -> None:
        """The kernel ended a process of a node for want of memory."""
        ...


class Nodes(ABC):
    """Where jobs run: nodes on which processes are started by orders (`forkserver`), whatever kind of job they are of.

    For `may_outlive` and `can_run_beside` see `Backend`.
    """

    may_outlive: bool = True
    can_run_beside: bool = False
    where: str = "on its node"
    """The place of a process that runs on a node, in messages."""
    links: LinkHost | None = None
    """What changes the links between the nodes, after `open`; None: nothing can."""

    @abstractmethod
    async def open(self, listener: NodesListener) -> None:
        """Get all nodes ready.

        Raises:
            chaos.errors.EnvironmentFailure: something that is needed is missing.
        """

    @abstractmethod
    async def listen(self, job: str) -> str:
        """Listen for the coordinator of a built-in job where that will be started; returns the address."""

    @abstractmethod
    async def fork(self, order: Mapping[str, Any]) -> ProcessId:
        """Have a process started on the node `order["node"]`; the order for a coordinator names no node.

        A node that is down is started first.

        Raises:
            chaos.errors.EnvironmentFailure: it cannot be.
        """

    @abstractmethod
    def own_processes(self) -> Collection[ProcessId]:
        """The processes that were started for the nodes and belong to no job: fork servers, containers."""

    @abstractmethod
    async def close(self) -> None:
        """End all nodes with whatever runs on them."""

    async def close_links(self) -> None:
        """Change no links any more; called before the jobs are stopped."""
        return

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes that end with `nodes` and were not ordered: their containers."""
        return ()

    def control_address(self, address: str) -> str:
        """Where processes on the nodes reach the control server, which is here at `address`."""
        return address

    def metrics_address(self, wanted: str) -> str:
        """Where ranks serve their metrics if they are to do so at `wanted`; "": nowhere."""
        return wanted

    def address_of(self, node: int) -> str:
        """The address by which the other nodes reach `node`."""
        return LOOPBACK

    def meeting_port(self) -> int:
        """A port of node 0 where the launchers of a command can meet."""
        with socket.create_server((LOOPBACK, 0)) as server:
            return int(server.getsockname()[1])

    def as_seen(self, job: JobConfig) -> JobConfig:
        """The job with its paths as the nodes see them."""
        return job

    def nccl_log(self, job: AnyConfig) -> str:
        """The file for what NCCL reports of its connections, with `{rank}` in it; "": it reports nothing."""
        return ""

    def hint(self, log: Path, folder: Path, code: int) -> str | None:
        """A likely cause why a command failed that ran in `folder` and ended with `code`, also from its `log`."""
        return None


class JobsOnNodes(OnThisHost):
    """The backend that runs jobs of either kind on `nodes`; see `Backend`.

    `token` is the run's, `logs` takes the output of every process. `ranks_metrics` is the main job's MECEFO_METRICS.
    """

    _command: ClassVar[type[CommandOnNodes]] = CommandOnNodes

    def __init__(
        self,
        nodes: Nodes,
        control: ControlServer,
        token: str,
        logs: Path,
        emitter: Emitter,
        ranks_metrics: str = "",
    ) -> None:
        self._nodes = nodes
        self._control = control
        self._token = token
        self._logs = logs
        self._emitter = emitter
        self._ranks_metrics = nodes.metrics_address(ranks_metrics) if ranks_metrics else ""
        self.may_outlive = nodes.may_outlive
        self.can_run_beside = nodes.can_run_beside
        self.jobs: list[NodeJob | CommandOnNodes] = []

    @classmethod
    def of(cls, run: BackendSetup, nodes: Nodes) -> JobsOnNodes:
        """The backend of `run` on `nodes`."""
        return cls(nodes, run.control, run.token, run.logs, run.emitter, run.ranks_metrics)

    async def open(self) -> None:
        """Get all nodes ready."""
        await self._nodes.open(self)

    async def prepare_job(self, name: str, job: AnyConfig, *, with_agents: bool) -> NodeJob | CommandOnNodes:
        """Prepare a job without starting it, so that the injector can get ready first."""
        running = (
            self._prepare_command(name, job, with_agents=with_agents)
            if isinstance(job, CommandConfig)
            else await self._prepare_built_in(name, job, with_agents=with_agents)
        )
        self.jobs.append(running)
        return running

    def _prepare_command(self, name: str, job: CommandConfig, *, with_agents: bool) -> CommandOnNodes:
        nodes, events = self._nodes, self._nodes.control_address(self._control.address)
        shared = agent_environment(events) if with_agents else {}
        if log := nodes.nccl_log(job):
            shared[NCCL_LOG_VARIABLE] = log
        port, numbers = nodes.meeting_port(), range(job.cluster().nodes)
        addresses = {f"node-{node}": nodes.address_of(node) for node in numbers}
        environments = {node: {**node_environment(job, node, addresses, port), **shared} for node in numbers}
        run_id = os.environ[RUN_VARIABLE]
        return self._command(nodes, self._control, name, job, run_id, environments, self._logs, self._emitter)

    async def _prepare_built_in(self, name: str, job: JobConfig, *, with_agents: bool) -> NodeJob:
        nodes = self._nodes
        environment = RankEnvironment(
            nodes.as_seen(job),
            name,
            await nodes.listen(name),
            self._token,
            nodes.control_address(self._control.address),
            metrics=self._ranks_metrics if with_agents else "",
            nccl_log=nodes.nccl_log(job),
        )
        variables = with_agent(environment) if with_agents else environment.variables()
        return NodeJob(nodes, self._control, name, job, variables, self._logs, self._emitter, nodes.links)

    async def close(self) -> None:
        """Stop what runs, then the nodes."""
        await self._nodes.close_links()
        for job in self.jobs:
            await job.stop()
        await self._nodes.close()

    # ---- reports of the nodes ----

    def on_exit(self, process: ProcessId, code: int) -> None:
        """See `NodesListener`."""
        for job in self.jobs:
            job.on_exit(process, code)

    def on_unobserved(self, process: ProcessId) -> None:
        """See `NodesListener`."""
        for job in self.jobs:
            if isinstance(job, CommandOnNodes):
                job.on_unobserved(process)

    def on_lost(self, loss: EnvironmentFailure) -> None:
        """See `NodesListener`."""
        for job in self.jobs:
            job.on_backend_lost(loss)

    def on_out_of_memory(self, message: str) -> None:
        """See `NodesListener`."""
        self._emitter.emit(Warned(message=message))
        for job in self.jobs:
            job.on_out_of_memory(EnvironmentFailure(message))


def loaded_for(job: AnyConfig, *, has_metrics: bool = False) -> tuple[str, ...]:
    """The text and the modules that a fork server loads before it forks ranks of `job`; none for a command."""
    if job.traits.is_user_script:
        return ()
    checkpoints = () if job.checkpoint is None else _CHECKPOINT_MODULES
    return (job.data or "", *checkpoints, *(_METRICS_MODULES if has_metrics else ()))
