"""One container of a run: its start, its orders over the control server, and its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import EnvironmentFailure
from harness.backends.orders import Orders
from harness.control.pid_namespaces import HostPids
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import encode

if TYPE_CHECKING:
    from docker.models.containers import Container

# Importing torch takes seconds, and many times that where many containers do it at once on few cores.
START_TIMEOUT_SECONDS = 300.0
# Longer than a holder waits for what it starts (`harness.backends.docker.holder`).
ASK_TIMEOUT_SECONDS = 45.0
_LOG_TAIL_BYTES = 2048


class NodeContainer(Orders):
    """A container whose first process starts others on command (`harness.backends.docker.container`).

    `on_exit` is called with each process that it started and its exit code; when the container ends, once more for
    each that had not ended before, with the code of SIGKILL, which is what the kernel does to them. Then `on_end` is,
    with the container's name.
    """

    def __init__(
        self,
        name: str,
        container: Container,
        log: Path,
        outside: HostPids,
        on_exit: Callable[[ProcessId, int], None],
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(on_exit, START_TIMEOUT_SECONDS)
        self.name = name
        self.container = container
        self._log = log
        self._host_pids = outside
        self._on_container_end = on_end
        self._writer: asyncio.StreamWriter | None = None
        self._peer_pid = 0
        self._running: set[ProcessId] = set()
        self._descriptor: int | None = None
        self._process = ProcessId(0, 0)

    def reload(self) -> None:
        """Ask the engine how it is; blocks."""
        self.container.reload()

    def watch(self) -> None:
        """From its start on: learn from the kernel when its first process ends.

        Raises:
            EnvironmentFailure: it has ended already.
        """
        pid = int(self.container.attrs["State"]["Pid"])
        try:
            self._process = ProcessId.of(pid)
            self._descriptor = os.pidfd_open(pid)
        except (OSError, ValueError) as error:
            raise self._failure("ended immediately") from error
        # It may have reported already, where the engine was slow to say that it runs.
        self._owe("report")
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    @property
    def process(self) -> ProcessId:
        """Its first process, by the pid that it has out here."""
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether its first process has not ended."""
        return self._descriptor is not None

    async def serve(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Its first process has reported; until it hangs up."""
        self._peer_pid, self._writer = pid, writer
        self._settle("report", None)
        while line := await reader.readline():
            self._on_reply(json.loads(line))

    async def ready(self) -> None:
        """Until it takes orders.

        Raises:
            EnvironmentFailure: it ended, or did not get there in time.
        """
        self._owe("ready")
        await self._answer("report")
        await self._answer("ready")

    async def ask_holder(self, question: Mapping[str, Any], timeout_seconds: float) -> Mapping[str, Any]:
        """Ask the holder of a network (see `holder`), which has so long, and some more, to answer."""
        self._num_orders += 1
        number = self._num_orders
        answer: Mapping[str, Any] = await self.ask(
            {**question, "id": number}, f"answer {number}", timeout_seconds + ASK_TIMEOUT_SECONDS
        )
        return answer

    def forget(self) -> None:
        """Stop watching."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _process_of(self, reply: Mapping[str, Any]) -> ProcessId:
        return ProcessId(self._host_pids.of(self._peer_pid, int(reply["pid"])), int(reply["start_ticks"]))

    def _on_reply(self, reply: Mapping[str, Any]) -> None:
        if reply["reply"] == "answer":
            self._settle(f"answer {reply['id']}", reply)
        else:
            super()._on_reply(reply)

    def _has_started(self, process: ProcessId) -> None:
        self._running.add(process)

    def _has_exited(self, process: ProcessId) -> None:
        self._running.discard(process)

    def _send(self, order: Mapping[str, Any]) -> None:
        if self._writer is None or not self.is_running:
            raise self._failure("has ended")
        self._writer.write(encode(dict(order)))

    def _on_end(self) -> None:
        self.forget()
        self._fail_all(self._failure("has ended"))
        for process in self._running:
            self._on_exit(process, -9)
        self._running.clear()
        self._on_container_end(self.name)

    def _failure(self, what: str) -> EnvironmentFailure:
        try:
            said = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        except OSError:
            said = []
        last = f": {said[-1]}" if said else ""
        return EnvironmentFailure(f"container {self.name}: it {what}{last}; see {self._log}")
