"""One run of plain training, or of ours without faults, and what it took."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, ClassVar, Self

from benchmarks.plain.forks import plain_file, rendezvous_file
from benchmarks.plain.phases import Window, hook_environment, phases_file
from benchmarks.plain.usage import Memory, cpu_seconds_of, read_memory
from chaos.in_process.protocol import AgentSession, FromAgent, Holds, Release
from harness.backends.node_job import with_agent
from harness.control.control_server import ControlServer
from mecefo_runtime.comm.messages import StopNode
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.wire import new_token

START_TIMEOUT_SECONDS = 120.0
RUN_TIMEOUT_SECONDS = 900.0
FAREWELL_SECONDS = 3.0
POLL_SECONDS = 0.01
# What a run that nothing disturbs says of itself.
_UNDISTURBED_KINDS = frozenset(
    {"rank_started", "rank_finished", "layout", "regrouped", "step_committed", "process_started", "process_exited"}
)
# No job comes to this step.
NEVER = 10**9

# (wall, CPU) seconds of every phase
PhaseSeconds = Mapping[str, tuple[float, float]]


class RunFailed(RuntimeError):
    """A run did not do what it should; its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took. Sums are over all ranks, and times are those of the window's steps.

    `losses` and `gradient_norms` are of all steps, in their order. `other_cpu_seconds` is what the job's processes
    took that are no ranks. `growth_bytes` is the peak of anonymous memory beyond what a rank was forked with.
    """

    step_seconds: tuple[float, ...]
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    rank_cpu_seconds: float
    other_cpu_seconds: float
    peak_bytes: int
    growth_bytes: int
    phases: PhaseSeconds | None

    @property
    def median_step_seconds(self) -> float:
        """The median measured step."""
        return median(self.step_seconds)

    @property
    def cpu_seconds_per_step(self) -> float:
        """CPU seconds of all ranks in the mean step."""
        return self.rank_cpu_seconds / len(self.step_seconds)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


class ForkServer:
    """The process that forks all runs of a benchmark (see `benchmarks.plain.forks`); leaving it ends all of them."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self.pid = 0

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.plain.forks",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is ours to handle: it must not reach the ranks.
            start_new_session=True,
        )
        try:
            reply = await asyncio.wait_for(self.reply(), START_TIMEOUT_SECONDS)
        except BaseException:
            await self._end()
            raise
        self.pid = int(reply["ready"])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def start(self, command: Mapping[str, Any]) -> dict[str, int]:
        """Have a job's processes forked; returns their pids by name."""
        self._send(command)
        started: dict[str, int] = (await asyncio.wait_for(self.reply(), START_TIMEOUT_SECONDS))["started"]
        return started

    async def kill_all(self, names: set[str]) -> None:
        """Kill what is left of a job, `names`, and wait until it is gone."""
        self._send({"command": "kill"})
        while names:
            names.discard((await self.reply()).get("exited", ""))

    async def reply(self) -> dict[str, Any]:
        """The next answer, or the next exit.

        Raises:
            RunFailed: the server died.
        """
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RunFailed("the process that forks all others died")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _send(self, command: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")


async def run_plain(forks: ForkServer, job: JobConfig, window: Window, folder: Path) -> Run:
    """Run `job` as plain training; its ranks measure themselves.

    Raises:
        RunFailed: it did not get to its end.
    """
    # Left behind where the same folder was used before.
    rendezvous_file(folder).unlink(missing_ok=True)
    command = {
        "command": "plain",
        "config": to_json(job),
        "window": [window.first, window.last],
        "folder": str(folder),
    }
    forked_with = read_memory(forks.pid).anonymous_bytes
    nodes = await forks.start(command)
    await _finish(forks, set(nodes), list(nodes), "plain", folder)
    found = [json.loads(plain_file(folder, rank).read_text()) for rank in range(job.cluster().num_ranks)]
    losses = [rank["losses"] for rank in found if rank["losses"] is not None]
    return Run(
        step_seconds=_differences(found[0]["ended_monotonic"][window.first : window.last + 1]),
        losses=tuple(map(sum, zip(*losses, strict=True))),
        gradient_norms=tuple(found[0]["gradient_norms"]),
        rank_cpu_seconds=sum(rank["cpu_seconds"] for rank in found),
        other_cpu_seconds=0.0,
        phases=_sum_phases([rank["phases"] for rank in found]),
        **_sum_memory([(Memory(**rank["memory"]), forked_with) for rank in found]),
    )


async def _finish(forks: ForkServer, alive: set[str], awaited: Iterable[str], what: str, folder: Path) -> None:
    """Wait until those `awaited` of the processes `alive` have ended well; kill all as soon as one has not.

    Raises:
        RunFailed: one has not.
    """
    failure = None
    try:
        async with asyncio.timeout(RUN_TIMEOUT_SECONDS):
            while failure is None and alive.intersection(awaited):
                reply = await forks.reply()
                alive.discard(reply["exited"])
                if reply["code"]:
                    failure = (
                        f"{what}: {reply['exited']} ended with exit code {reply['code']}{_last_words(folder, reply)}"
                    )
    except TimeoutError:
        failure = f"{what}: it did not end within {RUN_TIMEOUT_SECONDS:g} s"
    if failure is not None:
        await forks.kill_all(alive)
        raise RunFailed(failure)


def _last_words(folder: Path, reply: Mapping[str, Any]) -> str:
    lines = (folder / f"{reply['exited']}.log").read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


class NeverReached:
    """An armed injector as agents see it: every rank is told of one hold, at a step that no job comes to."""

    HOLDS: ClassVar = ((NEVER, "forward"),)

    def __init__(self) -> None:
        self.num_held = 0

    def connected(self, session: AgentSession) -> None:
        """See `chaos.in_process.protocol.AgentListener`."""
        session.send(Holds(self.HOLDS))

    def on_message(self, session: AgentSession, message: FromAgent) -> None:
        """Let it go at once, and remember."""
        self.num_held += 1
        session.send(Release(self.HOLDS))

    def closed(self, session: AgentSession) -> None:
        """See `chaos.in_process.protocol.AgentListener`."""


class _Watch:
    """Reads what ours takes from outside, at the first and at the last step of the window, as its commits are heard."""

    def __init__(self, window: Window, job: JobConfig, processes: Callable[[], Mapping[str, int]]) -> None:
        self._window = window
        self._num_ranks = job.cluster().num_ranks
        self._processes = processes
        self._rank_pids: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._began: tuple[float, float] | None = None
        self.events: list[Event] = []
        self.cpu_seconds: tuple[float, float] | None = None
        self.memory: list[tuple[Memory, int]] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "process_started":
            rank = int(event.fields["started_rank"])
            self._rank_pids[rank], self._parents[rank] = int(event.fields["started_pid"]), event.pid
        elif event.kind == "step_committed" and event.step == self._window.first:
            self._began = self._read_cpu()
        elif event.kind == "step_committed" and event.step == self._window.last and self._began is not None:
            ended = self._read_cpu()
            self.cpu_seconds = ended[0] - self._began[0], ended[1] - self._began[1]
            self.memory = [
                (read_memory(pid), read_memory(self._parents[rank]).anonymous_bytes)
                for rank, pid in self._rank_pids.items()
            ]

    @property
    def all_ranks_exited(self) -> bool:
        """Whether the supervisors have told of every rank's exit."""
        return sum(event.kind == "process_exited" for event in self.events) >= self._num_ranks

    def _read_cpu(self) -> tuple[float, float]:
        """CPU seconds so far of (ranks, all other processes of the job and this one, which collects its events)."""
        ranks = sum(map(cpu_seconds_of, self._rank_pids.values()))
        return ranks, sum(map(cpu_seconds_of, self._processes().values())) + time.process_time()

    def disturbance(self, num_held: int) -> str | None:
        """What should not happen while nothing fails, None if it did not."""
        strange = sorted({event.kind for event in self.events} - _UNDISTURBED_KINDS)
        layouts = [event.fields for event in self.events if event.kind == "layout"]
        epochs = {event.fields["epoch"] for event in self.events if event.kind == "step_committed"}
        reasons = [
            (num_held > 0, f"ranks were held {num_held} times"),
            (bool(strange), f"the log has {', '.join(strange)}"),
            (len(layouts) != 1 or len(epochs) != 1, "the layout changed"),
            (any(layout["degraded_layers"] for layout in layouts), "layers were degraded"),
            (len(self._rank_pids) != self._num_ranks, "not every rank was started exactly once"),
            (self.cpu_seconds is None, "the measured steps were not all heard of"),
        ]
        return next((reason for is_so, reason in reasons if is_so), None)


async def run_ours(
    forks: ForkServer,
    job: JobConfig,
    window: Window,
    folder: Path,
    *,
    is_armed: bool = False,
    with_phases: bool = False,
) -> Run:
    """Run `job` in our runtime without faults; `is_armed` has every rank armed with a fault that never comes.

    `with_phases` has the ranks measure their phases, and costs a little; what they took is measured from outside.

    Raises:
        RunFailed: it did not get to its end, or something was degraded, held or lost on the way.
    """
    processes: dict[str, int] = {}
    watch = _Watch(window, job, lambda: processes)
    control = ControlServer(watch.on_event)
    await control.open()
    listener = NeverReached()
    control.agents = listener
    environment = RankEnvironment(job, token=new_token(), events=control.address)
    variables = with_agent(environment) if is_armed else environment.variables()
    if with_phases and not is_armed:
        variables |= hook_environment(folder, window)
    command = {"command": "ours", "environment": variables, "folder": str(folder)}
    try:
        processes.update(await forks.start(command))
        await _finish_ours(forks, control, watch, set(processes), job, folder)
    finally:
        await control.close()
    committed = {event.step: event.fields for event in watch.events if event.kind == "step_committed"}
    failure = watch.disturbance(listener.num_held)
    if failure is None and len(committed) != job.steps:
        failure = f"{len(committed)} of {job.steps} steps were committed"
    if failure is not None or watch.cpu_seconds is None:
        raise RunFailed(f"ours: {failure}")
    steps = [committed[step] for step in sorted(committed, key=lambda step: step or 0)]
    ended_seconds = [float(step["committed_monotonic"]) for step in steps]
    return Run(
        step_seconds=_differences(ended_seconds[window.first - 1 : window.last]),
        losses=tuple(float(step["loss"]) for step in steps),
        gradient_norms=tuple(float(step["grad_norm"]) for step in steps),
        rank_cpu_seconds=watch.cpu_seconds[0],
        other_cpu_seconds=watch.cpu_seconds[1],
        phases=_read_phases(folder, job) if with_phases else None,
        **_sum_memory(watch.memory),
    )


async def _finish_ours(
    forks: ForkServer, control: ControlServer, watch: _Watch, alive: set[str], job: JobConfig, folder: Path
) -> None:
    """The coordinator ends with the job, then every rank, and the supervisors when they are told."""
    await _finish(forks, alive, ["coordinator"], "ours", folder)
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            while not watch.all_ranks_exited:
                await asyncio.sleep(POLL_SECONDS)
    for node in range(job.nodes):
        control.order(MAIN_JOB, node, StopNode())
    await _finish(forks, alive, list(alive), "ours", folder)


def _read_phases(folder: Path, job: JobConfig) -> PhaseSeconds:
    return _sum_phases([json.loads(phases_file(folder, r).read_text()) for r in range(job.cluster().num_ranks)])


def _sum_phases(ranks: Sequence[Mapping[str, Sequence[float]]]) -> PhaseSeconds:
    return {phase: (sum(r[phase][0] for r in ranks), sum(r[phase][1] for r in ranks)) for phase in ranks[0]}


def _sum_memory(ranks: Sequence[tuple[Memory, int]]) -> dict[str, int]:
    """The memory fields of a Run; each rank comes with the anonymous bytes that it was forked with."""
    return {
        "peak_bytes": sum(memory.peak_bytes for memory, _ in ranks),
        "growth_bytes": sum(memory.peak_anonymous_bytes - forked_with for memory, forked_with in ranks),
    }


def _differences(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(later - earlier for earlier, later in pairwise(times))
