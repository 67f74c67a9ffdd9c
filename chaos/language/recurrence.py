"""Recurrence: at an interval, or at random with a rate; expanded into triggers before the run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import islice, takewhile
from random import Random

from chaos.errors import UsageError, setting, shown
from chaos.language.trigger import DEFAULT_PHASE, Duration, Trigger

# A rate in time says nothing about when to stop drawing, and how long the job will take is not known beforehand.
DEFAULT_HORIZON = Duration(seconds=600.0)
# A run with more faults is a mistake in a unit, and its report would not be read.
MAX_INCIDENTS = 1000

_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*/\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rate:
    """On average `count` firings (more than 0) per time or steps (`per`, more than 0)."""

    count: float
    per: Duration

    def __post_init__(self) -> None:
        if not (math.isfinite(self.count) and self.count > 0):
            raise UsageError("a rate is more than 0: write 0.5/min or 2/100steps")
        if self.per.seconds == 0:
            raise UsageError("a rate needs a time above 0s")

    def __str__(self) -> str:
        return f"{self.count:.9f}".rstrip("0").rstrip(".") + f"/{self.per}"

    @classmethod
    def parse(cls, value: object) -> Rate:
        """Read `0.5/min`, `2/100steps` or `3/h`.

        Raises:
            UsageError: it is none of these.
        """
        if isinstance(value, Rate):
            return value
        match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise UsageError(f"{shown(value)} is no rate: write 0.5/min or 2/100steps")
        number, per = match.groups()
        # Per one of a unit unless it says how many.
        return cls(float(number), Duration.parse(per if per[:1].isdigit() or not per else f"1{per}"))


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A fault that fires more than once: `every` so much from `first` on, or at `rate` (Poisson) from `first` on.

    Exactly one of the two is given. It ends after `count` firings, and `within` so much after the job's start.
    """

    first: Trigger
    every: Duration | None = None
    rate: Rate | None = None
    count: int | None = None
    within: Duration | None = None

    def __post_init__(self) -> None:
        if (self.every is None) == (self.rate is None):
            both = f"{setting('every')} and {setting('rate')}"
            raise UsageError(f"{both} contradict each other: give one of them", key="every")
        name = "every" if self.every is not None else "rate"
        if self.every is not None and self.every.seconds == 0:
            raise UsageError("a period is more than 0s", key="every")
        in_steps = (self.every or self._per).steps is not None
        if in_steps and self.first.at_seconds is not None:
            step = setting("at", "step=...")
            message = f"{setting(name)} counts steps, but at is a time: write {step}, or {setting(name)} in seconds"
            raise UsageError(message, key="at")
        if not in_steps and self.first.at_seconds is None:
            time = setting("at", "time=...")
            message = f"{setting(name)} is in seconds, but at is not a time: write {time}, or {setting(name)} in steps"
            raise UsageError(message, key="at")
        if self.within is not None and (self.within.steps is not None) != in_steps:
            unit = "steps" if in_steps else "seconds"
            message = f"{setting(name)} counts {unit}: {setting('within')} must do so, too"
            raise UsageError(message, key="within")
        end, first = _amount(self.horizon), _begin(self.first)
        if first > end:
            how = f"say otherwise with {setting('within')}"
            message = f"fires first at {self.first}, but only within {self.horizon} of the start: {how}"
            raise UsageError(message, key="within")

    @property
    def _per(self) -> Duration:
        assert self.rate is not None
        return self.rate.per

    @property
    def is_by_time(self) -> bool:
        """Whether its firings are at times, of which some may come after the job's end."""
        return self.first.at_seconds is not None

    @property
    def horizon(self) -> Duration:
        """Nothing fires later than this after the job's start; of steps, those of the job end it as well."""
        return self.within or (DEFAULT_HORIZON if self.is_by_time else Duration(steps=10**9))

    def triggers(self, rng: Random, num_steps: int) -> tuple[Trigger, ...]:
        """When it fires, in order, in a job of `num_steps` steps.

        Raises:
            UsageError: that is more often than MAX_INCIDENTS.
        """
        if self.is_by_time:
            end = _amount(self.horizon)
            moments = (replace(self.first, at_seconds=round(moment, 3)) for moment in self._until(end, rng))
        else:
            end = min(float(num_steps), _amount(self.horizon))
            moments = (replace(self.first, step=max(1, math.ceil(moment))) for moment in self._until(end, rng))
        drawn = tuple(islice(moments, min(self.count or MAX_INCIDENTS + 1, MAX_INCIDENTS + 1)))
        if len(drawn) > MAX_INCIDENTS:
            key = "every" if self.every is not None else "rate"
            ends = f"{setting('count')} or {setting('within')}"
            message = f"fires more than {MAX_INCIDENTS} times: make it rarer, or end it with {ends}"
            raise UsageError(message, key=key)
        return drawn

    def _until(self, end: float, rng: Random) -> Iterator[float]:
        """Moments up to `end`, in steps (a drawn one is at the end of the step that it falls into) or seconds."""
        first = _begin(self.first)
        if self.every is not None:
            period = _amount(self.every)
            # A regroup that no step is said for has its first one period in, too.
            begin = first if self.is_by_time or first else period
            yield from takewhile(lambda moment: moment <= end, (begin + index * period for index in counting()))
            return
        assert self.rate is not None
        # The step at which it may begin counts in full.
        moment = first if self.is_by_time else max(first - 1, 0.0)
        while True:
            # By random() alone, of all methods the one that gives the same numbers in every version of Python.
            moment += -math.log(1.0 - rng.random()) * _amount(self.rate.per) / self.rate.count
            if moment > end:
                return
            yield moment


def _amount(duration: Duration) -> float:
    """Its number, of whichever unit."""
    return duration.seconds if duration.seconds is not None else float(duration.steps or 0)


def _begin(trigger: Trigger) -> float:
    """Its step or time; 0 for a regroup that no step is said for."""
    return trigger.at_seconds if trigger.at_seconds is not None else float(trigger.step or 0)


def default_first(every: Duration | None, rate: Rate | None) -> Trigger:
    """When a recurring fault may fire first by default: after one period, or at once."""
    period = every if every is not None else rate.per if rate is not None else Duration(steps=1)
    if period.seconds is not None:
        return Trigger(at_seconds=period.seconds if every is not None else 0.0)
    return Trigger(step=period.steps if every is not None else 1, phase=DEFAULT_PHASE)
