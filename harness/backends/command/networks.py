"""Separate networks for the ranks of a command, and the checks before their links are changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos.errors import EnvironmentFailure, InjectionError, TargetNotFound
from chaos.faults.base import End, OwnedProcess
from chaos.host import inherited, python_module
from harness.network.links import NamespaceLinks
from harness.network.plan import HeldNetworks, Networks
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

MAKE_TIMEOUT_SECONDS = 30.0
_MAX_BYTES = 1 << 20


class CommandNetworks:
    """The networks of one command, which becomes what it is only when it is let go; see `harness.network.command`.

    A context in which the process is started with `prefix` before its command, and with `descriptors`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told_reader, self._told_writer = os.pipe()
        self._go_reader, self._go_writer = os.pipe()
        self._open = {self._told_reader, self._told_writer, self._go_reader, self._go_writer}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(*(self._open if kind is not None else self._open - {self._go_writer}))

    @property
    def descriptors(self) -> tuple[int, int]:
        """What the process inherits."""
        return self._told_writer, self._go_reader

    def prefix(self) -> list[str]:
        """The words before the command."""
        open_files = inherited.open_file_limits()[0]
        numbers = (os.getpid(), self._cluster.nodes, self._cluster.num_ranks, *self.descriptors, open_files)
        return python_module.command("harness.network.command", *map(str, numbers))

    async def wait_for(self, process: asyncio.subprocess.Process, log: Path) -> HeldNetworks:
        """Wait until the networks are made; `log` has what `process` says.

        Raises:
            EnvironmentFailure: they cannot be made.
        """
        self._close(self._told_writer)
        told = asyncio.get_running_loop().run_in_executor(None, os.read, self._told_reader, _MAX_BYTES)
        try:
            text = await asyncio.wait_for(told, MAKE_TIMEOUT_SECONDS)
        except TimeoutError:
            process.kill()
            raise EnvironmentFailure(f"networks were not made within {MAKE_TIMEOUT_SECONDS:g} s; see {log}") from None
        if not text:
            raise EnvironmentFailure(f"the command's networks cannot be made; see {log}")
        return HeldNetworks(ProcessId.of(process.pid), Networks.from_text(text.decode()))

    def let_go(self) -> None:
        """Let the command begin."""
        with suppress(BrokenPipeError):
            os.write(self._go_writer, b".")
        self.close()

    def close(self) -> None:
        """A command that has not begun by now ends."""
        self._close(*self._open)

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            self._open.discard(descriptor)
            os.close(descriptor)


class CommandLinks(NamespaceLinks):
    """As `NamespaceLinks`, of ranks that somebody else starts: each must be seen to be in its network."""

    def __init__(self, held: HeldNetworks, processes_of: Callable[[tuple[int, ...]], tuple[OwnedProcess, ...]]) -> None:
        # Nobody else's rules are in networks that were made for one command.
        super().__init__(held, "command")
        self._processes_of = processes_of

    def plan_rules(self, links: tuple[tuple[End, End], ...], rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See `NamespaceLinks.plan_rules`.

        Raises:
            TargetNotFound: a rank has not reported, or is gone.
            InjectionError: a rank is not in its network, so that nothing that is done there touches it.
        """
        for rank in sorted({end for link in links for end in link if isinstance(end, int)}):
            self._check(rank)
        return super().plan_rules(links, rule)

    def _check(self, rank: int) -> None:
        (owned,) = self._processes_of((rank,)) or (None,)
        try:
            if owned is None or not owned.process.is_running():
                raise TargetNotFound(Reason("rank_gone", rank=rank))
            own = Path(f"/proc/{self._held.holder.local_pid}/fd/{self._held.networks.of(rank).descriptor}").stat()
            is_inside = Path(f"/proc/{owned.process.local_pid}/ns/net").stat().st_ino == own.st_ino
        except (OSError, KeyError) as error:
            raise TargetNotFound(Reason("network_not_found", rank=rank, error=error)) from error
        if not is_inside:
            raise InjectionError(Reason("not_in_network", rank=rank, pid=owned.process.pid))
