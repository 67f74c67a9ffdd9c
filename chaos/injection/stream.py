"""An executor in another process: orders and answers as lines of JSON over a stream.

`StreamExecutor` is the injector's end, `chaos.injection.serving` the executor's. The stream comes from the start of the
executor's process, and both ends trust it. A line has a maximum length, and nothing is unpickled. Each end sends a
heartbeat every second. After a silence of the lease the injector takes its orders for refused and releases the ranks,
and the executor lifts and undoes all that is active.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.host import python_module
from chaos.host.inherited import why
from chaos.host.run_processes import RUN_VARIABLE
from chaos.injection.orders import Answer, Order, Refused, answer_from_json, message_to_json
from chaos.undo.guard import Farewell
from chaos.undo.lease import LEASE_SECONDS, RENEWAL_SECONDS, START_TIMEOUT_SECONDS
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import Host, this_host
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.wire import WireError, decode, encode
from mecefo_runtime.system.wire_messages import Messages

# The evidence of a fault on thousands of processes fits.
MAX_LINE_BYTES = 1 << 20
# An executor that leaves more than this unread is lost.
MAX_UNSENT_BYTES = 1 << 24
CLOSE_TIMEOUT_SECONDS = 60.0
EXIT_TIMEOUT_SECONDS = 5.0
UNDOES = "it undoes what it did, or its watchdog does"


# ---- from the injector ----


@dataclass(frozen=True, slots=True)
class Open:
    """The first line: the run on the executor's host. All paths are absolute.

    `run` is its name in the environment of its processes; `folder` has its ledger, `logs` the watchdog's log; in
    `folders` files may be changed. `cluster` and the checkpoints are those of the job. `run_host` is the host of the
    pids in events that name no host. `ends_processes`: when the injector is lost, the run's processes on the executor's
    host end.
    """

    run: str
    host: str
    folder: str
    logs: str
    folders: tuple[str, ...] = ()
    checkpoint_folder: str | None = None
    keeps_own_checkpoints: bool = False
    cluster: Cluster | None = None
    lease_seconds: float = LEASE_SECONDS
    has_watchdog: bool = True
    run_host: Host = field(default_factory=this_host)
    ends_processes: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Carry out this order."""

    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the job, as the line of the event log."""

    event: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over."""


@dataclass(frozen=True, slots=True)
class Close:
    """The run is over: undo what is pending, end its processes on this host, look for what is left, and go."""


# ---- from the executor ----


@dataclass(frozen=True, slots=True)
class Ready:
    """Orders may come."""


@dataclass(frozen=True, slots=True)
class Failed:
    """No order can be carried out."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the order of that number."""

    id: int
    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The executor's process did not run for its lease, and its watchdog has undone."""

    text: str


@dataclass(frozen=True, slots=True)
class WatchdogLost:
    """The executor's watchdog has ended."""

    text: str
    is_replaced: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """What `Close` came to. It is the last line."""

    undone: tuple[Mapping[str, Any], ...] = ()
    undo_pending: tuple[int, ...] = ()
    processes: tuple[Mapping[str, Any], ...] = ()
    left: tuple[Mapping[str, str], ...] = ()


# ---- from both ----


@dataclass(frozen=True, slots=True)
class Alive:
    """The end that sends this is there."""


ToExecutor = Open | Ask | Happened | JobEnded | Close | Alive
FromExecutor = Ready | Failed | Reply | Lapsed | WatchdogLost | Closed | Alive
_REFUSAL = "no message between injector and executor"
_TO_EXECUTOR = Messages(
    {"open": Open, "ask": Ask, "happened": Happened, "job-ended": JobEnded, "close": Close, "alive": Alive}, _REFUSAL
)
_FROM_EXECUTOR = Messages(
    {
        "ready": Ready,
        "failed": Failed,
        "reply": Reply,
        "lapsed": Lapsed,
        "watchdog-lost": WatchdogLost,
        "closed": Closed,
        "alive": Alive,
    },
    _REFUSAL,
)


def to_line(message: ToExecutor | FromExecutor) -> bytes:
    """`message` as a line."""
    return encode((_TO_EXECUTOR if isinstance(message, ToExecutor) else _FROM_EXECUTOR).to_wire(message))


def to_executor(line: bytes) -> ToExecutor:
    """Read a line that the injector has sent.

    Raises:
        WireError: it is none.
    """
    message: ToExecutor = _TO_EXECUTOR.read(decode(line))
    return message


