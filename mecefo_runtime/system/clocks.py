"""Maps times of other clocks to the run's clock, with their uncertainty.

A clock is CLOCK_MONOTONIC of one boot of one host in one time namespace. The process that records a run samples each
other clock, and maps each time of it once, before the event is written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mecefo_runtime.system.host import this_host, time_namespace

CLOCK_VARIABLE = "CHAOS_CLOCK"
"""In the environment of a run's processes: the clock by which the run is recorded."""
MOMENT_SUFFIX = "_monotonic"
"""A field of an event with this ending is a time of the emitter's clock."""
NUM_SAMPLES = 15
MAX_DRIFT_RATIO = 2e-4
"""Assumed bound of the drift between the clocks of two hosts: 100 ppm for each oscillator."""
# Times in the log are rounded to microseconds; a difference of two mapped times contains four of them.
_ROUNDING_SECONDS = 2.5e-6
_DIGITS = 6


@functools.cache
def this_clock() -> str:
    """The clock of this process: the boot and the time namespace in which CLOCK_MONOTONIC counts."""
    return f"{this_host().boot} {time_namespace()}"


def is_same_kernel(clock: str, other: str) -> bool:
    """Whether both clocks are of one boot of one machine, so that they do not drift."""
    return clock.partition(" ")[0] == other.partition(" ")[0]


class Moment(float):
    """A time of the run's clock that was mapped from `raw_seconds` of another clock, with its uncertainty.

    As a float it is the mapped time, so that it can be compared, sorted and subtracted. Only `uncertainty_between` uses
    the other attributes.
    """

    __slots__ = ("clock", "raw_seconds", "uncertainty_seconds")

    clock: str
    raw_seconds: float
    uncertainty_seconds: float

    def __new__(cls, seconds: float, raw_seconds: float, uncertainty_seconds: float, clock: str) -> Moment:
        """`raw_seconds` is the time by `clock`."""
        moment = super().__new__(cls, seconds)
        moment.clock, moment.raw_seconds, moment.uncertainty_seconds = clock, raw_seconds, uncertainty_seconds
        return moment

    def __reduce__(self) -> tuple[type[Moment], tuple[float, float, float, str]]:
        return Moment, (float(self), self.raw_seconds, self.uncertainty_seconds, self.clock)


def uncertainty_between(start_seconds: float, end_seconds: float) -> float:
    """The uncertainty of the difference of two times of the run's clock; 0 where both come from one clock."""
    start = start_seconds if isinstance(start_seconds, Moment) else None
    end = end_seconds if isinstance(end_seconds, Moment) else None
    if start is not None and end is not None and start.clock == end.clock:
        # The error of the mapping cancels, unless the mapping changed in between.
        changed = abs((end - start) - (end.raw_seconds - start.raw_seconds))
        return 0.0 if changed <= _ROUNDING_SECONDS else changed
    return sum(moment.uncertainty_seconds for moment in (start, end) if moment is not None)


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One sample of another clock, which read `remote_seconds` between two times of this clock."""

    sent_seconds: float
    remote_seconds: float
    received_seconds: float

    @property
    def offset_seconds(self) -> float:
        """The offset to add to times of the other clock, if it was read in the middle of the round trip."""
        return (self.sent_seconds + self.received_seconds) / 2 - self.remote_seconds

    @property
    def uncertainty_seconds(self) -> float:
        """Half of the round trip: it may have been read at the beginning or at the end."""
        return (self.received_seconds - self.sent_seconds) / 2


@dataclass(frozen=True, slots=True)
class ClockMapping:
    """Maps times of `clock` by samples of it; their uncertainty grows by `drift_ratio` of the time since."""

    clock: str
    samples: tuple[ClockSample, ...]
    drift_ratio: float

    @classmethod
    def of(cls, clock: str, samples: Sequence[ClockSample]) -> ClockMapping:
        """The mapping to this process's clock.

        Raises:
            ValueError: `samples` is empty.
        """
        if not samples:
            raise ValueError("a clock without samples cannot be mapped")
        return cls(clock, tuple(samples), 0.0 if is_same_kernel(clock, this_clock()) else MAX_DRIFT_RATIO)

    def best(self, raw_seconds: float) -> tuple[ClockSample, float]:
        """The sample with the least uncertainty at that time of the other clock, and that uncertainty."""

        def uncertainty(sample: ClockSample) -> float:
            return sample.uncertainty_seconds + self.drift_ratio * abs(raw_seconds - sample.remote_seconds)

        sample = min(self.samples, key=uncertainty)
        return sample, uncertainty(sample)

    def moment(self, raw_seconds: float) -> Moment:
        """A time of the other clock as a time of this clock, rounded as in events."""
        sample, uncertainty_seconds = self.best(raw_seconds)
        return Moment(
            round(raw_seconds + sample.offset_seconds, _DIGITS),
            round(raw_seconds, _DIGITS),
            # Rounded up: it is a bound.
            round(uncertainty_seconds + 0.5 * 10**-_DIGITS, _DIGITS),
            self.clock,
        )

    def moments(self, value: Any, name: str = "") -> Any:
        """A JSON value in which all times, recognised by their keys, are mapped to this clock."""
        if isinstance(value, Mapping):
            return {key: self.moments(part, str(key)) for key, part in value.items()}
        if isinstance(value, list):
            return [self.moments(part) for part in value]
        is_time = name.endswith(MOMENT_SUFFIX) and type(value) in (int, float)
        return self.moment(value) if is_time else value


def greeting(environment: Mapping[str, str]) -> dict[str, Any]:
    """What a process with another clock than the run's adds to its hello; empty for all others."""
    recorders = environment.get(CLOCK_VARIABLE)
    if not recorders or recorders == this_clock():
        return {}
    return {"clock": this_clock(), "host": this_host().to_json()}
