"""Serves an executor over a stream: `python -m chaos.injection.serving` over standard input and output.

The other end is `StreamExecutor`. When the stream ends, or nothing comes for the lease, all that is active is lifted
and undone, the ranks that this host holds are released, and the process ends as after the end of the run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from chaos.errors import ChaosError, InjectionError, NotOurs
from chaos.faults import registry
from chaos.faults.base import FaultContext, InsideHost, LinkHost, OwnedProcess, ProcessHost, Role
from chaos.faults.watch import Watch
from chaos.host import python_module
from chaos.host.run_processes import bears_mark
from chaos.injection.executor import HostExecutor, LocalExecutor
from chaos.injection.orders import Order, Refused, message_to_json, order_from_json
from chaos.injection.stream import (
    MAX_LINE_BYTES,
    Alive,
    Ask,
    Close,
    Closed,
    Failed,
    FromExecutor,
    Happened,
    JobEnded,
    Lapsed,
    Open,
    Ready,
    Reply,
    Silence,
    ToExecutor,
    WatchdogLost,
    read_line,
    to_executor,
    to_line,
)
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.job_records import ProcessStarted
from mecefo_runtime.system.process import ProcessId, set_name
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.wire import WireError


class Serving:
    """Serves `executor`, whose faults follow the job by `on_event`, until the stream ends.

    `release` lets the ranks go that this host holds; it is called when the injector is lost.
    """

    def __init__(
        self,
        executor: LocalExecutor,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        lease_seconds: float,
        on_event: Callable[[Event], None],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._executor = executor
        self._reader = reader
        self._writer = writer
        self._silence = Silence(lease_seconds)
        self._lease_seconds = lease_seconds
        self._on_event = on_event
        self._release = release
        self._orders: set[asyncio.Task[None]] = set()

    async def serve(self, messages: Iterable[FromExecutor] = ()) -> bool:
        """Carry out orders until the stream ends; returns whether it ended in order.

        Otherwise all that was active has been lifted and undone, as far as that was possible. `messages` follow the
        first one, which says that the executor is ready.
        """
        for message in (Ready(), *messages):
            self.send(message)
        reading, silence = asyncio.create_task(self._read()), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({reading, silence}, return_when=asyncio.FIRST_COMPLETED)
            is_in_order = reading.done() and reading.result()
            if not is_in_order:
                try:
                    for incident, failure in (await self._executor.end_all()).items():
                        log(f"incident {incident}: {failure or 'undone'}")
                finally:
                    self._release()
            return is_in_order
        finally:
            for task in (reading, silence, *self._orders):
                task.cancel()
            await asyncio.gather(reading, silence, *self._orders, return_exceptions=True)

    def send(self, message: FromExecutor) -> None:
        """Send a message; it is lost where the other end is gone."""
        line = to_line(message)
        if len(line) > MAX_LINE_BYTES and isinstance(message, Reply):
            refusal = Refused.because(Reason("answer_too_long", bytes=len(line), limit=MAX_LINE_BYTES), "broken")
            line = to_line(Reply(message.id, message_to_json(refusal)))
        self._writer.write(line)

    async def _read(self) -> bool:
        """Whether the end was announced."""
        try:
            while line := await read_line(self._reader):
                self._silence.heard()
                message = to_executor(line)
                if isinstance(message, Close):
                    return True
                self._take(message)
        except WireError as error:
            log(f"the injector cannot be understood: {error}")
        except Exception:
            # Whatever a line causes: what is active must still be undone, and the ranks released.
            traceback.print_exc()
        else:
            log("the stream of the injector has ended")
        return False

    def _take(self, message: ToExecutor) -> None:
        match message:
            case Ask(order=raw):
                task = asyncio.create_task(self._obey(order_from_json(raw)))
                self._orders.add(task)
                task.add_done_callback(self._orders.discard)
            case Happened(event=line):
                try:
                    event = Event.from_json(line)
                except ValueError as error:
                    raise WireError(str(error)) from error
                self._on_event(event)
            case JobEnded():
                self._executor.end_of_job()
            case _:
                pass

    async def _obey(self, order: Order) -> None:
        try:
            answer = await self._executor.obey(order)
        except Exception as error:
            traceback.print_exc()
            answer = Refused.because(Reason("fault_broke_down", error=repr(error)), "broken")
        self.send(Reply(order.id, message_to_json(answer)))

    async def _watch(self) -> None:
        """Until the injector was silent for the lease."""
        while True:
            silent_seconds = await self._silence.interval()
            if self._silence.is_over(silent_seconds):
                log(f"the injector was silent for {self._lease_seconds:g} s")
                return
            if self._silence.is_late(silent_seconds):
                for incident, failure in (await self._executor.end_overdue()).items():
                    log(f"incident {incident} is over, and the injector silent: {failure or 'undone'}")
            self.send(Alive())


class KnownProcesses:
    """The processes of a run on this host, from the events of the job; each must bear the run's mark.

    Processes of other hosts are left out. An event that names no host is of `run_host`. `places` are the hosts of the
    newest process of each rank, also of those elsewhere.
    """

    def __init__(self, run_host: Host) -> None:
        self.run_host = run_host
        self.places: dict[int, Host] = {}
        self._owned: dict[tuple[str, int | None, int | None], OwnedProcess] = {}

    def feed(self, event: Event) -> None:
        """Learn of a process that was started."""
        if event.kind != ProcessStarted.KIND:
            return
        try:
            record = parse(event)
        except ValueError:
            return
        role: Role | None = next((role for role in get_args(Role) if role == getattr(record, "role", "")), None)
        host = self.host_of(event)
        if not isinstance(record, ProcessStarted) or role is None:
            return
        if record.started_rank is not None:
            self.places[record.started_rank] = host
        if not host.is_here:
            return
        if record.started_pid is not None and record.start_ticks is not None:
            node = event.node if record.started_node is None else record.started_node
            # As a number of this host: in the event it may be that of another one.
            process = ProcessId(int(record.started_pid), record.start_ticks, host)
            self._owned[role, record.started_rank, node] = OwnedProcess(role, process, record.started_rank, node)

    def host_of(self, event: Event) -> Host:
        """The host whose pids an event has."""
        return self.run_host if event.host is None else event.host

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.ProcessHost`."""
        return self._ours(lambda owned: owned.role == "rank" and owned.rank in ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.ProcessHost`."""
        return self._ours(lambda owned: owned.node in nodes)

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.ProcessHost`."""
        return self._ours(lambda owned: owned.role == ("coordinator" if role == "store" else role))

    def all(self) -> tuple[OwnedProcess, ...]:
        """All that run."""
        return self._ours(lambda owned: True)

    def _ours(self, is_meant: Callable[[OwnedProcess], bool]) -> tuple[OwnedProcess, ...]:
        meant = tuple(owned for owned in self._owned.values() if is_meant(owned) and owned.process.is_running())
        for owned in meant:
            if not bears_mark(owned.process) and owned.process.is_running():
                raise NotOurs(Reason("not_started_by_run", process=str(owned)))
        return meant


class NoRanks:
    """Where no rank is connected to the executor: nothing can be done inside one."""

    async def begin(self, rank: int, effect: str, arguments: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """See `chaos.faults.base.InsideHost`."""
        raise InjectionError(Reason("not_connected", what=f"rank {rank}"))

    async def ask(self, node: int, question: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost`."""
        raise InjectionError(Reason("not_connected", what=f"node {node}"))

    async def report(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost`."""
        raise InjectionError(Reason("not_connected", what=f"rank {rank}"))

    async def lift(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost`."""
        return {"gone": True}


class Ground:
    """What an executor finds on its host beside processes that events report; this one: nothing more.

    `keeps_processes`: the run's processes there go on where the executor's process dies.
    """

    keeps_processes = False

    def inside(self) -> InsideHost:
        """What acts inside the ranks of this host."""
        return NoRanks()

    def processes(self, known: KnownProcesses) -> ProcessHost:
        """The processes of the run on this host; `known` are those that events report."""
        return known

    def links(self, processes: ProcessHost, cluster: Cluster | None) -> LinkHost | None:
        """What changes the links of this host, on which some ranks of `cluster` are; None: nothing does."""
        return None

    def here(self, event: Event) -> Event:
        """An event of the job, with the times of this host's clock."""
        return event

    def release(self) -> None:
        """The injector is lost: release the ranks that this host holds."""


async def serve_run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ground: Ground | None = None) -> int:
    """Serve the run that the first line opens, on what `ground` finds; returns the exit code of the process."""
    ground = Ground() if ground is None else ground
    opening = to_executor(await read_line(reader))
    if not isinstance(opening, Open):
        raise WireError("the first line must open a run")
    messages: list[FromExecutor] = []

    def send(message: FromExecutor) -> None:
        # `Ready` is the first message.
        messages.append(message) if serving is None else serving.send(message)

    serving: Serving | None = None
    executor = HostExecutor(
        registry(),
        Path(opening.folder),
        Path(opening.logs),
        folders=tuple(map(Path, opening.folders)),
        run=opening.run,
        host=opening.host,
        keeps_processes=ground.keeps_processes,
        on_lapse=lambda text: send(Lapsed(text)),
        on_loss=lambda text, is_replaced: send(WatchdogLost(text, is_replaced)),
        lease_seconds=opening.lease_seconds,
    )
    executor.open(has_watchdog=opening.has_watchdog)
    await executor.ready()
    known, watch = KnownProcesses(opening.run_host), Watch()
    processes = ground.processes(known)
    checkpoints = opening.checkpoint_folder
    executor.attend(
        FaultContext(
            processes=processes,
            inside=ground.inside(),
            watch=watch,
            run_folder=Path(opening.folder),
            checkpoint_folder=None if checkpoints is None else Path(checkpoints),
            has_foreign_checkpoints=opening.keeps_own_checkpoints,
            cluster=opening.cluster,
            links=ground.links(processes, opening.cluster),
        )
    )

    def on_event(event: Event) -> None:
        known.feed(event)
        watch.feed(ground.here(event))

    lease_seconds = opening.lease_seconds
    serving = Serving(executor, reader, writer, lease_seconds=lease_seconds, on_event=on_event, release=ground.release)
    is_in_order = await serving.serve(messages)
    farewell = await executor.close(ends_processes=is_in_order or opening.ends_processes)
    if is_in_order:
        serving.send(Closed(farewell.undone, farewell.undo_pending, farewell.processes, farewell.left))
        with suppress(OSError):
            await writer.drain()
    return 0 if is_in_order and farewell.is_clean else 1


async def standard_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Standard input and output, as streams; what else is printed goes to standard error from now on."""
    python_module.begin_output()
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def log(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{time.time():.3f} {text}\n")
    sys.stderr.flush()


async def _main() -> int:
    reader, writer = await standard_streams()
    try:
        return await serve_run(reader, writer)
    except (ChaosError, WireError) as error:
        log(str(error))
        writer.write(to_line(Failed(str(error))))
        with suppress(OSError):
            await writer.drain()
        return 1


def main() -> None:
    """Serve one run over standard input and output."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    set_name("chaos-executor")
    # All that an undo needs is in memory before there is anything to undo.
    registry()
    sys.exit(asyncio.run(_main()))


if __name__ == "__main__":
    main()
