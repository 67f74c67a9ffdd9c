"""The series for gates: a value for each committed step, or for each second of training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Literal

from harness.analysis.contained import charge
from harness.analysis.state import RunState
from harness.analysis.steps import CommittedStep
from harness.analysis.throughput import is_within, steps_after, windows_under_fault
from harness.judging.units import Unit
from mecefo_runtime.system.reason import Reason

Period = Literal["before", "during", "after"]
PERIODS: tuple[Period, ...] = ("before", "during", "after")
WINDOW_SECONDS = 1.0
"""Throughput is taken over stretches of this length; shorter ones, all of the same length, where it does not fit."""
# A month.
_MAX_WINDOWS = 2_678_400

_ALIASES = {"loss": "training_loss", "throughput_per_second": "throughput"}


class NoValue(Exception):
    """A series has no value to judge by; `why` is one of `harness.judging.gate_reasons`."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.code)
        self.why = why


@dataclass(frozen=True, slots=True)
class Series:
    """One series: `text` says in a line what it is.

    `of_step` gives the value of a committed step, None where it is taken over stretches of time. `of_every_pass`: of a
    step that was done again each pass has one, so that none hides another.
    """

    name: str
    unit: Unit
    text: str
    of_step: Callable[[Recorded, CommittedStep], float | None] | None
    of_every_pass: bool = False


class Recorded:
    """What a run has recorded of every series.

    `before`, `during` and `after` the faults are what they are in `throughput`, but for the first step after
    them: the time since the step before it is not all its own.
    """

    def __init__(self, state: RunState) -> None:
        self._timeline = state.timeline
        self.degraded_layers = state.degraded_layers

    def values(self, series: Series, period: Period | None, unit: str) -> list[float]:
        """Its values in `period`, in the order of time; of the whole run without one.

        Args:
            series: one of `SERIES`.
            period: of the run.
            unit: in which the values are wanted: of throughput `tokens/s`, `samples/s`, `steps/s`, or any (empty).

        Raises:
            NoValue: there are none, one of them is missing or is no finite number, or they are in another unit.
        """
        steps = self._steps(period, series)
        if not steps and (series.of_step is not None or period != "during"):
            raise NoValue(Reason("no_step", period=period))
        if series.of_step is None:
            counted = f"{self._timeline.steps.unit}/s"
            if unit not in ("", counted):
                raise NoValue(Reason("other_unit", counted=counted, asked=unit))
            return self._throughput(self._intervals(steps, period))
        values = [(step.step, series.of_step(self, step)) for step in steps]
        known = [value for _, value in values if value is not None]
        if len(known) < len(values):
            raise NoValue(
                Reason(
                    "no_value_in_steps",
                    metric=series.name,
                    missing=len(values) - len(known),
                    of=len(values),
                    period=period,
                )
            )
        for step, value in values:
            if value is not None and not isfinite(value):
                raise NoValue(Reason("not_finite_in_step", metric=series.name, step=step))
        return known

    def extreme_step(self, series: Series, period: Period | None, *, largest: bool) -> CommittedStep | None:
        """The step of `period` with the largest or smallest value; None where the series is not taken by step.

        Raises:
            NoValue: no fault was verified, so the period is not known.
        """
        if series.of_step is None:
            return None
        values = [
            (value, step) for step in self._steps(period, series) if (value := series.of_step(self, step)) is not None
        ]
        pick = max if largest else min
        return pick(values, key=lambda pair: pair[0], default=(0.0, None))[1]

    def _steps(self, period: Period | None, series: Series) -> Sequence[CommittedStep]:
        timeline = self._timeline
        steps = timeline.steps.every if series.of_every_pass else timeline.steps.first
        if period is None:
            return steps
        if period == "before":
            return timeline.before
        windows = windows_under_fault(timeline)
        if not windows:
            raise NoValue(Reason("no_fault_verified", period=period))
        if period == "during":
            return [step for step in steps if is_within(step, windows)]
        return steps_after(timeline, windows[-1][1], steps)[1:]

    def _intervals(self, steps: Sequence[CommittedStep], period: Period | None) -> Sequence[tuple[float, float]]:
        if period == "during":
            return windows_under_fault(self._timeline)
        return [(steps[0].began_seconds, steps[-1].committed_seconds)]

    def _throughput(self, intervals: Sequence[tuple[float, float]]) -> list[float]:
        rates = []
        for start, end in intervals:
            num_windows = max(1, ceil((end - start) / WINDOW_SECONDS))
            if num_windows > _MAX_WINDOWS:
                raise NoValue(Reason("times_not_right", seconds=end - start))
            seconds = (end - start) / num_windows
            if seconds > 0:
                starts = (start + number * seconds for number in range(num_windows))
                rates += [self._work_between(begin, begin + seconds) / seconds for begin in starts]
        if not rates:
            raise NoValue(Reason("no_time_passed"))
        return rates

    def _work_between(self, start: float, end: float) -> float:
        """The work of each step, spread over the time from its beginning to its commit: none while training stood."""
        work = 0.0
        steps, earliest_began = self._timeline.steps.first, self._timeline.steps.earliest_began
        for index in range(bisect_right(steps, start, key=lambda step: step.committed_seconds), len(steps)):
            charge()
            if earliest_began[index] >= end:
                break
            step = steps[index]
            within = min(step.committed_seconds, end) - max(step.began_seconds, start)
            if within > 0:
                work += step.work * within / (step.committed_seconds - step.began_seconds)
        return work


def recorded_of(state: RunState) -> Recorded:
    """What a run has recorded; made once for all who ask."""
    return state.timeline.once("series", lambda: Recorded(state))


SERIES: Mapping[str, Series] = {
    series.name: series
    for series in (
        Series(
            "step_seconds",
            "seconds",
            "duration of each step, from commit to commit",
            lambda _, step: step.duration_seconds,
        ),
        Series("throughput", "rate", "work per second, in each second of training", None),
        Series(
            "training_loss",
            "number",
            "of each step, nats per token",
            lambda _, step: step.loss,
            of_every_pass=True,
        ),
        Series(
            "grad_norm",
            "number",
            "of each step, before it is clipped",
            lambda _, step: step.grad_norm,
            of_every_pass=True,
        ),
        Series(
            "degraded_layers",
            "number",
            "layers computed approximately in each step, over all replicas",
            lambda recorded, step: recorded.degraded_layers.get(step.epoch),
        ),
    )
}


def find(name: str) -> Series | None:
    """The series of that name, with or without the unit at its end; None when there is none."""
    name = name.strip().lower().replace("-", "_")
    name = _ALIASES.get(name, name)
    return next((SERIES[name + end] for end in ("", "_seconds") if name + end in SERIES), None)
