"""The commands that the tool has an agent start, and what they print."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, BinaryIO

from chaos.host import inherited
from harness.node.exits import exit_of
from harness.node.frames import Frames
from harness.node.messages import LOG, CommandEnded, CommandStarted, FromAgent, StartCommand
from harness.node.process_table import ReportedProcess
from mecefo_runtime.system.process import ProcessId

_TAIL_POLL_SECONDS = 0.05
_PART_BYTES = 1 << 16


class Commands:
    """Those of one agent; what is reported is sent by `send`.

    A command prints into a file of this host, so that it goes on where the agent does not.
    """

    def __init__(self, frames: Frames, send: Callable[[FromAgent], None]) -> None:
        self._frames = frames
        self._send = send
        self._processes: dict[int, ProcessId] = {}

    async def start(self, order: StartCommand) -> None:
        """Start one, and follow it to its end."""
        with tempfile.TemporaryFile() as output:
            try:
                child = Child(order.words, order.folder, order.environment, output)
            except OSError as error:
                self._send(CommandStarted(order.id, None, inherited.why(error)))
                return
            process = self._processes[order.id] = child.process
            self._send(CommandStarted(order.id, ReportedProcess.of(process)))
            _, log = self._frames.open({"what": LOG, "command": order.id})
            tail = _Tail(output, log, self._frames)
            following = asyncio.create_task(tail.follow())
            code = await child.ended()
            del self._processes[order.id]
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            # What it said last is there by now.
            await tail.pass_on()
            log.close()
            self._send(CommandEnded(order.id, code))

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to one of them, if it runs."""
        if (process := self._processes.get(number)) is not None:
            process.signal(which)
            # A stopped process takes no signal.
            process.signal(signal.SIGCONT)

    def close(self, *, is_lost: bool) -> None:
        """The agent leaves; nobody supervises what it has started any more."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.signal(signal.SIGTERM if is_lost else signal.SIGKILL)


class Child:
    """A command that this process has started, with `environment` beside the own one.

    asyncio's own subprocesses are of no use here: a short one is gone, and its number with it, before anybody has seen
    when it began.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, words: Sequence[str], folder: str, environment: Mapping[str, str], output: IO[bytes]) -> None:
        self._child = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.process = ProcessId.of(self._child.pid)

    async def ended(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        await exit_of(self.process)
        return self._child.wait()


class _Tail:
    """What is printed into `output`, passed on to `log`."""

    def __init__(self, output: BinaryIO, log: asyncio.StreamWriter, frames: Frames) -> None:
        self._output = output
        self._log = log
        self._frames = frames
        self._num_passed = 0

    async def follow(self) -> None:
        """For as long as it may grow."""
        while True:
            await self.pass_on()
            await asyncio.sleep(_TAIL_POLL_SECONDS)

    async def pass_on(self) -> None:
        """All that is there by now."""
        # By position: the file's own is that of whoever writes.
        while part := os.pread(self._output.fileno(), _PART_BYTES, self._num_passed):
            await self._frames.room()
            self._log.write(part)
            self._num_passed += len(part)
