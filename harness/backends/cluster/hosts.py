"""The agents of a run, one for each host but the tool's own, which needs none."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from chaos.errors import EnvironmentFailure
from chaos.experiment.command_job import CommandConfig
from chaos.faults.base import OwnedProcess
from chaos.host.run_processes import RUN_VARIABLE
from chaos.injection.stream import Open
from harness.backends.base import BackendSetup, HostExecutor, OnThisHost, checkpoint_folders
from harness.backends.cluster.engine import Engine, is_same_host
from harness.backends.cluster.host_agent import HostAgent, RunOfHosts
from harness.network.connection_links import ConnectionLinks
from harness.node.facts import addresses
from harness.node.messages import Addresses
from harness.node.places import place_text
from harness.node.process_table import ProcessesOfHosts
from harness.node.socket_folder import RANK_SOCKET, SocketFolder
from mecefo_runtime.system.host import this_host
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import UNIX


class HostsOfRun:
    """The hosts of `engine`, of which node 0 is the first. `ends_processes`: see `chaos.injection.stream.Open`.

    `own` is the node that the tool's own host is, None where it is none of the job's.
    """

    def __init__(self, engine: Engine, run: BackendSetup) -> None:
        self._engine = engine
        self._setup = run
        self.hosts = engine.hosts
        own = this_host().name
        self.own = next((node for node, host in enumerate(self.hosts) if is_same_host(host, own)), None)
        self.table = ProcessesOfHosts()
        self.agents: list[HostAgent] = []
        self._sockets: SocketFolder | None = None
        # Of each host, by its name and boot.
        self._addresses: dict[str, tuple[str, ...]] = {}
        # The newest process of each rank of the job that runs.
        self._ranks: Callable[[], Mapping[int, OwnedProcess]] = dict
        self.on_command_lost: Callable[[ProcessId], None] = lambda process: None
        self.on_command_ended: Callable[[ProcessId, int], None] = lambda process, code: None

    @property
    def address(self) -> str:
        """Where the processes of the job report, on every host."""
        assert self._sockets is not None
        return f"{UNIX}{self._sockets.path(RANK_SOCKET)}"

    async def open(self) -> None:
        """Start all agents, and listen on this host.

        Raises:
            EnvironmentFailure: one of them cannot be started; the others are ended.
        """
        run_id = os.environ[RUN_VARIABLE]
        sockets = SocketFolder(run_id)
        try:
            sockets.make()
            self._sockets = sockets
            await self._setup.control.also_listen(sockets.path(RANK_SOCKET), self.own)
        except OSError as error:
            raise EnvironmentFailure(f"cannot listen in {sockets.folder}: {error}") from error
        shared = RunOfHosts(
            run_id,
            self._engine,
            self._setup.control,
            self.table,
            self._setup.folder,
            self._setup.logs,
            self._setup.emitter,
            self._opening(run_id),
            lambda process, code: self.on_command_ended(process, code),
            lambda process: self.on_command_lost(process),
            self._tell_addresses,
            self._on_refused,
        )
        self.agents = [HostAgent(host, node, shared) for node, host in enumerate(self.hosts) if node != self.own]
        starts = await asyncio.gather(*(agent.start() for agent in self.agents), return_exceptions=True)
        for failure in starts:
            if isinstance(failure, BaseException):
                raise failure
        self._tell_addresses()

    def _tell_addresses(self) -> None:
        """All hosts learn the addresses of all, also of one that is back."""
        told = {place_text(agent.name): agent.addresses for agent in self.agents if agent.is_known}
        self._addresses = {**told, place_text(this_host()): addresses()}
        for agent in self.agents:
            agent.tell(Addresses(self._addresses))

    def attend(self, job: CommandConfig, ranks: Callable[[], Mapping[int, OwnedProcess]]) -> ConnectionLinks:
        """`job` begins, and `ranks` gives the newest process of each of its ranks.

        Returns the links between this host and the others, at this end of them.
        """
        self._ranks = ranks

        def here() -> dict[int, ProcessId]:
            return {rank: owned.process for rank, owned in ranks().items() if owned.process.is_here}

        def addresses_of(rank: int) -> tuple[str, ...]:
            owned = ranks().get(rank)
            return () if owned is None else self._addresses.get(place_text(owned.process.host), ())

        numbers = range(job.cluster().num_ranks)
        run = os.environ[RUN_VARIABLE]
        return ConnectionLinks(run, ranks=numbers, here=here, processes=here, addresses=addresses_of)

    def _opening(self, run_id: str) -> Open:
        job = self._setup.job
        folders = tuple(str(one) for one in checkpoint_folders(job))
        checkpoint = job.checkpoint.folder if job.checkpoint is not None else None
        return Open(
            run_id,
            host="",
            folder="",
            logs="",
            folders=folders,
            checkpoint_folder=checkpoint or None,
            keeps_own_checkpoints=job.traits.keeps_own_checkpoints,
            cluster=job.cluster(),
            ends_processes=self._engine.ends_with_stream,
        )

    def _on_refused(self, uid: int) -> None:
        if self._setup.control.on_refused is not None:
            self._setup.control.on_refused(uid, None)

    @property
    def reach(self) -> tuple[Sequence[str], str]:
        """See `Backend`."""
        return [host for node, host in enumerate(self.hosts) if node != self.own], self._engine.reference

    def agent_of(self, node: int) -> HostAgent | None:
        """The agent of a node; None: it is the tool's own host, or there is no such node."""
        return next((agent for agent in self.agents if agent.node == node), None)

    def name_of(self, node: int) -> str:
        """See `chaos.faults.base.NodeHosts`; a node beyond the last host is on that one."""
        return self.hosts[min(node, len(self.hosts) - 1)]

    def silent_seconds(self, node: int) -> float | None:
        """See `chaos.faults.base.NodeHosts`."""
        agent = self.agent_of(node)
        return None if agent is None else agent.silent_seconds

    def processes_on(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.NodeHosts`."""
        return tuple(owned for owned in self._ranks().values() if owned.node in nodes)

    async def end_processes(self) -> tuple[int, ...]:
        """End all processes of the job on the hosts with agents; returns the pids of those that had to be ended."""
        ended = await asyncio.gather(*(agent.end_processes() for agent in self.agents))
        return tuple(pid for pids in ended for pid in pids)

    def close(self) -> None:
        """Nobody reports on this host any more."""
        if self._sockets is not None:
            self._sockets.remove()


class OnHosts(OnThisHost, ABC):
    """What a backend says of `hosts`, each of which is a node."""

    @property
    @abstractmethod
    def hosts(self) -> HostsOfRun:
        """See `Backend`."""

    @property
    def executors(self) -> Sequence[HostExecutor]:
        """See `Backend`."""
        return self.hosts.agents

    @property
    def reach(self) -> tuple[Sequence[str], str] | None:
        """See `Backend`."""
        return self.hosts.reach

    def host_of(self, node: int) -> str | None:
        """See `Backend`."""
        return None if node == self.hosts.own else self.hosts.name_of(node)
