"""The backend of a command that starts its ranks on other hosts by itself, such as `srun torchrun train.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from harness.backends.base import BackendSetup
from harness.backends.cluster.hosts import HostsOfRun, OnHosts
from harness.backends.command.backend import CommandBackend, LocalCommand


class ClusterBackend(OnHosts, CommandBackend):
    """The command runs on this host, and its ranks on `hosts`, each of which is a node."""

    def __init__(self, run: BackendSetup, hosts: HostsOfRun) -> None:
        super().__init__(run.control, run.logs, run.emitter)
        self._hosts = hosts

    @property
    def hosts(self) -> HostsOfRun:
        """See `Backend`."""
        return self._hosts

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
        self._cluster = hosts
        self._table = hosts.table
        self.links = hosts.attend(self._job, lambda: self._attempts.ranks)

    def _tells_of_killed(self, code: int) -> bool:
        """Of srun (22.05, 24.11): the largest exit code of all tasks, so that of a launcher that was killed."""
        is_srun = Path(self._job.command[0]).name == "srun"
        return is_srun and code in _KILLED_CODES

    async def _kill_elsewhere(self) -> tuple[int, ...]:
        return await self._cluster.end_processes()