def from_executor(line: bytes) -> FromExecutor:
    """Read a line that an executor has sent.

    Raises:
        WireError: it is none.
    """
    message: FromExecutor = _FROM_EXECUTOR.read(decode(line))
    return message


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end of the stream.

    Raises:
        WireError: it is longer than `MAX_LINE_BYTES`, which is the limit of `reader`.
    """
    try:
        line = await reader.readline()
    except (ValueError, OSError) as error:
        raise WireError(f"the stream cannot be read: {error}") from error
    # A last line that was cut off says nothing.
    return line if line.endswith(b"\n") else b""


class Silence:
    """How long the other end has been silent. Time in which this process itself did not run does not count."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._interval_seconds = min(RENEWAL_SECONDS, lease_seconds / 4)
        self._heard_seconds = time.monotonic()

    def heard(self) -> None:
        """A line came."""
        self._heard_seconds = time.monotonic()

    async def interval(self) -> float:
        """Wait until the next heartbeat is due; returns for how long the other end has been silent."""
        began = time.monotonic()
        await asyncio.sleep(self._interval_seconds)
        now = time.monotonic()
        self._heard_seconds = min(now, self._heard_seconds + max(0.0, now - began - 2 * self._interval_seconds))
        return now - self._heard_seconds

    def is_over(self, silent_seconds: float) -> bool:
        """Whether the lease has ended."""
        return silent_seconds > self._lease_seconds

    def is_late(self, silent_seconds: float) -> bool:
        """Whether the other end has missed a heartbeat."""
        return silent_seconds > 2 * self._interval_seconds


