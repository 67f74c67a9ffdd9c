"""The committed steps of a job: losses, durations, and the pre-fault speed that figures are compared with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf
from statistics import median
from typing import Any, Protocol, TypeVar

from mecefo_runtime.system.events import Event
from mecefo_runtime.system.record import Record

T = TypeVar("T")
WORK_UNITS = ("tokens", "samples", "steps")
"""What throughput is counted in: the first of these that every step of the job tells."""

STEPS_BEFORE = 50
"""The pre-fault speed is the median over at most this many steps before the first fault."""
WARM_UP_STEPS = 5
"""The first steps of a job are left out of the pre-fault speed (allocators, caches and connections warm up in them)."""

NOW_STEPS = 5
"""The speed now is that over this many last steps."""

_AFTER_STEP = frozenset({"layout", "regrouped", "rejoined", "checkpoint_restored", "snapshot_restored"})
"""Events whose `step` is the last that was committed before training continues."""


def step_under_way(event: Event | Record) -> int | None:
    """The step that the job was at when `event` happened: of a regroup the one with which it continues."""
    if event.step is None:
        return None
    return event.step + 1 if event.kind in _AFTER_STEP else event.step


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """One step as its leader reported it. All times are CLOCK_MONOTONIC in seconds.

    `began_seconds` is when the attempt that committed began; `previous_seconds` when the step before committed (or
    the same as `began_seconds` where no record of that one exists), so that a step's duration holds everything since
    then. `work` is what it counts for in the throughput, in the unit of its `Steps`. `loss`, `samples` and
    `samples_checksum` are None where the job does not tell. A step that is left out was not fit: nothing was updated.
    """

    step: int
    epoch: int
    loss: float | None
    work: float
    samples: int | None
    samples_checksum: int | None
    began_seconds: float
    committed_seconds: float
    previous_seconds: float
    is_left_out: bool = False
    tokens: int | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None

    @property
    def duration_seconds(self) -> float:
        """Time from the previous commit to this one."""
        return self.committed_seconds - self.previous_seconds

    @property
    def work_per_second(self) -> float:
        """Work of the step over its duration; 0 where the clock saw no time pass."""
        return self.work / self.duration_seconds if self.duration_seconds > 0 else 0.0


@dataclass(frozen=True)
class Steps:
    """The steps of one job: `first` record of each in the order of commit, and `redone`, those committed again.

    A step is redone when a later epoch commits it again: the job had gone back behind it. `unit` is one of WORK_UNITS.

    `cuts` are numbers of steps at whose last commit no later step of `first` was under way: what lies between two of
    them (a block) can be looked at by itself. `memo` keeps what was found out about whole blocks while steps are only
    added at the end, so that looking again at a job that goes on costs no more than what is new in it.
    """

    first: tuple[CommittedStep, ...]
    redone: tuple[CommittedStep, ...]
    unit: str = WORK_UNITS[0]
    cuts: tuple[int, ...] = field(default=(), compare=False)
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def every(self) -> tuple[CommittedStep, ...]:
        """Each record, in the order of commit."""
        if not self.redone:
            return self.first
        return tuple(sorted((*self.first, *self.redone), key=committed_seconds))

    @cached_property
    def earliest_began(self) -> Sequence[float]:
        """By the number of one of `first`, when the first began of it and of all that were committed later."""
        return list(accumulate((step.began_seconds for step in reversed(self.first)), min))[::-1]

    @cached_property
    def least_epoch(self) -> Sequence[int]:
        """The same of their epochs: from there on no step is of an earlier one."""
        return list(accumulate((step.epoch for step in reversed(self.first)), min))[::-1]

    @cached_property
    def first_fit(self) -> tuple[CommittedStep, ...]:
        """Those of `first` that were not left out."""
        return _fit(self.first)

    @cached_property
    def every_fit(self) -> tuple[CommittedStep, ...]:
        """Those of `every` that were not left out."""
        return _fit(self.every) if self.redone else self.first_fit

    @property
    def blocks(self) -> Iterator[tuple[int, int]]:
        """(from, up to but without) of `first`, one block after the other; the last one may still grow."""
        start = 0
        for end in (*self.cuts, len(self.first)):
            if end > start:
                yield start, end
            start = end

    def of_blocks(self, name: str, compute: Callable[[Sequence[CommittedStep]], T]) -> Iterator[T]:
        """What `compute` makes of each block of `first`; `name` tells it from others in the memo."""
        closed = self.cuts[-1] if self.cuts else 0
        for start, end in self.blocks:
            key = name, start, end
            found = self.memo.get(key)
            if found is None:
                found = compute(self.first[start:end])
                if end <= closed:
                    self.memo[key] = found
            yield found


def _fit(steps: tuple[CommittedStep, ...]) -> tuple[CommittedStep, ...]:
    fit = tuple(step for step in steps if not step.is_left_out)
    return steps if len(fit) == len(steps) else fit


def committed_seconds(step: CommittedStep) -> float:
    """What steps are ordered by."""
    return step.committed_seconds


def num_committed(steps: Sequence[CommittedStep], until_seconds: float) -> int:
    """How many of `steps`, which are in the order of commit, were committed by then."""
    return bisect_right(steps, until_seconds, key=committed_seconds)


def steps_before(steps: Sequence[CommittedStep], until_seconds: float) -> tuple[CommittedStep, ...]:
    """The steps that tell the speed of a job before `until_seconds`: the last `BASELINE_STEPS` that committed by then.

    The first `WARM_UP_STEPS` of the job are left out when at least as many others remain.
    """
    end = num_committed(steps, until_seconds)
    # By their order, not by their numbers: a job that continues from a checkpoint warms up, too.
    begin = WARM_UP_STEPS if end >= 2 * WARM_UP_STEPS else 0
    return tuple(steps[max(begin, end - STEPS_BEFORE) : end])


def usual_step_seconds(steps: Sequence[CommittedStep]) -> float | None:
    """The median duration of the last steps of a job; None before the first."""
    return median_step_seconds(steps[-STEPS_BEFORE:])


def shows_recovery(began_seconds: float, *, is_left_out: bool, injected_seconds: float) -> bool:
    """Whether a step, once it is committed, shows that the job is past a fault.

    One that was in flight when the fault affected proves nothing, and one that was left out taught the model nothing.
    """
    return began_seconds > injected_seconds and not is_left_out


def showing_recovery(
    steps: Sequence[CommittedStep], since_seconds: float, *, earliest_seconds: float = -inf, least_epoch: int = 0
) -> Iterator[CommittedStep]:
    """Those of `steps` whose commits show that the job is past a fault at that time, in their order of commit.

    None of them is committed before `earliest_seconds`, or of an epoch before `least_epoch`.
    """
    for index in range(num_committed(steps, max(since_seconds, earliest_seconds)), len(steps)):
        step = steps[index]
        if step.epoch < least_epoch:
            continue
        if shows_recovery(step.began_seconds, is_left_out=step.is_left_out, injected_seconds=since_seconds):
            yield step


def work_per_second(steps: Sequence[CommittedStep]) -> float | None:
    """The mean speed over `steps`, None of none."""
    seconds = sum(step.duration_seconds for step in steps)
    return sum(step.work for step in steps) / seconds if seconds > 0 else None


def median_work_per_second(steps: Sequence[CommittedStep]) -> float | None:
    """The median speed of `steps`, None of none."""
    return median(step.work_per_second for step in steps) if steps else None


def median_step_seconds(steps: Sequence[CommittedStep]) -> float | None:
    """The median duration of `steps`, None of none."""
    return median(step.duration_seconds for step in steps) if steps else None


class Disturbance(Protocol):
    """A loss that the job had without any fault; see `attribution.UnplannedLoss`."""

    @property
    def since(self) -> float:
        """When it began."""

    @property
    def detected(self) -> float:
        """When the job noticed."""

    @property
    def resumed(self) -> float | None:
        """When the job was at work again; None: never."""


def undisturbed_before(
    steps: Sequence[CommittedStep], until: float, unplanned: Sequence[Disturbance]
) -> tuple[CommittedStep, ...]:
    """The steps that give the speed before `until`: those since the last unplanned loss, if few came before the first.

    Steps with and without the lost rank must not be mixed into one speed.
    """
    earlier = [loss for loss in unplanned if loss.since < until]
    if not earlier:
        return steps_before(steps, until)
    resumed = earlier[-1].resumed
    since = steps[num_committed(steps, resumed) :] if resumed is not None else ()
    since = [step for step in since if step.began_seconds > earlier[-1].detected]
    if num_committed(since, until) >= WARM_UP_STEPS:
        return steps_before(since, until)
    return steps_before(steps, earlier[0].since) or steps_before(steps, until)
