"""The local backend: nodes are process groups on this machine, forked from one server that has torch imported.

A node is a supervisor with its ranks in a session of its own. Needs neither root nor Docker.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.faults.base import OwnedProcess
from chaos.host import python_module
from chaos.host.inherited import why
from chaos.host.links.nccl_transport import LOG_NAME
from harness.backends.base import AnyConfig
from harness.backends.node_job import STOP_TIMEOUT_SECONDS, NodeJob, with_agent
from harness.control.control_server import ControlServer
from harness.network.links import NamespaceLinks, new_mark
from harness.network.plan import HeldNetworks, Networks
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import ProcessId

START_TIMEOUT_SECONDS = 120.0
FORK_SERVER_LOG = "forkserver.log"
# What every rank would have to import to serve its metrics.
METRICS_MODULES = ("mecefo_runtime.system.metrics_server", "prometheus_client.core")


class LocalBackend:
    """Starts jobs on this machine; `token` is the run's, `logs` takes the output of every process.

    `modules` are imported once, before anything is forked. Of `networked`, the coordinator, every node and every rank
    get networks of their own; None: all share the loopback. `ranks_metrics` is the main job's MECEFO_METRICS: ranks
    serve none in networks of their own, where nobody could read them.
    """

    # Every process dies with its parent, and the first of them with us.
    may_outlive = False

    def __init__(
        self,
        control: ControlServer,
        token: str,
        logs: Path,
        data: str | None,
        emitter: Emitter,
        modules: Sequence[str] = (),
        networked: Cluster | None = None,
        ranks_metrics: str = "",
    ) -> None:
        self._control = control
        self._token = token
        self._logs = logs
        self._data = data or ""
        self._ranks_metrics = ranks_metrics if networked is None else ""
        self._modules = (*modules, *METRICS_MODULES) if self._ranks_metrics else tuple(modules)
        self._emitter = emitter
        self._networked = networked
        self.has_networks = networked is not None
        # Its ranks would have the same links.
        self.can_run_beside = networked is None
        self._links: NamespaceLinks | None = None
        self._server: asyncio.subprocess.Process | None = None
        self._replies: asyncio.Task[None] | None = None
        # The answers that the fork server owes.
        self._owed: dict[str, asyncio.Future[Any]] = {}
        self._next_id = 0
        self._is_closing = False
        self._loss: EnvironmentFailure | None = None
        self.jobs: list[NodeJob] = []

    async def open(self) -> None:
        """Start the fork server and wait until it has torch."""
        try:
            self._server = await self._start_server()
        except OSError as error:
            raise EnvironmentFailure(f"the fork server cannot be started: {why(error)}") from error
        self._replies = asyncio.create_task(self._read_replies(self._server))
        networks = await self._answer("ready")
        if networks is not None:
            held = HeldNetworks(ProcessId.of(self._server.pid), Networks.from_json(networks))
            self._links = NamespaceLinks(held, new_mark())

    async def _start_server(self) -> asyncio.subprocess.Process:
        first: tuple[str, ...] = ()
        if (cluster := self._networked) is not None:
            numbers = (os.getpid(), cluster.nodes, cluster.num_ranks)
            first = tuple(python_module.command("harness.network", *map(str, numbers)))
        with (self._logs / FORK_SERVER_LOG).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *first,
                *python_module.command("harness.backends.forkserver", str(os.getpid()), self._data, *self._modules),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is ours to handle: it must not reach the ranks.
                start_new_session=True,
            )

    async def prepare_job(self, name: str, job: AnyConfig, *, with_agents: bool) -> NodeJob:
        """Everything but the start: whoever is to hold ranks can get ready in between."""
        assert isinstance(job, JobConfig)
        self.command({"command": "listen", "job": name})
        address: str = await self._answer(f"listening {name}")
        environment = RankEnvironment(job, name, address, self._token, self._control.address)
        if self._networked is not None and job.device != "cpu":
            # What a rule on a link does to NCCL depends on the way that it takes.
            environment = replace(environment, nccl_log=str(self._logs.resolve() / LOG_NAME))
        if with_agents:
            environment = replace(environment, metrics=self._ranks_metrics)
        variables = with_agent(environment) if with_agents else environment.variables()
        running = NodeJob(self, self._control, name, job, variables, self._logs, self._emitter, self._links)
        self.jobs.append(running)
        return running

    async def close(self) -> None:
        """Stop what runs, then the fork server."""
        if self._links is not None:
            await self._links.close()
        for job in self.jobs:
            await job.stop()
        self._is_closing = True
        if self._server is None:
            return
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            await asyncio.wait_for(self._server.wait(), STOP_TIMEOUT_SECONDS)
        except TimeoutError:
            # On a busy machine it may have ended just now.
            with suppress(ProcessLookupError):
                self._server.kill()
            await self._server.wait()
        if self._replies is not None:
            await self._replies

    def command(self, command: Mapping[str, Any]) -> None:
        """Send one command to the fork server."""
        if self._loss is not None:
            raise self._loss
        if self._server is None or self._server.stdin is None or self._server.stdin.is_closing():
            raise EnvironmentFailure("the fork server is not running")
        self._server.stdin.write(json.dumps(command).encode() + b"\n")

    async def fork(self, command: Mapping[str, Any]) -> ProcessId:
        """Have a process started; returns it."""
        self._next_id += 1
        self.command({**command, "id": self._next_id, "logs": str(self._logs)})
        process: ProcessId = await self._answer(f"started {self._next_id}")
        return process

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """None: all nodes share the fork server, which is not theirs."""
        return ()

    async def _answer(self, to: str) -> Any:
        future = self._owed[to] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, START_TIMEOUT_SECONDS)
        except TimeoutError:
            raise EnvironmentFailure(
                f"the fork server did not answer within {START_TIMEOUT_SECONDS:g} s; see {self._logs / FORK_SERVER_LOG}"
            ) from None

    def _settle(self, to: str, answer: object) -> None:
        future = self._owed.pop(to)
        # Whoever waited for it may have been cancelled.
        if not future.done():
            future.set_result(answer)

    async def _read_replies(self, server: asyncio.subprocess.Process) -> None:
        assert server.stdout is not None
        await python_module.has_begun(server.stdout)
        while line := await server.stdout.readline():
            reply = json.loads(line)
            match reply["reply"]:
                case "ready":
                    self._settle("ready", reply["networks"])
                case "listening":
                    self._settle(f"listening {reply['job']}", reply["address"])
                case "started":
                    self._settle(f"started {reply['id']}", ProcessId(reply["pid"], reply["start_ticks"]))
                case "exited":
                    process = ProcessId(reply["pid"], reply["start_ticks"])
                    for job in self.jobs:
                        job.on_exit(process, reply["exit"])
        code = await server.wait()
        if self._is_closing:
            return
        self._loss = loss = EnvironmentFailure(
            f"the fork server ended, and all processes of the run with it (exit code {code}); "
            f"see {self._logs / FORK_SERVER_LOG}"
        )
        for future in self._owed.values():
            if not future.done():
                future.set_exception(loss)
        for job in self.jobs:
            job.on_backend_lost(loss)
