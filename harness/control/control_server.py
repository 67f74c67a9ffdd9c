"""Where a run's processes report: events come in here, agents are held here, supervisors get their orders here.

They come through a Unix socket in a folder that only this user may enter, so what becomes of a network does not matter,
and the kernel says who they are: no token is needed. Where root runs a script of the user's, whose processes may drop
to another user, everybody may connect, and `admission` decides who is heard. A connection's first line has its role.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from chaos.errors import EnvironmentFailure
from chaos.host.inherited import why
from chaos.in_process.protocol import (
    ASKS_FOR_START,
    AgentListener,
    AgentSession,
    FromInjector,
    Holds,
    SnapshotsOf,
    Start,
    from_agent,
    to_wire,
)
from harness.control.admission import ROOT, Admission, can_anybody_enter
from harness.control.peers import Caller, Peer, Peers
from mecefo_runtime.comm import messages
from mecefo_runtime.comm.messages import ToSupervisor
from mecefo_runtime.system.clocks import CLOCK_VARIABLE, ClockMapping, this_clock
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.json_values import whole
from mecefo_runtime.system.process import ForeignProcess, ProcessId
from mecefo_runtime.system.strangers import BUFFER_BYTES, HELLO_TIMEOUT_SECONDS, Strangers, read_line
from mecefo_runtime.system.wire import UNIX, Message, WireError, decode, encode, peer_of

# sockaddr_un takes 108 bytes, with a zero at the end (unix(7)).
MAX_PATH_BYTES = 107
_FOLDER, _NAME = "control", "socket"
_BACKLOG = 1024
_MAX_NUMBER = 1 << 31
# Anything that another process can do to us by what it says.
_BREAKDOWNS = (ArithmeticError, AttributeError, ForeignProcess, LookupError, RecursionError, TypeError)


class NodeListener(Protocol):
    """Who starts processes in containers, whose first processes report here."""

    async def serve(self, name: str, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The first process of a container, `name`, whose pid out here is `pid`, takes orders; until it hangs up."""
        ...


