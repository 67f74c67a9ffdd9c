"""A rank whose data or whose checkpoints come late: its training thread sleeps before that phase of every step.

Verified on both sides: in the rank, how long it slept; in the job, that no step was committed before the sleeping
rank woke up, and that the steps took that long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chaos.errors import EffectNotSeen, UsageError
from chaos.faults.base import Act, Fault, FaultContext, Fidelity
from chaos.faults.endings import Endings, Recognised, raised_to_dict
from chaos.faults.watch import from_commit_to_commit
from chaos.host.undo_record import UndoRecord
from chaos.language.quantities import SecondsFromZeroText, SecondsText
from chaos.language.target import ResolvedTarget, Scope
from chaos.step_ranges import on_other_ranks
from mecefo_runtime.system.reason import Reason

EFFECT = "chaos.in_process.slow:DelayPhase"
MAX_DELAY_SECONDS = 60.0
MIN_DELAY_SECONDS = 0.001
# Times of commits are rounded.
CLOCK_SECONDS = 1e-5
# Of the sleep, so much at least must be found again in the usual slow step. Not all: the rank that says when a step was
# committed may have said so of the step before when the other one slept already.
SEEN_RATIO = 0.5
# So many steps before the first slow one are what the slow ones are compared with.
NUM_STEPS_BEFORE = 10
# So many steps tell how much they vary without the fault.
NUM_STEPS_OF_NOISE = 5
# Who waited tells a moment after its time-out.
LATE_SECONDS = 2.0
# The rank answers at its next phase, perhaps after a whole step.
LIFT_MARGIN_SECONDS = 30.0


class DelayParameters(BaseModel):
    """How long the rank sleeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay: SecondsText = Field(default=0.2, description="how long it sleeps each time")
    jitter: SecondsFromZeroText = Field(default=0.0, description="maximum variation of each sleep, drawn by the seed")

    @model_validator(mode="after")
    def _fits(self) -> DelayParameters:
        if self.delay > MAX_DELAY_SECONDS:
            raise UsageError(f"more than {MAX_DELAY_SECONDS:g}s a step is no delay: use pause-process", key="delay")
        if self.delay < MIN_DELAY_SECONDS:
            raise UsageError(
                "less than 1ms cannot be told from the noise of a step: choose a longer delay", key="delay"
            )
        if self.jitter > self.delay:
            raise UsageError(f"{self.jitter:g}s is more than the delay: choose at most {self.delay:g}s", key="jitter")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRecord(UndoRecord):
    """The ranks that sleep, of which effect, in which phase."""

    ranks: tuple[int, ...] = ()
    effect: str = ""
    phase: str = ""

    def changed_paths(self) -> tuple[str, ...] | None:
        """Nothing outside of the ranks."""
        return ()


