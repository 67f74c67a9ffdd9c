"""The agent of one host: `python -m harness.node RUN`, with its standard input and output as the stream to the tool.

Ranks, launchers and their supervisors report to a Unix socket of this host; what they say, and what they are told, goes
through the stream as it is. An executor of faults (`chaos.injection.serving`) acts on this host's processes, with the
ledger and the watchdog of this host. When the stream breaks, the tool starts a second process here, which passes its
own stream on to this agent. When the tool is silent for the lease, the agent undoes, releases the ranks, and leaves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError, EnvironmentFailure
from chaos.faults.base import InsideHost, LinkHost, ProcessHost
from chaos.host.run_processes import end_processes
from chaos.injection.serving import Ground, KnownProcesses, log, serve_run
from chaos.injection.stream import Failed, to_line
from chaos.undo.heal import heal, refuse_if_unclean
from chaos.undo.run_registry import left_here, writable_folder
from harness.control.admission import Admission
from harness.network.connection_links import ConnectionLinks
from harness.node.commands import Commands
from harness.node.exits import exit_of
from harness.node.facts import addresses, tool_version
from harness.node.frames import Frames, Streams, pump
from harness.node.host_processes import HostProcesses
from harness.node.inside import InsideByTool
from harness.node.messages import (
    EXECUTOR,
    FILE,
    FROM_AGENT,
    HELLO,
    RANK,
    TO_AGENT,
    Addresses,
    AskTime,
    Attach,
    EndProcesses,
    FromAgent,
    Greeting,
    InsideAnswer,
    Leave,
    Offset,
    ProcessEnded,
    ProcessesEnded,
    Refused,
    Signal,
    StartCommand,
    Time,
)
from harness.node.places import place_text
from harness.node.process_table import ReportedProcess
from harness.node.socket_folder import AGENT_SOCKET, RANK_SOCKET, SocketFolder
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.clocks import MOMENT_SUFFIX, this_clock
from mecefo_runtime.system.events import PID_FIELDS, Event
from mecefo_runtime.system.host import ForeignPid, this_host
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.strangers import BUFFER_BYTES, read_line
from mecefo_runtime.system.wire import Message, WireError, decode, encode, peer_of

ATTACH_TIMEOUT_SECONDS = 60.0
FLUSH_TIMEOUT_SECONDS = 5.0
# An undo that takes longer is left to the watchdog.
UNDO_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 0.1


class NodeAgent(Ground):
    """The agent of `run` on this host."""

    # The tool starts another agent, which ends what is left at the end of the run.
    keeps_processes = True

    def __init__(self, run: str, folder: SocketFolder) -> None:
        self._run = run
        self._folder = folder
        self._frames = Frames(self._on_open, self._on_message, is_agent=True)
        self._inside = InsideByTool(self._send)
        self._admission = Admission()
        self._commands = Commands(self._frames, self._send)
        self._ranks: set[asyncio.StreamWriter] = set()
        self._followed: set[ProcessId] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._attached: Attach | None = None
        self._executing: asyncio.Task[None] | None = None
        self._offset_seconds = 0.0
        self._addresses: Mapping[str, tuple[str, ...]] = {}
        self._leaves = asyncio.Event()
        self._is_lost = False
        self._own_folder: Path | None = None
        # Of the run that is served; it is set before the first event.
        self._known = KnownProcesses(this_host())
        self._greeting = Greeting(tool_version(), ("", ""), "", os.geteuid(), is_new=True, num_received=0)

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Serve until the run is over; returns the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._lose, "SIGTERM")
        here = this_host()
        greeting = replace(self._greeting, host=(here.name, here.boot), clock=this_clock(), addresses=addresses())
        try:
            healed = self._heal_earlier()
            # Of other runs: what they have left comes first.
            refuse_if_unclean()
            self._own_folder = writable_folder() / f"{self._run}-{here.name}"
            self._own_folder.mkdir(mode=0o700, exist_ok=True)
            greeting = replace(greeting, folder=str(self._own_folder), healed=healed)
        except (ChaosError, OSError) as error:
            greeting = replace(greeting, problem=str(error))
        self._greeting = greeting
        servers = [
            await asyncio.start_unix_server(self._on_process, self._folder.path(RANK_SOCKET), limit=BUFFER_BYTES),
            await asyncio.start_unix_server(self._on_stream, self._folder.path(AGENT_SOCKET), limit=BUFFER_BYTES),
        ]
        self._follow(self._attend_first(reader, writer))
        try:
            await self._until_the_end()
        finally:
            for server in servers:
                server.close()
            self._commands.close(is_lost=self._is_lost)
            self._inside.close()
            self._frames.close()
            if self._executing is not None:
                # It undoes, now that its stream has ended.
                await asyncio.wait({self._executing}, timeout=UNDO_TIMEOUT_SECONDS)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return int(self._is_lost)

    async def _until_the_end(self) -> None:
        began = time.monotonic()
        while not self._leaves.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaves.wait(), _POLL_SECONDS)
            if self._executing is not None:
                # It has a lease.
                continue
            silent_seconds = self._frames.silent_seconds
            if self._attached is None and time.monotonic() - began > ATTACH_TIMEOUT_SECONDS:
                self._lose("nobody took over")
            elif self._attached is not None and silent_seconds > self._attached.lease_seconds:
                self._lose(f"the tool was silent for {silent_seconds:.0f} s")
        deadline = time.monotonic() + FLUSH_TIMEOUT_SECONDS
        while not self._is_lost and self._frames.num_kept and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)

    def _lose(self, why: str) -> None:
        log(f"the agent leaves: {why}")
        self._is_lost = True
        self.release()
        self._leaves.set()
        # The executor undoes when its stream ends.
        self._frames.close()

    def _heal_earlier(self) -> tuple[str, ...]:
        """Undo what earlier agents of this run on this host have left, before it was started again or since."""
        earlier = [one for one in left_here(self._run) if not one.is_owned()]
        healed = [heal(replace(one, keeps_processes=True), "chaos") for one in earlier]
        return tuple(str(one["fault"]) for found in healed for one in found.undone)

    # ---- the stream to the tool ----

    async def _on_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A second process of the tool's on this host passes its stream on."""
        pid, uid = peer_of(writer.get_extra_info("socket"))
        if self._admission.admits(pid or None, uid):
            await self._attend(reader, writer)
        writer.close()

    async def _attend_first(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._attend(reader, writer)
        if self._attached is None and not self._leaves.is_set():
            # The tool refuses this host, or is dead.
            self._lose("nobody took over")

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = replace(self._greeting, is_new=self._attached is None, num_received=self._frames.num_received)
        writer.write(encode(HELLO.to_wire(greeting)))
        try:
            line = await asyncio.wait_for(read_line(reader), ATTACH_TIMEOUT_SECONDS)
            attach = HELLO.read(decode(line))
            if not isinstance(attach, Attach):
                raise WireError("the tool must take over first")
            self._attached = attach
            ended = await self._frames.carry(reader, writer, attach.num_received)
        except (TimeoutError, OSError, ValueError) as error:
            ended = str(error)
        if not self._leaves.is_set():
            log(f"the stream to the tool: {ended}")
        if self._attached is None:
            self._lose("the tool did not take over")

    def _send(self, message: FromAgent) -> None:
        self._frames.send(FROM_AGENT.to_wire(message))

    def _on_message(self, message: Message) -> None:
        match TO_AGENT.read(message):
            case AskTime(id=number):
                self._send(Time(number, time.monotonic()))
            case Offset(seconds=seconds):
                self._offset_seconds = seconds
            case Addresses(of_hosts=of_hosts):
                self._addresses = of_hosts
            case StartCommand() as order:
                self._follow(self._commands.start(order))
            case Signal(id=number, number=signal_number):
                self._commands.signal(number, signal.Signals(signal_number))
            case EndProcesses(id=number):
                self._follow(self._end_processes(number))
            case InsideAnswer() as answer:
                self._inside.on_answer(answer)
            case Leave():
                self._leaves.set()

    async def _end_processes(self, number: int) -> None:
        ended = await asyncio.to_thread(end_processes, self._run)
        self._send(ProcessesEnded(number, tuple(one.process.pid for one in ended)))

    def _on_open(self, what: Mapping[str, Any], streams: Streams) -> None:
        if what.get("what") == EXECUTOR:
            self._executing = self._follow(self._execute(*streams))
        else:
            streams[1].close()

    def _follow(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- the executor of faults ----

    async def _execute(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            is_in_order = await serve_run(reader, writer, self) == 0
        except (ChaosError, WireError) as error:
            log(str(error))
            writer.write(to_line(Failed(str(error))))
            is_in_order = False
        finally:
            self._executing = None
            writer.close()
        if is_in_order:
            self._leave_files()
        else:
            # The tool may still hear why.
            await asyncio.sleep(_POLL_SECONDS)
            self._lose("its executor has ended")

    def _leave_files(self) -> None:
        """The run is over, and nothing is left here: the run's folder gets what is kept here of it."""
        if self._own_folder is None:
            return
        for path in sorted(self._own_folder.iterdir()):
            with suppress(OSError):
                content = path.read_bytes()
                _, writer = self._frames.open({"what": FILE, "name": path.name})
                writer.write(content)
                writer.close()
                path.unlink()
        with suppress(OSError):
            self._own_folder.rmdir()

    def inside(self) -> InsideHost:
        """See `Ground`."""
        return self._inside

    def processes(self, known: KnownProcesses) -> ProcessHost:
        """See `Ground`."""
        self._known = known
        return HostProcesses(known, self._run, lambda: None if self._attached is None else self._attached.node)

    def links(self, processes: ProcessHost, cluster: Cluster | None) -> LinkHost | None:
        """See `Ground`: at the run's own connections."""

        def here() -> dict[int, ProcessId]:
            found = processes.rank_processes(tuple(self._known.places))
            return {owned.rank: owned.process for owned in found if owned.rank is not None}

        def addresses_of(rank: int) -> tuple[str, ...]:
            host = self._known.places.get(rank)
            return () if host is None else self._addresses.get(place_text(host), ())

        num_ranks = 0 if cluster is None else cluster.num_ranks
        return ConnectionLinks(self._run, ranks=range(num_ranks), here=here, processes=here, addresses=addresses_of)

    def here(self, event: Event) -> Event:
        """See `Ground`: the raw times of this host's own events, and all others by the offset of its clock.

        Pids of this host are numbers here, and those of all others are not.
        """
        origin, own = event.origin, this_clock()
        host = self._known.host_of(event)

        def pid_here(number: int) -> int:
            return int(number) if host.is_here else ForeignPid(int(number), host)

        raw = origin.raw if origin is not None and origin.clock == own else {}
        fields: dict[str, Any] = {
            name: raw.get(name, value - self._offset_seconds)
            if name.endswith(MOMENT_SUFFIX) and isinstance(value, float | int) and not isinstance(value, bool)
            else value
            for name, value in event.fields.items()
        }
        fields |= {name: pid_here(fields[name]) for name in PID_FIELDS & fields.keys() if fields[name] is not None}
        moment = raw.get("monotonic", float(event.monotonic_seconds) - self._offset_seconds)
        return replace(event, monotonic_seconds=moment, fields=fields, pid=pid_here(event.pid), origin=None)

    def release(self) -> None:
        """See `Ground`: a rank whose connection ends continues."""
        for writer in list(self._ranks):
            writer.close()

    # ---- the processes of the job ----

    async def _on_process(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A process of this host reports."""
        pid, uid = peer_of(writer.get_extra_info("socket"))
        self._ranks.add(writer)
        try:
            if not pid or not self._admission.admits(pid, uid):
                self._send(Refused(uid, pid))
                return
            process = ProcessId.of(pid)
            what = {"what": RANK, "uid": uid, "process": ReportedProcess.of(process).to_json()}
            if process not in self._followed:
                self._followed.add(process)
                self._follow(self._tell_end(process))
            from_tool, to_tool = self._frames.open(what)
            await asyncio.gather(pump(reader, to_tool, self._frames), pump(from_tool, writer))
        except (ProcessLookupError, OSError):
            return
        finally:
            self._ranks.discard(writer)
            writer.close()

    async def _tell_end(self, process: ProcessId) -> None:
        code = await exit_of(process)
        self._send(ProcessEnded(process.pid, process.start_ticks, code))
        self._followed.discard(process)


async def serve(run: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Be the agent of `run` on this host; returns the exit code of the process.

    Raises:
        EnvironmentFailure: the host has no place for its sockets.
    """
    folder = SocketFolder(run)
    try:
        folder.make()
    except OSError as error:
        raise EnvironmentFailure(f"no folder for sockets can be made: {error}") from error
    try:
        return await NodeAgent(run, folder).run(reader, writer)
    finally:
        folder.remove()
