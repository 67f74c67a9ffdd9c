"""What is known of the processes of a job: on this host from /proc, of other hosts what their agents have reported."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.host.process_table import ancestors_of, parent_of
from harness.node.exits import exit_of
from harness.node.processes_by_env import environment_of
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.process import ProcessId

# What an agent reports of an environment: launchers' variables and ours. Others may hold secrets.
_PREFIXES = ("CHAOS_", "TORCHELASTIC_", "GROUP_", "LOCAL_", "ROLE_", "PMI_", "OMPI_COMM_WORLD_", "TORCHFT_")
_NAMES = frozenset(
    ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", "SLURM_PROCID")
)


@dataclass(frozen=True, slots=True)
class ReportedProcess:
    """A process as the agent of its host reports it: pid and start time, and those of its ancestors, parent first."""

    pid: int
    start_ticks: int
    environment: Mapping[str, str] = field(default_factory=dict)
    ancestors: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, process: ProcessId) -> ReportedProcess:
        """What can be seen of a process of this host."""
        environment = environment_of(process.local_pid)
        shown = {name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)}
        ancestors = tuple((one.pid, one.start_ticks) for one in ancestors_of(process))
        return cls(process.pid, process.start_ticks, shown, ancestors)

    @classmethod
    def from_json(cls, values: Any) -> ReportedProcess:
        """Read what an agent has sent.

        Raises:
            mecefo_runtime.system.json_values.JsonTypeError: it is something else.
        """
        return from_json(cls, values)

    def to_json(self) -> Any:
        """As plain JSON values."""
        return to_json(self)


class ProcessTable:
    """The processes of this host."""

    def environment(self, process: ProcessId) -> Mapping[str, str]:
        """The environment with which it was started; of another host's, what its agent reported of it."""
        return environment_of(process.local_pid)

    def ancestors(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """The processes above it, its parent first."""
        return tuple(ancestors_of(process))

    def parent(self, process: ProcessId) -> ProcessId | None:
        """The process that started it, or has adopted it since; None when either is gone."""
        return parent_of(process)

    def is_running(self, process: ProcessId) -> bool:
        """Whether it runs, as far as is known."""
        return process.is_running()

    async def exit(self, process: ProcessId) -> int | None:
        """Wait for its end; returns its exit code, negative for a signal, None where it is not known."""
        return await exit_of(process)


class ProcessesOfHosts(ProcessTable):
    """The processes of this host, and those that the agents of others report."""

    def __init__(self) -> None:
        self._reported: dict[ProcessId, ReportedProcess] = {}
        self._exits: dict[ProcessId, asyncio.Future[int | None]] = {}

    def learn(self, host: Host, told: ReportedProcess) -> ProcessId:
        """An agent has reported a process of its `host`, which runs."""
        process = ProcessId(told.pid, told.start_ticks, host)
        self._reported[process] = told
        self._exits.setdefault(process, asyncio.get_running_loop().create_future())
        return process

    def has_ended(self, process: ProcessId, code: int | None) -> None:
        """An agent has reported its end."""
        known = self._exits.get(process)
        if known is not None and not known.done():
            known.set_result(code)

    def lose(self, host: Host) -> None:
        """The agent of `host` is gone: whether and how its processes end will not be known; who waits is cancelled."""
        for process, end in self._exits.items():
            if process.host == host:
                end.cancel()

    def environment(self, process: ProcessId) -> Mapping[str, str]:
        """See `ProcessTable`."""
        if process.is_here:
            return super().environment(process)
        told = self._reported.get(process)
        return {} if told is None else told.environment

    def ancestors(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """See `ProcessTable`."""
        if process.is_here:
            return super().ancestors(process)
        told = self._reported.get(process)
        above = () if told is None else told.ancestors
        return tuple(ProcessId(pid, start_ticks, process.host) for pid, start_ticks in above)

    def parent(self, process: ProcessId) -> ProcessId | None:
        """See `ProcessTable`."""
        return super().parent(process) if process.is_here else next(iter(self.ancestors(process)), None)

    def is_running(self, process: ProcessId) -> bool:
        """See `ProcessTable`."""
        if process.is_here:
            return super().is_running(process)
        known = self._exits.get(process)
        return known is not None and not known.done()

    async def exit(self, process: ProcessId) -> int | None:
        """See `ProcessTable`."""
        if process.is_here:
            return await super().exit(process)
        known = self._exits.get(process)
        return None if known is None else await asyncio.shield(known)
