"""The backend of a command that starts its ranks on other hosts by itself, such as `srun torchrun train.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from chaos.faults.base import NodeHosts
from harness.backends.base import BackendSetup, HostExecutor
from harness.backends.cluster.hosts import HostsOfRun
from harness.backends.command.backend import CommandBackend, LocalCommand


class ClusterBackend(CommandBackend):
    """The command runs on this host, and its ranks on `hosts`, each of which is a node."""

    def __init__(self, run: BackendSetup, hosts: HostsOfRun) -> None:
        super().__init__(run.control, run.logs, run.emitter)
        self._hosts = hosts

    @property
    def executors(self) -> Sequence[HostExecutor]:
        """See `Backend`."""
        return self._hosts.agents

    @property
    def hosts(self) -> NodeHosts:
        """See `Backend`."""
        return self._hosts

    @property
    def reach(self) -> tuple[Sequence[str], str] | None:
        """See `Backend`."""
        return self._hosts.reach

    def host_of(self, node: int) -> str | None:
        """See `Backend`."""
        return None if node == self._hosts.own else self._hosts.host_of(node)

    async def open(self) -> None:
        """Start the agents."""
        await super().open()
        await self._hosts.open()

    def _address(self) -> str:
        return self._hosts.address

    def _command(self, *arguments: Any) -> LocalCommand:
        return ClusterCommand(self._hosts, *arguments)

    async def close(self) -> None:
        """Stop what runs."""
        await super().close()
        self._hosts.close()


# 128 and the signal: SIGKILL, and SIGTERM by which Slurm ends what runs on a host that is lost.
_KILLED_CODES = (137, 143)


class ClusterCommand(LocalCommand):
    """The command on this host, with what it has started on others."""

    _has_hosts: ClassVar[bool] = True

    def __init__(self, hosts: HostsOfRun, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._table = hosts.table
        hosts.ranks = lambda: self._attempts.ranks
        self.links = hosts.links(self._job)
        self._cluster = hosts

    def _tells_of_killed(self, code: int) -> bool:
        """Of srun (22.05, 24.11): the largest exit code of all tasks, so that of a launcher that was killed."""
        is_srun = Path(self._job.command[0]).name == "srun"
        return is_srun and code in _KILLED_CODES

    async def _kill_elsewhere(self) -> tuple[int, ...]:
        return await self._cluster.end_processes()
