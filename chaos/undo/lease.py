"""The side of the watchdog inside `chaos`: starts it, tells it every second that the injector is alive, ends it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.host import python_module
from chaos.host.inherited import why
from chaos.host.run_processes import RUN_VARIABLE
from chaos.undo.run_registry import OpenRun
from chaos.undo.watchdog import ALIVE, CLEAN, MAX_MESSAGE_BYTES, READY
from mecefo_runtime.system.process import ProcessId

LEASE_SECONDS = 10.0
RENEWAL_SECONDS = 1.0
# Longer than a machine full of others takes for the start of a Python process.
START_TIMEOUT_SECONDS = 120.0
END_TIMEOUT_SECONDS = 5.0
# A watchdog that is killed is replaced; whoever kills one after the other does not want one.
MAX_STARTS = 4


class Lease:
    """One run's watchdog. It is renewed by the event loop, so that it tells of a loop that turns.

    `on_lapse` is called with a sentence when the watchdog has undone something because it heard nothing for too long,
    `on_loss` when there is no watchdog any more: with a sentence, and whether another one could be started.
    """

    def __init__(
        self,
        run: OpenRun,
        log: Path,
        on_lapse: Callable[[str], None],
        on_loss: Callable[[str, bool], None],
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.run = run
        self._log = log
        self._on_lapse = on_lapse
        self._on_loss = on_loss
        self._lease_seconds = lease_seconds
        self._num_starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._is_ready = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    def start(self) -> OpenRun:
        """Start it, without waiting until it is ready; returns the run with its watchdog.

        Raises:
            EnvironmentFailure: no process can be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
        with theirs:
            ours.setblocking(False)
            arguments = [str(theirs.fileno()), str(self._lease_seconds), self.run.to_json()]
            try:
                with self._log.open("ab") as log:
                    process = subprocess.Popen(
                        python_module.command("chaos.undo.watchdog", *arguments),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=log,
                        pass_fds=[theirs.fileno()],
                        env=environment,
                        # Neither Ctrl-C nor the end of the terminal is for it.
                        start_new_session=True,
                    )
            except OSError as error:
                ours.close()
                raise EnvironmentFailure(f"the watchdog cannot be started: {why(error)}") from error
        self._process, self._connection = process, ours
        self._num_starts += 1
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._on_message)
        if self._renewal is None:
            self._renewal = loop.create_task(self._renew())
        self.run = replace(self.run, watchdog=ProcessId.of(process.pid))
        return self.run

    async def ready(self) -> None:
        """Wait until it watches: only then may anything be done that it would have to undo.

        Raises:
            EnvironmentFailure: it does not come up.
        """
        try:
            await asyncio.wait_for(self._is_ready.wait(), START_TIMEOUT_SECONDS)
        except TimeoutError:
            raise EnvironmentFailure(
                f"the watchdog was not ready within {START_TIMEOUT_SECONDS:g} s; see {self._log}"
            ) from None
        if self._connection is None:
            raise EnvironmentFailure(f"the watchdog ended as it started; see {self._log}")

    async def end(self, *, is_clean: bool) -> None:
        """End it if nothing is left to do; else it tries once more when this process has ended."""
        if self._renewal is not None:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
        if self._connection is None or self._process is None:
            return
        if is_clean:
            self._send(CLEAN)
        self._hang_up()
        if not is_clean:
            return
        deadline = asyncio.get_running_loop().time() + END_TIMEOUT_SECONDS
        while self._process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                # It has nothing to undo, and must not outlive the run.
                self._process.kill()
                self._process.wait()
            await asyncio.sleep(0.01)

    async def _renew(self) -> None:
        while True:
            self._send(ALIVE)
            await asyncio.sleep(RENEWAL_SECONDS)

    def _send(self, message: bytes) -> None:
        if self._connection is not None:
            # A watchdog that is stopped reads nothing until it wakes up; what it has is enough.
            with suppress(OSError):
                self._connection.send(message)

    def _on_message(self) -> None:
        assert self._connection is not None
        try:
            message = self._connection.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message == READY:
            self._is_ready.set()
        elif message:
            told = json.loads(message)
            incidents = ", ".join(map(str, told["incidents"]))
            self._on_lapse(
                f"chaos did not run for {told['lease_seconds']:g} s: the watchdog undid incident {incidents}"
            )
        else:
            self._on_death()

    def _on_death(self) -> None:
        self._hang_up()
        assert self._process is not None
        code = self._process.wait()
        text = f"the watchdog died (exit code {code})"
        was_ready = self._is_ready.is_set()
        # Whoever waits for it is told in `ready`.
        self._is_ready.set()
        if not was_ready:
            return
        is_replaced = self._num_starts < MAX_STARTS
        if is_replaced:
            try:
                self.start()
            except EnvironmentFailure as error:
                is_replaced, text = False, f"{text}; {error}"
        self._on_loss(text, is_replaced)

    def _hang_up(self) -> None:
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._connection = None
