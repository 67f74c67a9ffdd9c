"""A rank that is slower than the others: stopped for a share of the time, in cycles of milliseconds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, EnvironmentFailure, NotOurs
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, FaultContext, OwnedProcess
from chaos.faults.process._processes import RUNNING, ProcessFault
from chaos.faults.process.pause import resume
from chaos.faults.watch import SeenStep, from_commit_to_commit
from chaos.host import python_module
from chaos.host.process_table import STOPPED
from chaos.host.run_processes import bears_mark
from chaos.host.undo_record import UndoRecord
from chaos.language.quantities import SecondsText
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

EFFECT = "chaos.in_process.slow:SlowPace"
CYCLE_MODULE = "chaos.host.duty_cycle"
# The stopped share must be seen to be what was asked for, up to so much of it, or of the whole where it is small.
TOLERANCE_RATIO = 0.15
SMALL_RATIO = 0.05
NUM_STEPS = 5
NUM_STEPS_BEFORE = 20
NUM_SAMPLES = 500
# Irregular, so that no rhythm of the cycle is met.
SAMPLE_SECONDS = (0.002, 0.008)
SLOW_SECONDS = 120.0
# Longer than a machine full of others takes for the start of a Python process.
START_SECONDS = 120.0
STOP_SECONDS = 5.0
LIFT_SECONDS = 15.0
# A cycle that still goes on is seen within so many periods, on a busy machine too.
STILL_PERIODS = 10


class SlowParameters(BaseModel):
    """How slow it gets, and how evenly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factor: float = Field(
        default=2.0,
        ge=1.1,
        le=20,
        allow_inf_nan=False,
        description="how many times as long the compute of the rank takes",
    )
    jitter: float = Field(
        default=0.0, ge=0, le=1, allow_inf_nan=False, description="maximum variation of each stop, as a share of it"
    )
    period: SecondsText = Field(default=0.05, description="length of one cycle of running and stopping")
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="seed of the jitter; independent of the seed of the experiment"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleRecord(ProcessesRecord):
    """The processes that are stopped again and again, once in a period."""

    period_seconds: float = 0.0


