"""The tool's end of the connection to the agent of one host: an executor of faults, and what the host reports.

The stream may break: another one is started, and what was not acknowledged is sent again. An agent that is gone, or
silent for the lease, is lost: the host is not observed from then on. When the host can be reached again, a new agent
undoes what the old one has left, and is there for what is started on the host from then on.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.faults.base import FaultContext, InsideHost
from chaos.faults.watch import ALWAYS_READ
from chaos.injection.orders import Answer, Applied, Lifted, Order, Refused, Undone, Verified
from chaos.injection.stream import Open, StreamExecutor
from chaos.undo.guard import Farewell
from chaos.undo.lease import LEASE_SECONDS
from harness.backends.cluster.agent_streams import AgentStreams, dismiss
from harness.backends.cluster.engine import Engine
from harness.backends.cluster.healing import heal_host
from harness.control.control_server import ControlServer
from harness.control.peers import Caller
from harness.node.frames import Frames, Streams
from harness.node.inside import answer_inside
from harness.node.messages import (
    EXECUTOR,
    FILE,
    FROM_AGENT,
    HELLO,
    LOG,
    RANK,
    TO_AGENT,
    AskInside,
    AskTime,
    Attach,
    CommandEnded,
    CommandStarted,
    EndProcesses,
    Greeting,
    Leave,
    Offset,
    ProcessEnded,
    ProcessesEnded,
    Signal,
    StartCommand,
    Time,
    ToAgent,
)
from harness.node.messages import Refused as RefusedProcess
from harness.node.process_table import ProcessesOfHosts, ReportedProcess
from mecefo_runtime.system.clocks import NUM_SAMPLES, ClockMapping, ClockSample, this_clock
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.job_records import ProcessStarted
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import HostLost, HostReached
from mecefo_runtime.system.wire import Message, WireError, encode

RETRY_SECONDS = 1.0
SAMPLE_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 15.0
_LEAVE_TIMEOUT_SECONDS = 10.0
_HEAL_TIMEOUT_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class RunOfHosts:
    """What the agents of one run share. `opening` is completed for each host."""

    run: str
    engine: Engine
    control: ControlServer
    table: ProcessesOfHosts
    folder: Path
    logs: Path
    emitter: Emitter
    opening: Open
    on_command_ended: Callable[[ProcessId, int], None]
    on_command_lost: Callable[[ProcessId], None]
    on_return: Callable[[], None]
    on_refused: Callable[[int], None]
    lease_seconds: float = LEASE_SECONDS


class HostAgent:
    """The agent on `host`, which is `node` where nodes are hosts; see `chaos.injection.executor.FaultExecutor`."""

    def __init__(self, host: str, node: int | None, run: RunOfHosts) -> None:
        self.host = host
        self.node = node
        self._of = run
        self._inside: InsideHost | None = None
        self._greeting: Greeting | None = None
        self._frames = self._new_frames()
        self._executor: StreamExecutor | None = None
        self._lost: str | None = "its agent is not ready"
        # Why the last stream ended, or could not be had.
        self._ended = ""
        self._is_over = False
        self._job_is_over = False
        # Incidents of which something may still be waited for there.
        self._under_way: set[int] = set()
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._commands: dict[int, ProcessId] = {}
        self._files: dict[int, Path] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._streams = AgentStreams(host, run.engine, run.run, run.logs)
        self.on_lapse: Callable[[str], None] | None = None

    # ---- what it is ----

    @property
    def lost(self) -> str | None:
        """Why nothing is known of the host; None: its agent is there."""
        return self._lost

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has come from the agent."""
        return math.inf if self._lost is not None else self._frames.silent_seconds

    @property
    def is_known(self) -> bool:
        """Whether its agent was ever reached."""
        return self._greeting is not None

    def tell(self, message: ToAgent) -> None:
        """Send a message, which is lost where the agent is."""
        if self._lost is None:
            self._send(message)

    @property
    def name(self) -> Host:
        """The host and its boot, as its agent said."""
        assert self._greeting is not None, "its agent was never reached"
        return Host(*self._greeting.host)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The network addresses of the host."""
        return () if self._greeting is None else self._greeting.addresses

    def attend(self, context: FaultContext) -> None:
        """A job is about to start; through `context` faults act inside its ranks."""
        self._inside = context.inside

    # ---- its life ----

    async def start(self) -> None:
        """Start the agent, and wait until its executor is ready.

        Raises:
            EnvironmentFailure: it cannot be started, or is of another version.
        """
        process, greeting = await self._streams.connect()
        keeping = self._follow(self._keep(process, greeting))
        self._follow(self._watch())
        ready = asyncio.create_task(self._begin(greeting))
        try:
            await asyncio.wait({ready, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise EnvironmentFailure(f"{self.host}: the agent ended as it started; see {self._streams.log}")
            await ready
        except (TimeoutError, ConnectionError) as error:
            raise EnvironmentFailure(f"{self.host}: the agent does not answer: {error}") from error
        finally:
            ready.cancel()

    async def _keep(self, process: asyncio.subprocess.Process, greeting: Greeting) -> None:
        """Carry the frames over one stream after the other, until the run is over."""
        self._ended = await self._carry(process, greeting)
        while not self._is_over:
            try:
                process, greeting = await self._streams.connect()
            except EnvironmentFailure as error:
                self._ended = str(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if self._lost is not None and not greeting.is_new:
                # It was silent for too long, such as one that was stopped, and leaves with its own lease.
                await dismiss(process)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if greeting.is_new:
                if self._lost is None:
                    self._lose("its agent is gone, and another one was started")
                self._frames = self._new_frames()
                self._follow(self._return(greeting))
            self._ended = await self._carry(process, greeting)

    async def _carry(self, process: asyncio.subprocess.Process, greeting: Greeting) -> str:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        attach = Attach(self._frames.num_received, self.node, self._of.lease_seconds)
        process.stdin.write(encode(HELLO.to_wire(attach)))
        try:
            ended = await self._frames.carry(process.stdout, process.stdin, greeting.num_received)
        except WireError as error:
            ended = str(error)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), RETRY_SECONDS)
        if process.returncode is None and not self._is_over:
            with suppress(ProcessLookupError):
                process.terminate()
        return ended

    async def _watch(self) -> None:
        """See when the agent is silent for the lease: its host is gone, or it hangs, with its stream open."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if self._lost is None and self._frames.silent_seconds > self._of.lease_seconds:
                self._lose(f"{self._ended}; its agent was silent for {self._of.lease_seconds:g} s".removeprefix("; "))
                if self._process is not None:
                    with suppress(ProcessLookupError):
                        self._process.kill()

    async def _begin(self, greeting: Greeting) -> None:
        """The agent knows nothing yet."""
        self._greeting = greeting
        await self._sample_clock(greeting)
        folder = Path(greeting.folder)
        opening = replace(self._of.opening, host=self.host, folder=str(folder), logs=str(folder))
        reader, writer = self._frames.open({"what": EXECUTOR})
        executor = StreamExecutor(opening, reader, writer, on_lapse=self._on_lapse, on_loss=self._on_watchdog_lost)
        await executor.ready()
        self._executor, self._lost, self._ended = executor, None, ""
        if self._job_is_over:
            executor.end_of_job()
        self._follow(self._sample_again(greeting, self._frames))
        host = Host(*greeting.host)
        self._of.emitter.emit(
            HostReached(
                reached=tuple(host.to_json()),
                of_node=self.node,
                engine=self._of.engine.name,
                addresses=greeting.addresses,
                num_starts=self._streams.num_starts,
                healed=greeting.healed,
            )
        )

    async def _return(self, greeting: Greeting) -> None:
        with suppress(EnvironmentFailure, TimeoutError, ConnectionError):
            await self._begin(greeting)
            self._of.on_return()

    def _lose(self, text: str) -> None:
        self._lost = text
        host, silent_seconds = tuple(self.name.to_json()), round(self._frames.silent_seconds, 3)
        self._of.emitter.emit(HostLost(lost=host, of_node=self.node, silent_seconds=silent_seconds, message=text))
        self._frames.close()
        self._of.table.lose(self.name)
        for number, process in list(self._commands.items()):
            del self._commands[number]
            self._of.on_command_lost(process)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(text))
        self._answers.clear()

    def _on_lapse(self, text: str) -> None:
        if self.on_lapse is not None:
            self.on_lapse(text)

    def _on_watchdog_lost(self, text: str, is_replaced: bool) -> None:
        """Without a watchdog its agent still undoes."""

    def _new_frames(self) -> Frames:
        return Frames(self._on_open, self._on_message, is_agent=False)

    def _follow(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- its clock ----

    async def _sample_clock(self, greeting: Greeting) -> None:
        samples = []
        for _ in range(NUM_SAMPLES):
            sent = time.monotonic()
            told = await self._ask(AskTime)
            samples.append(ClockSample(sent, told.seconds, time.monotonic()))
        mapping = ClockMapping.of(greeting.clock, samples)
        if greeting.clock != this_clock():
            self._of.control.learn_clock(mapping, Host(*greeting.host))
            best = min(samples, key=lambda sample: sample.uncertainty_seconds)
            self._send(Offset(best.offset_seconds))

    async def _sample_again(self, greeting: Greeting, frames: Frames) -> None:
        while self._frames is frames:
            await asyncio.sleep(SAMPLE_SECONDS)
            with suppress(TimeoutError, ConnectionError):
                await self._sample_clock(greeting)

    # ---- the executor ----

    async def obey(self, order: Order) -> Answer:
        """See `FaultExecutor`; times in the answer are those of the run's clock."""
        if self._executor is None or self._lost is not None:
            return Refused.because(Reason("host_silent", host=self.host, loss=self._lost or ""), "silent")
        self._under_way.add(order.incident)
        answer = await self._executor.obey(order)
        if isinstance(answer, Undone):
            self._under_way.discard(order.incident)
        assert self._greeting is not None
        mapping = self._of.control.clock_mapping(self._greeting.clock)
        return answer if mapping is None else _mapped(answer, mapping)

    def on_event(self, event: Event) -> None:
        """See `FaultExecutor`. Where no fault is under way, what none will ask for is not sent: that is most of it."""
        is_wanted = bool(self._under_way) or event.kind in _ALWAYS_SENT
        if is_wanted and self._executor is not None and self._lost is None:
            self._executor.on_event(event)

    def end_of_job(self) -> None:
        """See `FaultExecutor`."""
        self._job_is_over = True
        if self._executor is not None and self._lost is None:
            self._executor.end_of_job()

    async def close(self) -> Farewell:
        """The run is over; of a host that cannot be reached whether anything is left there is unknown."""
        farewell, is_there, lost = Farewell(), self._lost is None, self._lost
        if self._executor is None:
            # No fault and no process of the job can have been there.
            lost = None
        elif is_there:
            farewell = await self._executor.close()
        self._is_over = True
        if self._process is not None and self._process.returncode is None:
            self._send(Leave())
            await self._until_gone()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if lost is not None:
            farewell = await self._heal(lost)
        return farewell if self._greeting is None else _of_host(farewell, self.name)

    async def _heal(self, lost: str) -> Farewell:
        """What came of undoing on a host whose agent is lost: it may be there, and only the agent is not."""
        healed = await asyncio.to_thread(heal_host, self._of.engine, self._of.run, self.host, _HEAL_TIMEOUT_SECONDS)
        if healed.is_clean:
            return Farewell(tuple(dict(one) for one in healed.undone))
        if healed.failed or healed.left:
            pending = tuple(int(one["incident"]) for one in healed.failed)
            return Farewell(undo_pending=pending, left=tuple(dict(one) for one in healed.left))
        return Farewell(left=({"kind": "host", "what": f"{self.host}: {lost}; {self._unknown()}"},))

    def _unknown(self) -> str:
        folder = shlex.quote(str(self._of.folder.resolve()))
        return f"whether something is left there is not known: type `chaos heal {folder}` when it can be reached"

    async def _until_gone(self) -> None:
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), _LEAVE_TIMEOUT_SECONDS)
        except TimeoutError:
            self._process.terminate()
            await self._process.wait()

    # ---- what it does for the job ----

    async def start_command(
        self, words: Sequence[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> ProcessId:
        """Have a command started there, which prints into `log` here.

        Raises:
            EnvironmentFailure: it cannot be started.
        """
        number = next(self._ids)
        self._files[number] = log
        order = StartCommand(number, tuple(words), folder, environment)
        told = await self._answer(number, order)
        if told.process is None:
            raise EnvironmentFailure(f"the command cannot be started on {self.host}: {told.problem}")
        process = self._of.table.learn(self.name, told.process)
        self._commands[number] = process
        return process

    def signal(self, process: ProcessId, number: int) -> None:
        """Send a signal to a command that was started there."""
        for known, one in self._commands.items():
            if one == process:
                self._send(Signal(known, number))

    async def end_processes(self) -> tuple[int, ...]:
        """End all processes of the job there; returns those that had to be ended."""
        if self._lost is not None:
            return ()
        with suppress(TimeoutError, ConnectionError):
            return tuple((await self._ask(EndProcesses)).pids)
        return ()

    async def _ask(self, question: Callable[[int], ToAgent]) -> Any:
        number = next(self._ids)
        return await self._answer(number, question(number))

    async def _answer(self, number: int, question: ToAgent) -> Any:
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._send(question)
        try:
            return await asyncio.wait_for(answer, ANSWER_TIMEOUT_SECONDS)
        finally:
            self._answers.pop(number, None)

    def _send(self, message: ToAgent) -> None:
        self._frames.send(TO_AGENT.to_wire(message))

    # ---- what it reports ----

    def _on_message(self, raw: Message) -> None:
        message = FROM_AGENT.read(raw)
        match message:
            case Time() | CommandStarted() | ProcessesEnded():
                if (answer := self._answers.get(message.id)) is not None and not answer.done():
                    answer.set_result(message)
            case ProcessEnded(pid=pid, start_ticks=start_ticks, exit=code):
                self._of.table.has_ended(ProcessId(pid, start_ticks, self.name), code)
            case CommandEnded(id=number, exit=code):
                if (process := self._commands.pop(number, None)) is not None:
                    self._of.table.has_ended(process, code)
                    self._of.on_command_ended(process, code)
            case AskInside():
                self._follow(self._answer_inside(message))
            case RefusedProcess(uid=uid):
                self._of.on_refused(uid)

    async def _answer_inside(self, asked: AskInside) -> None:
        if self._inside is not None:
            self._send(await answer_inside(self._inside, asked))

    def _on_open(self, what: Mapping[str, Any], streams: Streams) -> None:
        match what.get("what"):
            case kind if kind == RANK and self._greeting is not None:
                told = ReportedProcess.from_json(what["process"])
                process = self._of.table.learn(self.name, told)
                caller = Caller(None, int(what["uid"]), process, self._greeting.clock, self.node)
                self._follow(self._of.control.serve(*streams, caller))
            case kind if kind == LOG and int(what["command"]) in self._files:
                self._follow(_write(streams[0], self._files[int(what["command"])]))
            case kind if kind == FILE:
                name = Path(str(what["name"])).name
                self._follow(_write(streams[0], self._of.logs / f"{self.host}-{name}"))
            case _:
                streams[1].close()


_ALWAYS_SENT = ALWAYS_READ | {ProcessStarted.KIND}


async def _write(reader: asyncio.StreamReader, path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        while part := await reader.read(1 << 16):
            file.write(part)


def _mapped(answer: Answer, mapping: ClockMapping) -> Answer:
    """An answer whose times were those of the host's clock."""

    def moment(seconds: float | None) -> float | None:
        return None if seconds is None else mapping.moment(seconds)

    match answer:
        case Applied(at_seconds=seconds):
            return replace(answer, at_seconds=mapping.moment(seconds))
        case Verified(evidence=evidence, took_effect_seconds=seconds):
            return replace(answer, evidence=mapping.moments(evidence), took_effect_seconds=moment(seconds))
        case Lifted(ended_seconds=seconds):
            return replace(answer, ended_seconds=moment(seconds))
    return answer


def _of_host(farewell: Farewell, host: Host) -> Farewell:
    """A farewell in which what is left says where."""

    def placed(one: Mapping[str, str]) -> dict[str, str]:
        return dict(one) if one["kind"] == "host" else {**one, "what": f"{host}: {one['what']}"}

    processes = tuple({**one, "host": host.to_json()} for one in farewell.processes)
    return replace(farewell, processes=processes, left=tuple(map(placed, farewell.left)))
