"""One container of a run: its start, its orders over the control server, and its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import EnvironmentFailure
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


class NodeContainer:
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
        self.name = name
        self.container = container
        self._log = log
        self._host_pids = outside
        self._on_exit = on_exit
        self._on_container_end = on_end
        self._writer: asyncio.StreamWriter | None = None
        self._peer_pid = 0
        self._owed: dict[str, asyncio.Future[Any]] = {}
        self._next_id = 0
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
            raise self._failure("it ended immediately") from error
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
            reply = json.loads(line)
            match reply["reply"]:
                case "ready":
                    self._settle("ready", None)
                case "listening":
                    self._settle(f"listening {reply['job']}", reply["address"])
                case "started":
                    process = self._of_reply(reply)
                    self._running.add(process)
                    self._settle(f"started {reply['id']}", process)
                case "answer":
                    self._settle(f"answer {reply['id']}", reply)
                case "exited":
                    process = self._of_reply(reply)
                    self._running.discard(process)
                    self._on_exit(process, int(reply["exit"]))

    async def ready(self) -> None:
        """Until it takes orders.

        Raises:
            EnvironmentFailure: it ended, or did not get there in time.
        """
        self._owe("ready")
        await self._answer("report")
        await self._answer("ready")

    async def listen(self, job: str, port: int) -> str:
        """Have it listen on `port` for a coordinator of `job`; returns the address."""
        self._owe(f"listening {job}")
        self._command({"command": "listen", "job": job, "port": port})
        address: str = await self._answer(f"listening {job}")
        return address

    async def fork(self, command: Mapping[str, Any]) -> ProcessId:
        """Have a process started in it; returns it, by the pid that it has out here."""
        self._next_id += 1
        key = f"started {self._next_id}"
        self._owe(key)
        self._command({**command, "id": self._next_id})
        process: ProcessId = await self._answer(key)
        return process

    async def ask(self, question: Mapping[str, Any], timeout_seconds: float) -> Mapping[str, Any]:
        """Ask the holder of a network (see `holder`), which has so long, and some more, to answer."""
        self._next_id += 1
        key = f"answer {self._next_id}"
        self._owe(key)
        self._command({**question, "id": self._next_id})
        answer: Mapping[str, Any] = await self._answer(key, timeout_seconds + ASK_TIMEOUT_SECONDS)
        return answer

    def forget(self) -> None:
        """Stop watching."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _of_reply(self, reply: Mapping[str, Any]) -> ProcessId:
        return ProcessId(self._host_pids.of(self._peer_pid, int(reply["pid"])), int(reply["start_ticks"]))

    def _command(self, command: Mapping[str, Any]) -> None:
        if self._writer is None or not self.is_running:
            raise self._failure("it has ended")
        self._writer.write(encode(dict(command)))

    def _owe(self, key: str) -> None:
        if key not in self._owed:
            self._owed[key] = asyncio.get_running_loop().create_future()

    async def _answer(self, key: str, timeout_seconds: float = START_TIMEOUT_SECONDS) -> Any:
        try:
            return await asyncio.wait_for(self._owed[key], timeout_seconds)
        except TimeoutError:
            raise self._failure(f"it did not answer within {timeout_seconds:g} s") from None
        finally:
            self._owed.pop(key, None)

    def _settle(self, key: str, answer: object) -> None:
        self._owe(key)
        if not self._owed[key].done():
            self._owed[key].set_result(answer)

    def _on_end(self) -> None:
        self.forget()
        failure = self._failure("it has ended")
        for future in self._owed.values():
            if not future.done():
                future.set_exception(failure)
                # Nobody may be waiting for it any more.
                future.exception()
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
        return EnvironmentFailure(f"container {self.name}: {what}{last}; see {self._log}")
