"""The agent of a host as a process of this machine, with the tool's end of its stream in the test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.host import python_module
from chaos.host.run_processes import RUN_VARIABLE, processes_of
from chaos.injection.stream import Open, StreamExecutor
from chaos.undo.run_registry import STATE_VARIABLE
from harness.node.frames import Frames, Streams
from harness.node.messages import EXECUTOR, FROM_AGENT, HELLO, RANK, TO_AGENT, Attach, Greeting, Leave
from harness.node.socket_folder import RANK_SOCKET, SocketFolder
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.strangers import read_line
from mecefo_runtime.system.wire import Message, decode, encode

TIMEOUT_SECONDS = 60.0
# A process of the job: it reports, says what it is told, and ends as its first line of input says.
WORKER = """
import os, socket, sys, threading
sock = socket.socket(socket.AF_UNIX)
if len(sys.argv) > 1:
    sock.connect(sys.argv[1])
print("ready", flush=True)
def tell():
    for line in sock.makefile("rb"):
        print(line.decode().strip(), flush=True)
    print("released", flush=True)
if len(sys.argv) > 1:
    threading.Thread(target=tell, daemon=True).start()
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "say":
        sock.sendall(rest.encode() + b"\\n")
    elif word == "pour":
        for number in range(int(rest)):
            sock.sendall(b"%d\\n" % number)
    else:
        os._exit(int(rest))
"""


async def until(is_so: Callable[[], Any]) -> Any:
    """Until something is so, and what it is then."""
    while not (found := is_so()):
        await asyncio.sleep(0.005)
    return found


class Worker:
    """A process with the mark of `run`, perhaps one that reports at `path`."""

    def __init__(self, run: str, path: str | None = None, **environment: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-S", "-c", WORKER, *([path] if path else [])],
            env={**os.environ, RUN_VARIABLE: run, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.line()
        self.process = ProcessId.of(self.child.pid)

    def line(self) -> str:
        """The next line that it prints."""
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    async def hears(self) -> str:
        """The same, while the event loop turns."""
        return await asyncio.to_thread(self.line)

    def do(self, text: str) -> None:
        """Have it say something, or end."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{text}\n")
        self.child.stdin.flush()

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.process.state() == "T"

    def close(self) -> None:
        """End it."""
        self.child.kill()
        self.child.communicate()


class Stream:
    """One process on the host that is the agent, or speaks for it."""

    def __init__(self, process: asyncio.subprocess.Process, greeting: Greeting) -> None:
        self.process = process
        self.greeting = greeting
        self.carrying: asyncio.Task[str] | None = None

    async def end(self) -> str:
        """Close it, as a network does; returns why it ended."""
        assert self.process.stdin is not None and self.carrying is not None
        self.process.stdin.close()
        return await self.carrying