class SlowRank(ProcessFault[SlowParameters]):
    """A rank runs at 1/factor of its speed: a duty cycle of SIGSTOP and SIGCONT, and more padding where it is paced."""

    kind: ClassVar[str] = "slow-rank"
    brief: ClassVar[str] = "run at 1/factor of its speed"
    scope: ClassVar[Scope] = "rank"
    has_lifetime: ClassVar[bool] = True
    exclusive: ClassVar[str | None] = RUNNING
    acts_inside: ClassVar[bool] = True
    shows_when_released: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = SLOW_SECONDS
    undo_summary: ClassVar[str] = "ends the cycle, and sends SIGCONT; the cycle also ends with chaos"
    Record: ClassVar[type[UndoRecord]] = CycleRecord
    Parameters: ClassVar[type[BaseModel]] = SlowParameters

    def __init__(self, parameters: SlowParameters) -> None:
        super().__init__(parameters)
        self._handles: dict[int, int] = {}
        self._padded_ratio = 1.0
        self._cycle: asyncio.subprocess.Process | None = None
        self._steps_before: list[SeenStep] = []
        self._applied_seconds = 0.0

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The processes, and how long to look whether they are still being stopped."""
        act = super().prepare(target, context)
        record = CycleRecord.of(act.processes, period_seconds=self.parameters.period)
        return Act(act.processes, record.to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """More padding first, while the ranks are held; then the cycle."""
        if any(owned.process.local_pid == os.getpid() for owned in act.processes):
            raise NotOurs(Reason("chaos_itself"))
        await self._pad(act, context)
        self._steps_before = list(context.watch.steps)[-NUM_STEPS_BEFORE - 1 :]
        parameters = self.parameters
        numbers = (parameters.factor, parameters.period, parameters.jitter, parameters.seed)
        whom = [f"{owned.process.local_pid}:{owned.process.start_ticks}" for owned in act.processes]
        try:
            self._cycle = await asyncio.create_subprocess_exec(
                *python_module.command(CYCLE_MODULE, *map(str, numbers), *whom),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert self._cycle.stdout is not None
            began = await asyncio.wait_for(python_module.has_begun(self._cycle.stdout), START_SECONDS)
        except (OSError, TimeoutError) as error:
            raise EnvironmentFailure(f"the process that stops and resumes the rank does not start: {error}") from error
        if not began:
            raise EnvironmentFailure("the process that stops and resumes the rank ended immediately")
        self._applied_seconds = time.monotonic()

    async def _pad(self, act: Act, context: FaultContext) -> None:
        """Slow down what the ranks pad of their compute."""
        for rank in act.ranks:
            arguments = {"factor": self.parameters.factor}
            self._handles[rank], told = await context.inside.begin(rank, EFFECT, arguments)
            self._padded_ratio = max(self._padded_ratio, float(told["padded_ratio"]))

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Look at the ranks' states at irregular times, and at the job's steps before and since."""
        looks = await self._look(act, context, timeout_seconds)
        asked_ratio = 1.0 - 1.0 / self.parameters.factor
        shares = {owned: _share([(at, states[owned]) for at, states in looks]) for owned in act.processes}
        num_samples = len(looks)
        for owned, share in shares.items():
            if abs(share - asked_ratio) > max(TOLERANCE_RATIO * asked_ratio, SMALL_RATIO):
                raise EffectNotSeen(
                    Reason(
                        "stopped_otherwise",
                        process=owned,
                        stopped_ratio=share,
                        samples=num_samples,
                        asked_ratio=asked_ratio,
                        factor=self.parameters.factor,
                    )
                )
        steps = self._judge_steps(context)
        names = ", ".join(f"{owned} for {share:.0%} of the time" for owned, share in shares.items())
        padding = f"; compute padded to {self._padded_ratio:g} x its CPU time is padded by the same factor"
        return {
            "summary": f"stopped (factor {self.parameters.factor:g} asks for {asked_ratio:.0%}; {num_samples} looks at "
            f"the process table): {names}; {steps['summary']}{padding if self._padded_ratio > 1 else ''}",
            "seen_in": "process table, and the job's committed steps",
            "asked_stopped_ratio": asked_ratio,
            "samples": num_samples,
            "padded_ratio": self._padded_ratio,
            **{key: value for key, value in steps.items() if key != "summary"},
            "processes": [{**owned.to_dict(), "stopped_ratio": share} for owned, share in shares.items()],
        }

    async def _look(
        self, act: Act, context: FaultContext, timeout_seconds: float
    ) -> list[tuple[float, dict[OwnedProcess, bool]]]:
        """When, and who was stopped then; until there is enough to judge."""
        began = time.monotonic()
        rng = random.Random(self.parameters.seed)
        looks: list[tuple[float, dict[OwnedProcess, bool]]] = []
        while len(looks) < NUM_SAMPLES or len(from_commit_to_commit(self._steps_since(context))) < NUM_STEPS:
            if time.monotonic() - began > timeout_seconds:
                break
            states = {owned: owned.process.state() for owned in act.processes}
            gone = [owned for owned, state in states.items() if state == "gone"]
            if gone:
                raise EffectNotSeen(Reason("ended_before_measured", processes=", ".join(map(str, gone))))
            looks.append((time.monotonic(), {owned: state == STOPPED for owned, state in states.items()}))
            await asyncio.sleep(rng.uniform(*SAMPLE_SECONDS))
        return looks

    def _steps_since(self, context: FaultContext) -> list[SeenStep]:
        return [step for step in context.watch.steps if step.began_seconds >= self._applied_seconds > 0]

    def _judge_steps(self, context: FaultContext) -> dict[str, Any]:
        """Median step times before and since: what came of it, beside whatever else kept the machine busy then and now.

        Raises:
            EffectNotSeen: too few steps since.
        """
        before, during = (
            list(from_commit_to_commit(steps).values()) for steps in (self._steps_before, self._steps_since(context))
        )
        if len(during) < NUM_STEPS:
            raise EffectNotSeen(Reason("too_few_steps", steps=len(during), needed_steps=NUM_STEPS))
        found: dict[str, Any] = {
            "steps_before": len(before),
            "steps_during": len(during),
            "step_seconds_before": round(statistics.median(before), 6) if before else None,
            "step_seconds_during": round(statistics.median(during), 6),
            "step_time_ratio": None,
        }
        if len(before) < NUM_STEPS:
            return {**found, "summary": f"too few steps before ({len(before)}) to compare step times"}
        ratio = statistics.median(during) / statistics.median(before)
        found["step_time_ratio"] = round(ratio, 4)
        return {
            **found,
            "summary": f"the job's steps take {ratio:.2f} x as long: {statistics.median(during):.3f} s instead of "
            f"{statistics.median(before):.3f} s (medians of {len(during)} and {len(before)}"
            f"{'; the load of the machine changed, too' if ratio < 1.0 else ''})",
        }

    async def lift(self, act: Act, context: FaultContext) -> float | None:
        """End the cycle, then the padding; returns when the cycle ended."""
        ended_seconds: float | None = None
        if self._cycle is not None:
            assert self._cycle.stdin is not None and self._cycle.stdout is not None
            self._cycle.stdin.close()
            try:
                said = await asyncio.wait_for(self._cycle.stdout.read(), STOP_SECONDS)
                ended_seconds = float(said.split()[0]) if said else None
                await asyncio.wait_for(self._cycle.wait(), STOP_SECONDS)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self._cycle.kill()
                await self._cycle.wait()
            # Where it was killed, or had been by others.
            resume(tuple(owned.process for owned in act.processes))
        for rank, handle in self._handles.items():
            await context.inside.lift(rank, handle, LIFT_SECONDS)
        # A rank that is padded less from its next step on is slow until then.
        return ended_seconds if self._padded_ratio <= 1 else None

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """End the cycle, SIGCONT, and a look for longer than a period: they are no longer stopped."""
        known = CycleRecord.from_json(record)
        processes = known.ids
        _end_cycles(processes)
        resume(processes, still_seconds=STILL_PERIODS * known.period_seconds)
        return {"undone": "no longer stopped periodically", "pids": [process.pid for process in processes]}


def _end_cycles(processes: Sequence[ProcessId]) -> None:
    """Kill what still stops any of `processes`: of a `chaos` that is there but does not run, the cycle continues."""
    whom = {f"{process.pid}:{process.start_ticks}".encode() for process in processes}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        # It may be gone at any moment.
        with suppress(OSError):
            if entry.stat().st_uid != os.geteuid():
                continue
            cycle = ProcessId.of(int(entry.name))
            arguments = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            if CYCLE_MODULE.encode() in arguments and whom & set(arguments) and bears_mark(cycle):
                cycle.signal(signal.SIGKILL)


def _share(looks: Sequence[tuple[float, bool]]) -> float:
    """The share of the time for which it held, each look standing for half the time to its neighbours.

    Who looks is kept waiting more while others run: looks alone would count that time for less than it was.
    """
    held_seconds = sum((at - before) * (did + does) / 2 for (before, did), (at, does) in pairwise(looks))
    seconds = looks[-1][0] - looks[0][0] if looks else 0.0
    return min(1.0, held_seconds / seconds) if seconds > 0 else 0.0