class _Delay(Fault[DelayParameters]):
    """Delays one phase of the target's ranks."""

    scope: ClassVar[Scope] = "rank"
    fidelity: ClassVar[Fidelity] = "shaped"
    undo_summary: ClassVar[str] = "the rank stops sleeping, also when chaos has ended"
    has_lifetime: ClassVar[bool] = True
    acts_inside: ClassVar[bool] = True
    shows_when_released: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = 600.0
    Record: ClassVar[type[UndoRecord]] = DelayRecord
    Parameters: ClassVar[type[BaseModel]] = DelayParameters
    phase: ClassVar[str]
    # So many slow steps are waited for.
    num_steps: ClassVar[int]

    def __init__(self, parameters: DelayParameters) -> None:
        super().__init__(parameters)
        self._handles: dict[int, int] = {}
        # The long sleep that each rank is in, or was in last.
        self._asleep: dict[int, Mapping[str, Any]] = {}

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The ranks of the target; that they are there is found when the effect begins in them."""
        processes = context.processes.rank_processes(target.ranks)
        return Act(processes, DelayRecord(ranks=target.ranks, effect=EFFECT, phase=self.phase).to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Begin in each rank."""
        for rank in DelayRecord.from_json(act.undo_record).ranks:
            arguments = {
                "phase": self.phase,
                "delay_seconds": self.parameters.delay,
                "jitter_seconds": self.parameters.jitter,
                "seed": int(self.rng.random() * 2**32),
            }
            self._handles[rank], _ = await context.inside.begin(rank, EFFECT, arguments)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Gather the sleeps of some steps from every rank, and hold them against the steps that the job committed."""
        if not self._handles:
            raise EffectNotSeen(Reason("no_sleep"))
        ranks = sorted(self._handles)
        told = await asyncio.gather(*(self._sleeps(rank, context, timeout_seconds) for rank in ranks))
        sleeps = dict(zip(ranks, told, strict=True))
        floor = self.parameters.delay - self.parameters.jitter
        all_sleeps = [sleep for of_rank in told for sleep in of_rank]
        shortest = min(sleep["slept_seconds"] for sleep in all_sleeps)
        if shortest < floor:
            raise EffectNotSeen(Reason("sleep_too_short", slept_seconds=shortest, asked_seconds=floor))
        slow = await self._intervals(all_sleeps, context, timeout_seconds)
        step_seconds = median(seconds for _, seconds in slow)
        slept_seconds = median(sleep["slept_seconds"] for sleep in all_sleeps)
        if step_seconds < SEEN_RATIO * slept_seconds:
            raise EffectNotSeen(Reason("steps_not_slower", step_seconds=step_seconds, slept_seconds=slept_seconds))
        before = self._steps_before(slow, context)
        if len(before) >= NUM_STEPS_OF_NOISE and slept_seconds <= (noise := _deviation(before)):
            raise EffectNotSeen(
                Reason("sleep_within_noise", slept_seconds=slept_seconds, steps=len(before), noise_seconds=noise)
            )
        return self._evidence(sleeps, slow, before)

    def recognises(self, act: Act, context: FaultContext, endings: Endings) -> Recognised | None:
        """That another rank timed out waiting for one that slept: it may be the one that is ended for that."""
        for rank, asleep in sorted(self._asleep.items()):
            since, asked = float(asleep["since_monotonic"]), float(asleep["asked_seconds"])
            waiter = next(endings.waiters(self._asleep, since, since + asked + LATE_SECONDS), None)
            if waiter is None:
                continue
            after, ended = waiter.monotonic_seconds - since, endings.end_of(rank)
            how = "" if ended is None else f"; rank {rank} was ended {ended.monotonic_seconds - since:.3g} s into it"
            evidence = {
                "summary": f"rank {rank} slept {asked:.3g} s before {self.phase} of step {asleep['asleep_in']}, and "
                f"rank {waiter.rank} timed out waiting for it after {after:.3g} s ({waiter.exception}){how}",
                "phase": self.phase,
                "asleep": {str(one): dict(sleep) for one, sleep in self._asleep.items()},
                "timed_out": raised_to_dict(waiter),
            }
            return Recognised(evidence, since)
        return None

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Let every rank stop sleeping."""
        timeout_seconds = LIFT_MARGIN_SECONDS + self.parameters.delay
        for rank, handle in self._handles.items():
            await context.inside.lift(rank, handle, timeout_seconds)

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing outside of the ranks was changed, and they end it when their connection to us ends."""
        return {"undone": "the ranks no longer sleep", "ranks": list(DelayRecord.from_json(record).ranks)}

    async def _sleeps(self, rank: int, context: FaultContext, timeout_seconds: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < self.num_steps:
            told = await context.inside.report(rank, self._handles[rank], timeout_seconds)
            if "asleep_in" in told:
                self._asleep[rank] = told
            else:
                found.append(told)
        return found

    async def _intervals(
        self, sleeps: list[dict[str, Any]], context: FaultContext, timeout_seconds: float
    ) -> list[tuple[dict[str, Any], float]]:
        """(sleep, seconds from commit to commit) of each sleep: of the step in which others waited for it."""
        found = []
        for sleep in sleeps:
            step = self._waiting_step(sleep["step"])
            try:
                await context.watch.wait_for_step(step, timeout_seconds)
            except TimeoutError:
                raise EffectNotSeen(Reason("step_not_committed", step=step, seconds=timeout_seconds)) from None
            committed = {seen.step: seen.committed_seconds for seen in context.watch.steps}
            if step in committed and committed[step] < sleep["woke_monotonic"] - CLOCK_SECONDS:
                early = sleep["woke_monotonic"] - committed[step]
                raise EffectNotSeen(Reason("committed_before_wake", step=step, early_seconds=early))
            seconds = from_commit_to_commit(context.watch.steps).get(step)
            if seconds is not None:
                found.append((sleep, seconds))
        if not found:
            raise EffectNotSeen(Reason("no_two_steps"))
        return found

    def _steps_before(self, slow: list[tuple[dict[str, Any], float]], context: FaultContext) -> list[float]:
        """How long the last steps without a sleep took, in seconds."""
        first = min(self._waiting_step(sleep["step"]) for sleep, _ in slow)
        intervals = from_commit_to_commit(context.watch.steps)
        return [seconds for step, seconds in intervals.items() if first - NUM_STEPS_BEFORE <= step < first]

    def _waiting_step(self, step: int) -> int:
        """The step that the job commits later for a sleep in `step`."""
        return step

    def _evidence(
        self,
        sleeps: Mapping[int, list[dict[str, Any]]],
        slow: list[tuple[dict[str, Any], float]],
        before: list[float],
    ) -> dict[str, Any]:
        slept = [sleep["slept_seconds"] for of_rank in sleeps.values() for sleep in of_rank]
        during = [seconds for _, seconds in slow]
        usual = f" instead of {median(before):.3f} s (median of {len(before)} before)" if before else ""
        return {
            "summary": (
                f"rank{'s' if len(sleeps) > 1 else ''} {', '.join(map(str, sleeps))} slept {median(slept):.3f} s "
                f"before {self.phase} (median of {len(slept)}); steps took {median(during):.3f} s{usual}"
            ),
            "phase": self.phase,
            "sleeps": {str(rank): of_rank for rank, of_rank in sleeps.items()},
            "slept_seconds": _spread(slept),
            "step_seconds_during": _spread(during),
            "step_seconds_before": _spread(before) if before else None,
        }


def _deviation(seconds: list[float]) -> float:
    """Half of what the middle half of them differ by: single outliers do not count."""
    first, _, last = quantiles(seconds, n=4, method="inclusive")
    return (last - first) / 2


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"median": median(seconds), "min": min(seconds), "max": max(seconds), "n": len(seconds)}


class SlowData(_Delay):
    """A rank's data comes late: it sleeps before it loads the batches of every step."""

    kind: ClassVar[str] = "slow-data"
    brief: ClassVar[str] = "delay loading batches"
    phase: ClassVar[str] = "data"
    num_steps: ClassVar[int] = 5


class SlowCheckpoint(_Delay):
    """A rank's checkpoints block it: it sleeps before it copies (a script: saves) its part of every checkpoint."""

    kind: ClassVar[str] = "slow-checkpoint"
    brief: ClassVar[str] = "delay saving"
    needs: ClassVar[tuple[str, ...]] = ("checkpoint-phase",)
    phase: ClassVar[str] = "checkpoint"
    num_steps: ClassVar[int] = 1

    def why_unseen(self, act: Act, context: FaultContext) -> str | None:
        """Which ranks save, where these do not."""
        own, phases = DelayRecord.from_json(act.undo_record).ranks, context.watch.phases
        savers = phases.ranks_of(self.phase)
        if set(own) & set(savers):
            return None
        if not savers:
            return "no rank was seen saving anything"
        steps = phases.of(self.phase, savers, context.watch.last_step)
        return on_other_ranks(self.phase, own, savers, steps, f"--on rank={savers[0]}")

    def _waiting_step(self, step: int) -> int:
        # The step of the checkpoint is committed already; the next one cannot be before the rank is there.
        return step + 1
