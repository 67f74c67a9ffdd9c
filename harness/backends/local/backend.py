"""Local nodes: process groups on this machine, forked from one server that has torch imported.

A node is a supervisor with its ranks in a separate session. Needs neither root nor Docker.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.host import python_module
from chaos.host.links.nccl_transport import LOG_NAME
from harness.backends.base import AnyConfig
from harness.backends.nodes import Nodes, NodesListener
from harness.backends.orders import ForkServerProcess
from harness.network.links import NamespaceLinks, new_mark
from harness.network.plan import HeldNetworks, Networks
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId

FORK_SERVER_LOG = "forkserver.log"


class LocalNodes(Nodes):
    """Nodes on this machine; `logs` takes the output of every process.

    `loaded` is brought into memory once, before anything is forked. Of `networked`, the coordinator, every node and
    every rank get separate networks; None: all share the loopback.
    """

    # Every process dies with its parent, and the first of them with us.
    may_outlive = False

    def __init__(self, logs: Path, loaded: Sequence[str] = ("",), networked: Cluster | None = None) -> None:
        self._logs = logs
        self._loaded = loaded
        self._networked = networked
        # With networks, the ranks of a second job would have the same links.
        self.can_run_beside = networked is None
        self._server: ForkServerProcess | None = None
        self._links: NamespaceLinks | None = None

    async def open(self, listener: NodesListener) -> None:
        """Start the fork server and wait until it has torch."""
        first: tuple[str, ...] = ()
        if (cluster := self._networked) is not None:
            numbers = (os.getpid(), cluster.nodes, cluster.num_ranks)
            first = tuple(python_module.command("harness.network", *map(str, numbers)))
        log = self._logs / FORK_SERVER_LOG
        self._server = ForkServerProcess(log, listener.on_exit, listener.on_lost, self._loaded, first)
        networks = await self._server.start()
        if networks is not None:
            held = HeldNetworks(self._server.process, Networks.from_text(networks))
            self.links = self._links = NamespaceLinks(held, new_mark())

    async def listen(self, job: str) -> str:
        """See `Nodes`."""
        assert self._server is not None
        return await self._server.listen(job)

    async def fork(self, order: Mapping[str, Any]) -> ProcessId:
        """See `Nodes`."""
        assert self._server is not None
        return await self._server.fork({**order, "logs": str(self._logs)})

    async def close_links(self) -> None:
        """End what changes them."""
        if self._links is not None:
            await self._links.close()

    def metrics_address(self, wanted: str) -> str:
        """None in separate networks: no Prometheus could reach them."""
        return wanted if self._networked is None else ""

    def nccl_log(self, job: AnyConfig) -> str:
        """The effect of a rule on a link depends on the transport that NCCL uses."""
        is_watched = self._networked is not None and job.device != "cpu"
        return str(self._logs.resolve() / LOG_NAME) if is_watched else ""

    def own_processes(self) -> Collection[ProcessId]:
        """The fork server."""
        return () if self._server is None else (self._server.process,)

    async def close(self) -> None:
        """End the fork server, and with it all that it started."""
        if self._server is not None:
            await self._server.close()
