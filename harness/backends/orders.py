"""Orders to a fork server (`forkserver`), wherever it runs, and what it answers."""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.host import python_module
from chaos.host.inherited import why
from mecefo_runtime.system.process import ProcessId

START_TIMEOUT_SECONDS = 120.0
CLOSE_TIMEOUT_SECONDS = 5.0


class Orders(ABC):
    """Orders to one fork server. `on_exit` is called with each process that it started and its exit code."""

    def __init__(self, on_exit: Callable[[ProcessId, int], None], timeout_seconds: float) -> None:
        self._on_exit = on_exit
        self._timeout_seconds = timeout_seconds
        # Answers that are awaited; an answer may come before `_answer` is called.
        self._owed: dict[str, asyncio.Future[Any]] = {}
        self._num_orders = 0

    async def listen(self, job: str, port: int = 0) -> str:
        """Have it listen on `port` for a coordinator of `job`, 0: on any; returns the address."""
        address: str = await self.ask({"command": "listen", "job": job, "port": port}, f"listening {job}")
        return address

    async def fork(self, order: Mapping[str, Any]) -> ProcessId:
        """Have a process started.

        Raises:
            EnvironmentFailure: the fork server has ended, or does not answer.
        """
        self._num_orders += 1
        process: ProcessId = await self.ask({**order, "id": self._num_orders}, f"started {self._num_orders}")
        return process

    async def ask(self, order: Mapping[str, Any], answer: str, timeout_seconds: float | None = None) -> Any:
        """Send an order and wait for its `answer`."""
        self._owe(answer)
        self._send(order)
        return await self._answer(answer, timeout_seconds)

    @abstractmethod
    def _send(self, order: Mapping[str, Any]) -> None:
        """Send one order.

        Raises:
            EnvironmentFailure: the fork server has ended.
        """

    @abstractmethod
    def _failure(self, what: str) -> EnvironmentFailure:
        """What `what` it did comes to, as an error."""

    def _process_of(self, reply: Mapping[str, Any]) -> ProcessId:
        """The process that a reply is about, by the pid that it has here."""
        return ProcessId(int(reply["pid"]), int(reply["start_ticks"]))

    def _on_reply(self, reply: Mapping[str, Any]) -> None:
        match reply["reply"]:
            case "ready":
                self._settle("ready", reply.get("networks"))
            case "listening":
                self._settle(f"listening {reply['job']}", reply["address"])
            case "started":
                process = self._process_of(reply)
                self._has_started(process)
                self._settle(f"started {reply['id']}", process)
            case "exited":
                process = self._process_of(reply)
                self._has_exited(process)
                self._on_exit(process, int(reply["exit"]))

    def _has_started(self, process: ProcessId) -> None:
        """It has started a process."""
        return

    def _has_exited(self, process: ProcessId) -> None:
        """A process that it started has ended."""
        return

    def _owe(self, key: str) -> None:
        if key not in self._owed:
            self._owed[key] = asyncio.get_running_loop().create_future()

    async def _answer(self, key: str, timeout_seconds: float | None = None) -> Any:
        self._owe(key)
        timeout_seconds = timeout_seconds or self._timeout_seconds
        try:
            return await asyncio.wait_for(self._owed[key], timeout_seconds)
        except TimeoutError:
            raise self._failure(f"did not answer within {timeout_seconds:g} s") from None
        finally:
            self._owed.pop(key, None)

    def _settle(self, key: str, answer: object) -> None:
        self._owe(key)
        if not self._owed[key].done():
            self._owed[key].set_result(answer)

    def _fail_all(self, failure: EnvironmentFailure) -> None:
        """It has ended: no answer comes any more."""
        for future in self._owed.values():
            if not future.done():
                future.set_exception(failure)
                # Nobody may be waiting for it any more.
                future.exception()


class ForkServerProcess(Orders):
    """A fork server that is started from here, with `prefix` before its command: it ends with this process.

    It writes to `log`. With `loaded`, the text to train on ("": the one that comes with us) and names of modules, it
    brings into memory first what ranks of the built-in job need. `on_loss` is called when it ends before it is closed.
    `process` is the fork server itself, once it is started.
    """

    def __init__(
        self,
        log: Path,
        on_exit: Callable[[ProcessId, int], None],
        on_loss: Callable[[EnvironmentFailure], None],
        loaded: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(on_exit, START_TIMEOUT_SECONDS)
        self._log = log
        self._on_loss = on_loss
        self._loaded = loaded
        self._prefix = prefix
        self.process = ProcessId(0, 0)
        self._server: asyncio.subprocess.Process | None = None
        self._replies: asyncio.Task[None] | None = None
        self._is_closing = False
        self._loss: EnvironmentFailure | None = None

    async def start(self) -> Any:
        """Start it, and wait until it takes orders; returns the networks that it holds, as JSON values, if any.

        Raises:
            EnvironmentFailure: it cannot be started.
        """
        words = python_module.command("harness.backends.forkserver", str(os.getpid()), *self._loaded)
        try:
            with self._log.open("ab") as log:
                self._server = await asyncio.create_subprocess_exec(
                    *self._prefix,
                    *words,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    # Ctrl-C is ours to handle: it must not reach the ranks.
                    start_new_session=True,
                )
        except OSError as error:
            raise EnvironmentFailure(f"the fork server cannot be started: {why(error)}") from error
        with suppress(ProcessLookupError):
            self.process = ProcessId.of(self._server.pid)
        self._replies = asyncio.create_task(self._read_replies(self._server))
        return await self._answer("ready")

    async def close(self) -> None:
        """End it, and with it all that it started."""
        self._is_closing = True
        if self._server is None:
            return
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            await asyncio.wait_for(self._server.wait(), CLOSE_TIMEOUT_SECONDS)
        except TimeoutError:
            # On a busy machine it may have ended just now.
            with suppress(ProcessLookupError):
                self._server.kill()
            await self._server.wait()
        if self._replies is not None:
            await self._replies

    def _send(self, order: Mapping[str, Any]) -> None:
        if self._loss is not None:
            raise self._loss
        if self._server is None or self._server.stdin is None or self._server.stdin.is_closing():
            raise EnvironmentFailure("the fork server is not running")
        self._server.stdin.write(json.dumps(order).encode() + b"\n")

    def _failure(self, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"the fork server {what}; see {self._log}")

    async def _read_replies(self, server: asyncio.subprocess.Process) -> None:
        assert server.stdout is not None
        await python_module.has_begun(server.stdout)
        while line := await server.stdout.readline():
            self._on_reply(json.loads(line))
        code = await server.wait()
        if not self._is_closing:
            self._loss = self._failure(f"ended, and all processes of the run with it (exit code {code})")
            self._fail_all(self._loss)
            self._on_loss(self._loss)