class StreamExecutor:
    """The executor at the other end of a stream, of which `reader` and `writer` are this end.

    `on_lapse` and `on_loss` are called as in `Lease`. An executor that was silent for the lease is lost: all orders are
    refused from then on, and the stream is closed, so that it undoes if it is still there.
    """

    def __init__(
        self,
        opening: Open,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        on_lapse: Callable[[str], None],
        on_loss: Callable[[str, bool], None],
    ) -> None:
        self.host = opening.host
        self._reader = reader
        self._writer = writer
        self._on_lapse = on_lapse
        self._on_loss = on_loss
        self._lease_seconds = opening.lease_seconds
        self._silence = Silence(opening.lease_seconds)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._lost: str | None = None
        self._begun: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._closed: asyncio.Future[Closed | None] = asyncio.get_running_loop().create_future()
        self._send(opening)
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._watch())]

    @property
    def lost(self) -> str | None:
        """Why the executor is lost; None while it is there."""
        return self._lost

    async def ready(self) -> None:
        """Until orders can be carried out.

        Raises:
            EnvironmentFailure: they cannot.
        """
        try:
            failure = await asyncio.wait_for(asyncio.shield(self._begun), START_TIMEOUT_SECONDS)
        except TimeoutError:
            failure = f"it was not ready within {START_TIMEOUT_SECONDS:g} s"
            self._lose(failure)
        if failure is not None:
            raise EnvironmentFailure(f"nothing can be injected on {self.host}: {failure}")

    async def obey(self, order: Order) -> Answer:
        """See `chaos.injection.executor.FaultExecutor.obey`."""
        if self._lost is not None:
            return self._refusal()
        ask = Ask(message_to_json(order))
        if (num_bytes := len(to_line(ask))) > MAX_LINE_BYTES:
            return Refused.because(Reason("order_too_long", bytes=num_bytes, limit=MAX_LINE_BYTES))
        future = self._waiting.setdefault(order.id, asyncio.get_running_loop().create_future())
        self._send(ask)
        return await asyncio.shield(future)

    def on_event(self, event: Event) -> None:
        """Pass an event of the job on, unless it is longer than a line may be: the executor would be lost."""
        happened = Happened(event.to_json())
        if len(to_line(happened)) <= MAX_LINE_BYTES:
            self._send(happened)

    def end_of_job(self) -> None:
        """Say that the job is over."""
        self._send(JobEnded())

    async def close(self) -> Farewell:
        """The run is over. A lost executor is reported as residue: whether anything is left there is unknown."""
        self._send(Close())
        closed: Closed | None = None
        with suppress(TimeoutError):
            closed = await asyncio.wait_for(asyncio.shield(self._closed), CLOSE_TIMEOUT_SECONDS)
        self._lose("the run is over")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if closed is None:
            what = f"{self.host}: {self._lost}; whether something is left there is not known"
            return Farewell(left=({"kind": "host", "what": what},))
        return Farewell(
            tuple(dict(one) for one in closed.undone),
            closed.undo_pending,
            tuple(dict(one) for one in closed.processes),
            tuple(dict(one) for one in closed.left),
        )

    async def _follow(self) -> None:
        why_ended = "its stream has ended"
        try:
            while line := await read_line(self._reader):
                self._silence.heard()
                self._on_message(from_executor(line))
        except WireError as error:
            why_ended = str(error)
        finally:
            self._lose(f"the executor is gone ({why_ended}); {UNDOES}")

    def _on_message(self, message: FromExecutor) -> None:
        match message:
            case Reply(id=number, answer=answer):
                # First: an order whose answer cannot be read still waits, and is refused when the executor is lost.
                readable = answer_from_json(answer)
                future = self._waiting.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(readable)
            case Ready() if not self._begun.done():
                self._begun.set_result(None)
            case Failed(text=text) if not self._begun.done():
                self._begun.set_result(text)
            case Lapsed(text=text):
                self._on_lapse(f"{self.host}: {text}")
            case WatchdogLost(text=text, is_replaced=is_replaced):
                self._on_loss(f"{self.host}: {text}", is_replaced)
            case Closed() if not self._closed.done():
                self._closed.set_result(message)
            case _:
                pass

    async def _watch(self) -> None:
        while self._lost is None:
            silent_seconds = await self._silence.interval()
            if self._begun.done() and self._silence.is_over(silent_seconds):
                seconds = f"{self._lease_seconds:g} s"
                self._lose(f"the executor was silent for {seconds}; {UNDOES}")
            self._send(Alive())

    def _send(self, message: ToExecutor) -> None:
        if self._lost is not None:
            return
        self._writer.write(to_line(message))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._lose(f"the executor does not read what it is sent; {UNDOES}")

    def _lose(self, text: str) -> None:
        if self._lost is not None:
            return
        self._lost = text
        if not self._begun.done():
            self._begun.set_result(text)
        if not self._closed.done():
            self._closed.set_result(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_result(self._refusal())
        self._waiting.clear()
        # An executor that is still there undoes when its stream ends. `abort` of a closed transport raises an
        # AttributeError in Python 3.11.
        if not self._writer.transport.is_closing():
            self._writer.transport.abort()

    def _refusal(self) -> Refused:
        return Refused.because(Reason("host_silent", host=self.host, loss=self._lost), "silent")


@dataclass(frozen=True, slots=True)
class ExecutorProcess:
    """An executor in a process of this machine, and that process."""

    executor: StreamExecutor
    process: asyncio.subprocess.Process

    async def end(self) -> Farewell:
        """The run is over; see `StreamExecutor.close`. The process is gone after that."""
        farewell = await self.executor.close()
        try:
            await asyncio.wait_for(self.process.wait(), EXIT_TIMEOUT_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        # Up to its end: only then asyncio closes what it keeps for the process.
        if self.process.stdout is not None:
            with suppress(OSError):
                while await self.process.stdout.read(MAX_LINE_BYTES):
                    pass
        await asyncio.sleep(0)
        return farewell


async def start_executor(
    opening: Open, log: Path, *, on_lapse: Callable[[str], None], on_loss: Callable[[str, bool], None]
) -> ExecutorProcess:
    """Start an executor as a separate process on this machine; its standard error goes to `log`.

    Raises:
        EnvironmentFailure: it cannot be started, or ends as it starts.
    """
    # It is none of the run's processes: a fault of a node must not end it.
    environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    try:
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *python_module.command("chaos.injection.serving"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                limit=MAX_LINE_BYTES,
                # Neither Ctrl-C nor the end of the terminal is for it.
                start_new_session=True,
            )
    except OSError as error:
        raise EnvironmentFailure(f"the executor cannot be started: {why(error)}") from error
    assert process.stdin is not None and process.stdout is not None
    has_begun = False
    with suppress(TimeoutError, ValueError):
        has_begun = await asyncio.wait_for(python_module.has_begun(process.stdout), START_TIMEOUT_SECONDS)
    if not has_begun:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise EnvironmentFailure(f"the executor ended as it started; see {log}")
    executor = StreamExecutor(opening, process.stdout, process.stdin, on_lapse=on_lapse, on_loss=on_loss)
    return ExecutorProcess(executor, process)