class Tool:
    """The tool's end of the connection to one agent."""

    def __init__(self, state: Path) -> None:
        self.run = uuid.uuid4().hex
        self.state = state
        self.log = state / "agent.log"
        self.folder = SocketFolder(self.run)
        self.frames = Frames(self._on_open, self._on_message, is_agent=False)
        self.messages: list[Any] = []
        self.opened: list[tuple[Mapping[str, Any], Streams]] = []
        self.lapses: list[str] = []
        self._streams: list[Stream] = []
        self._processes: list[asyncio.subprocess.Process] = []
        self._earlier: list[Frames] = []
        self._workers: list[Worker] = []

    async def start(self, **changed: str) -> Stream:
        """Start a process on the host, and hear whom it is."""
        environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
        with self.log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *python_module.command("harness.node", self.run),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**environment, STATE_VARIABLE: str(self.state), **changed},
            )
        self._processes.append(process)
        assert process.stdout is not None
        assert await python_module.has_begun(process.stdout), self.log.read_text()
        greeting = HELLO.read(decode(await read_line(process.stdout)))
        assert isinstance(greeting, Greeting)
        self._streams.append(Stream(process, greeting))
        return self._streams[-1]

    async def attach(self, stream: Stream, node: int | None = 1, lease_seconds: float = TIMEOUT_SECONDS) -> None:
        """Take over by this stream."""
        process = stream.process
        assert process.stdin is not None and process.stdout is not None
        if stream.greeting.is_new:
            self._earlier.append(self.frames)
            self.frames = Frames(self._on_open, self._on_message, is_agent=False)
        process.stdin.write(encode(HELLO.to_wire(Attach(self.frames.num_received, node, lease_seconds))))
        carrying = self.frames.carry(process.stdout, process.stdin, stream.greeting.num_received)
        stream.carrying = asyncio.create_task(carrying)

    async def ready(self, node: int | None = 1, lease_seconds: float = TIMEOUT_SECONDS) -> Stream:
        """A new agent of which the tool has taken over."""
        stream = await self.start()
        await self.attach(stream, node, lease_seconds)
        return stream

    async def executor(self, lease_seconds: float = TIMEOUT_SECONDS, **how: Any) -> StreamExecutor:
        """The executor of faults, when it is ready."""
        folder = self._streams[-1].greeting.folder
        opening = Open(self.run, "beta", folder, folder, lease_seconds=lease_seconds, **how)
        reader, writer = self.frames.open({"what": EXECUTOR})
        executor = StreamExecutor(
            opening, reader, writer, on_lapse=self.lapses.append, on_loss=lambda text, is_replaced: None
        )
        await executor.ready()
        return executor

    def worker(self, *, reports: bool = False, **environment: str) -> Worker:
        """A process of the job."""
        path = self.folder.path(RANK_SOCKET) if reports else None
        self._workers.append(Worker(self.run, path, **environment))
        return self._workers[-1]

    async def rank(self, **environment: str) -> tuple[Worker, Mapping[str, Any], Streams]:
        """A process of the job that reports; what its agent says of it, and the tool's end of its connection."""
        known = len(self._of(RANK))
        worker = await asyncio.to_thread(lambda: self.worker(reports=True, **environment))
        await until(lambda: len(self._of(RANK)) > known)
        return worker, *self._of(RANK)[-1]

    def _of(self, kind: str) -> list[tuple[Mapping[str, Any], Streams]]:
        return [one for one in self.opened if one[0]["what"] == kind]

    async def channel(self, kind: str) -> tuple[Mapping[str, Any], Streams]:
        """The first channel that the agent opens for that."""
        return (await until(lambda: self._of(kind)))[0]

    async def message(self, kind: type[Any]) -> Any:
        """The next message of that kind that comes."""
        found = await until(lambda: next((one for one in self.messages if isinstance(one, kind)), None))
        self.messages.remove(found)
        return found

    def send(self, message: Any) -> None:
        """Send a message to the agent."""
        self.frames.send(TO_AGENT.to_wire(message))

    async def leave(self, stream: Stream) -> int:
        """The run is over; returns the exit code of the agent."""
        self.send(Leave())
        return await stream.process.wait()

    def _on_open(self, what: Mapping[str, Any], streams: Streams) -> None:
        self.opened.append((what, streams))

    def _on_message(self, message: Message) -> None:
        self.messages.append(FROM_AGENT.read(message))

    async def close(self) -> None:
        """Leave nothing."""
        for frames in (*self._earlier, self.frames):
            frames.close()
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
        carrying = [stream.carrying for stream in self._streams if stream.carrying is not None]
        await asyncio.gather(*carrying, return_exceptions=True)
        for process in self._processes:
            assert process.stdout is not None
            await process.stdout.read()
        for worker in self._workers:
            worker.close()
        for left in processes_of(self.run):
            with suppress(ProcessLookupError):
                left.process.signal(9)
        self.folder.remove()
        await asyncio.sleep(0)


def play(state: Path, story: Callable[[Tool], Any]) -> Any:
    """Run the story of one agent."""

    async def run() -> Any:
        tool = Tool(state)
        try:
            return await asyncio.wait_for(story(tool), TIMEOUT_SECONDS)
        finally:
            await tool.close()

    return asyncio.run(run())
