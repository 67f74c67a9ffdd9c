"""Starts a command once on each of several hosts: by the agent there, and on the tool's own host by the tool."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from chaos.errors import EnvironmentFailure
from chaos.host import inherited
from chaos.host.run_processes import RUN_VARIABLE
from harness.backends.cluster.hosts import HostsOfRun, OnHosts
from harness.backends.command.on_nodes import CommandOnNodes
from harness.backends.command.start import with_site
from harness.backends.nodes import JobsOnNodes, Nodes, NodesListener
from harness.node.commands import Child
from mecefo_runtime.system.process import ProcessId

# Of the environment here what is about this host, this login or this terminal: the hosts have their own.
_OF_THIS_HOST = re.compile(
    r"(SSH|XDG|DBUS|SLURM|LC|GPG|KRB5)_\w+|_|DISPLAY|HOME|HOSTNAME|LANG|LOGNAME|MAIL|OLDPWD|PWD|SHELL|SHLVL|TERM|TMPDIR|"
    r"USER|XAUTHORITY|CHAOS_CLOCK|CHAOS_STATE"
)
# Where the launchers of a job meet on node 0; the process groups of a plain script meet on the next port. Below those
# that kernels give away by themselves.
_PORTS = range(20000, 30000, 2)


class HostNodes(Nodes):
    """Nodes that are `hosts`; what the command prints on each goes into a file in `logs` here."""

    where = "on its host"

    def __init__(self, hosts: HostsOfRun, logs: Path) -> None:
        self.hosts = hosts
        self._logs = logs
        self._listener: NodesListener | None = None
        self._reaping: set[asyncio.Task[None]] = set()

    async def open(self, listener: NodesListener) -> None:
        """See `Nodes`."""
        self._listener = listener
        self.hosts.on_command_ended = listener.on_exit
        self.hosts.on_command_lost = listener.on_unobserved
        await self.hosts.open()

    async def listen(self, job: str) -> str:
        """See `Nodes`: it is refused before the start."""
        raise EnvironmentFailure("the built-in job runs on one machine")

    async def fork(self, order: Mapping[str, Any]) -> ProcessId:
        """See `Nodes`."""
        node, log = int(order["node"]), self._logs / f"{order['log']}.log"
        shared = {name: value for name, value in os.environ.items() if not _OF_THIS_HOST.fullmatch(name)}
        environment = with_site({**shared, **order["environment"], RUN_VARIABLE: os.environ[RUN_VARIABLE]})
        agent = self.hosts.agent_of(node)
        if agent is None:
            return await self._start_here(order, environment, log)
        return await agent.start_command(order["words"], order["folder"], environment, log)

    async def _start_here(self, order: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> ProcessId:
        try:
            with log.open("ab") as output:
                child = Child(order["words"], order["folder"], environment, output)
        except OSError as error:
            raise EnvironmentFailure(f"the command cannot be started: {inherited.why(error)}") from error
        task = asyncio.create_task(self._reap(child))
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)
        return child.process

    async def _reap(self, child: Child) -> None:
        code = await child.ended()
        assert self._listener is not None
        self._listener.on_exit(child.process, code)

    def own_processes(self) -> Collection[ProcessId]:
        """See `Nodes`: the agents bear no mark of the run."""
        return ()

    def control_address(self, address: str) -> str:
        """See `Nodes`."""
        return self.hosts.address

    def address_of(self, node: int) -> str:
        """See `Nodes`: the name by which the user knows the host, without that of a user."""
        return self.hosts.name_of(node).rpartition("@")[2]

    def meeting_port(self) -> int:
        """See `Nodes`."""
        return random.Random(os.environ[RUN_VARIABLE]).choice(_PORTS)

    async def close(self) -> None:
        """See `Nodes`; the agents end with their executors."""
        self.hosts.close()


class CommandOnHosts(CommandOnNodes):
    """One command, started once on each host."""

    def __init__(self, nodes: HostNodes, *arguments: Any) -> None:
        super().__init__(nodes, *arguments)
        self._cluster = nodes.hosts
        self._table = nodes.hosts.table
        self.links = nodes.hosts.attend(self._job, lambda: self._attempts.ranks)

    def _ask_to_end(self, launcher: ProcessId) -> None:
        if launcher.is_here:
            super()._ask_to_end(launcher)
        for agent in self._cluster.agents:
            agent.signal(launcher, signal.SIGTERM)

    async def _kill_elsewhere(self) -> tuple[int, ...]:
        return await self._cluster.end_processes()


class JobsOnHosts(OnHosts, JobsOnNodes):
    """The backend of a command that is started on each host; see `Backend`."""

    _nodes: HostNodes
    _command: ClassVar[type[CommandOnNodes]] = CommandOnHosts

    @property
    def hosts(self) -> HostsOfRun:
        """See `Backend`."""
        return self._nodes.hosts