class ControlServer:
    """Collects events and passes messages, until closed; `on_event` gets every event, in the order of arrival."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._strangers = Strangers()
        self._on_event = on_event
        self._servers: list[asyncio.Server] = []
        # By job and node.
        self._supervisors: dict[tuple[str, int], asyncio.StreamWriter] = {}
        self._open: set[asyncio.Task[None]] = set()
        # Those of them that serve a container, which hangs up when its run ends.
        self._serving_nodes: set[asyncio.Task[None]] = set()
        self._place: _Place | None = None
        self._admission = Admission()
        self._peers = Peers(Emitter(on_event, "conductor"))
        self.agents: AgentListener | None = None
        self.nodes: NodeListener | None = None
        # Hears of every agent first, and says which start of its rank that is, from 1.
        self.on_agent: Callable[[Message, ProcessId], int] | None = None
        # Hears of a process that was started with RANK, before its script begins, and which node its host is, if any.
        self.on_launch: Callable[[ProcessId, int | None], Awaitable[None]] | None = None
        # Hears of the user and pid of a process that was refused.
        self.on_refused: Callable[[int, int | None], None] | None = None
        # Gives the state of the run to an agent that asks for it, of a rank in that attempt.
        self.start_of: Callable[[int], Start] | None = None
        self.address = ""

    async def open(
        self, folder: Path | None = None, *, may_be_relative: bool = True, may_change_user: bool = False
    ) -> None:
        """Listen on a Unix socket: within `folder`, or, without one and if its path is too long, in a temporary folder.

        Its path `may_be_relative` where all who connect share our working folder. `may_change_user`: processes of the
        run may drop to another user, if this is root; then the socket is where every user can reach it, if possible.

        Raises:
            chaos.errors.EnvironmentFailure: the machine refuses.
        """
        # A process with another clock reports it when it connects.
        os.environ[CLOCK_VARIABLE] = this_clock()
        try:
            is_public = may_change_user and os.geteuid() == ROOT
            self._place = _Place(folder, may_be_relative=may_be_relative, is_public=is_public)
            server = await asyncio.start_unix_server(self._on_connection, sock=self._place.socket, limit=BUFFER_BYTES)
            self._servers.append(server)
        except OSError as error:
            raise EnvironmentFailure(f"cannot listen on a Unix socket: {why(error)}") from error
        self.address = f"{UNIX}{self._place.path}"

    async def also_listen(self, path: str, node: int | None) -> None:
        """Listen at `path`, too, in a folder that only this user may enter: processes of this host, which is `node`.

        Raises:
            OSError: that cannot be.
        """

        def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Coroutine[Any, Any, None]:
            return self._on_connection(reader, writer, node)

        server = await asyncio.start_unix_server(on_connection, path, limit=BUFFER_BYTES, backlog=_BACKLOG)
        self._servers.append(server)

    def learn_clock(self, mapping: ClockMapping, host: Host) -> None:
        """The clock of another host was sampled, for what its processes report from now on."""
        self._peers.learn(mapping, host, is_regular=True)

    def clock_mapping(self, clock: str) -> ClockMapping | None:
        """The mapping of another clock; None: it is that of this process, or was never sampled."""
        return self._peers.mapping(clock)

    async def close(self) -> None:
        """Hang up on everybody, what has arrived already being read first."""
        os.environ.pop(CLOCK_VARIABLE, None)
        if not self._servers:
            return
        for server in self._servers:
            server.close()
        tasks = list(self._open)
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for task in self._open:
            task.cancel()
        # An injector that dies closes it, and then its run does.
        place, self._place = self._place, None
        if place is not None:
            place.remove()

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until all processes of the job have hung up, and what they had said is read, or the time is over."""
        if waiting := self._open - self._serving_nodes:
            await asyncio.wait(waiting, timeout=timeout_seconds)

    def order(self, job: str, node: int, order: ToSupervisor) -> bool:
        """Send an order to the supervisor of `node` in `job`; False when it is not there."""
        writer = self._supervisors.get((job, node))
        if writer is None:
            return False
        writer.write(encode(messages.to_wire(order)))
        return True

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int | None = None
    ) -> None:
        """Somebody of this host, which is `node` where nodes are hosts."""
        pid, uid = peer_of(writer.get_extra_info("socket"))
        # None: a process that our namespace does not see.
        caller = Caller(pid or None, uid, node=node)
        if self._admission.admits(caller.pid, uid):
            await self.serve(reader, writer, caller)
            return
        if self.on_refused is not None:
            self.on_refused(uid, caller.pid)
        writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller) -> None:
        """Serve a connection of a process that was let in, until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            hello = await self._strangers.hello(reader, HELLO_TIMEOUT_SECONDS)
            if caller.node is not None and "node" in hello:
                hello["node"] = caller.node
            match hello["role"]:
                case "agent":
                    peer = await self._peers.meet(hello, caller, reader, writer)
                    await self._serve_agent(reader, writer, hello, peer)
                case "launch":
                    pid = caller.pid or whole(hello["pid"], _MAX_NUMBER)
                    await self._answer_launch(writer, caller, pid)
                case "node" if self.nodes is not None and caller.pid is not None:
                    self._serving_nodes.add(task)
                    await self.nodes.serve(str(hello["name"]), caller.pid, reader, writer)
                case "supervisor":
                    place = str(hello["job"]), whole(hello["node"])
                    peer = await self._peers.meet(hello, caller, reader, writer)
                    self._supervisors[place] = writer
                    await self._collect(reader, peer)
                    if self._supervisors.get(place) is writer:
                        del self._supervisors[place]
                case "events":
                    await self._collect(reader, await self._peers.meet(hello, caller, reader, writer))
        except (WireError, OSError, ValueError, KeyError):
            # A process that was killed in the middle of a line, or a stranger.
            return
        except _BREAKDOWNS as error:
            # What a process of this user says is read strictly; where that is not enough, its run goes on.
            print(f"chaos: warning: a process of the run was hung up on: {error!r}", file=sys.stderr)
        except asyncio.CancelledError:
            # The control server closes. Streams of Python 3.11 report a connection's cancelled task as a failure.
            return
        finally:
            self._open.discard(task)
            self._serving_nodes.discard(task)
            writer.close()

    async def _collect(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        while line := await read_line(reader):
            self._on_event(peer.event(Event.from_json(line)))

    async def _answer_launch(self, writer: asyncio.StreamWriter, caller: Caller, pid: int) -> None:
        """The process waits for the answer, so that it is there to be looked at."""
        if self.on_launch is not None:
            with suppress(ProcessLookupError):
                await self.on_launch(ProcessId.of(pid) if caller.process is None else caller.process, caller.node)
        writer.write(b"\n")

    async def _serve_agent(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Message, peer: Peer
    ) -> None:
        listener = self.agents
        _check_agent(hello)
        if listener is None:
            # Without an injector nobody is held: training continues when the connection ends. That a rank is there, and
            # how it ends, is told all the same.
            attempt = int(hello["attempt"])
            if self.on_agent is not None:
                with suppress(ProcessLookupError):
                    attempt = self.on_agent(hello, peer.process(hello))
            writer.write(encode(to_wire(Holds(start=self._start_of(hello, attempt)))))
            return

        def send(message: Holds | FromInjector) -> None:
            if isinstance(message, Holds):
                message = replace(message, start=self._start_of(hello, attempt))
            if not writer.is_closing():
                writer.write(encode(to_wire(message)))

        with suppress(ProcessLookupError):
            process = peer.process(hello)
            attempt = int(hello["attempt"]) if self.on_agent is None else self.on_agent(hello, process)
            node = int(hello["node"])
            # An agent that names no rank is in its node's snapshot process.
            place = int(hello["rank"]) if hello["rank"] is not None else SnapshotsOf(node)
            session = AgentSession(place, node, attempt, process, send)
            listener.connected(session)
            try:
                while line := await read_line(reader):
                    listener.on_message(session, from_agent(peer.message(decode(line))))
            finally:
                listener.closed(session)

    def _start_of(self, hello: Message, attempt: int) -> Start | None:
        return self.start_of(attempt) if self.start_of is not None and hello.get(ASKS_FOR_START) else None


def _check_agent(hello: Message) -> None:
    """See that an agent's numbers are some.

    Raises:
        ValueError: they are none; KeyError: one is missing.
    """
    for key in ("pid", "node", "attempt"):
        whole(hello[key], _MAX_NUMBER)
    for key in ("rank", "world_size", "replica"):
        if hello.get(key) is not None:
            whole(hello[key], _MAX_NUMBER)
    hello["rank"]


def _paths(folder: Path, may_be_relative: bool) -> tuple[str, ...]:
    return (str(folder), os.path.relpath(folder)) if may_be_relative else (str(folder),)


class _Place:
    """A listening `socket` at `path`, in a folder that only this user may enter.

    `is_public`: every user may enter it and connect, and only this one may list and change it.

    The path is relative to the working folder where that makes it short enough and it `may_be_relative`. Where a run's
    folder is too deep, cannot hold a socket, or cannot be entered by everybody though it `is_public`, it is in a fresh
    folder for temporary files.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self, folder: Path | None, *, may_be_relative: bool, is_public: bool = False) -> None:
        self._is_public = is_public
        for path in () if folder is None else _paths(folder.resolve() / _FOLDER, may_be_relative):
            if is_public and not can_anybody_enter(Path(path).resolve().parent):
                continue
            if len(os.fsencode(path)) + len(_NAME) < MAX_PATH_BYTES:
                # Not every file system can hold a socket.
                with suppress(OSError):
                    self._listen(path)
                    return
        self._listen(tempfile.mkdtemp(prefix="chaos-", dir=_shared_temporary() if is_public else None))

    def _listen(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o711 if self._is_public else 0o700)
        self.path = os.path.join(folder, _NAME)  # noqa: PTH118 - a path that stays relative to `.`
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.bind(self.path)
            if self._is_public:
                Path(self.path).chmod(0o666)
            self.socket.listen(_BACKLOG)
        except OSError:
            self.socket.close()
            Path(self.path).unlink(missing_ok=True)
            self._folder.rmdir()
            raise

    def remove(self) -> None:
        """Remove what was made; nobody can connect any more."""
        Path(self.path).unlink(missing_ok=True)
        self._folder.rmdir()


def _shared_temporary() -> str | None:
    """A folder for temporary files that every user can enter, None where there is none: then the usual one."""
    places = (Path(tempfile.gettempdir()), Path("/tmp"))
    return next((str(place) for place in places if can_anybody_enter(place.resolve())), None)
