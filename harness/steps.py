"""The committed steps of a job: losses, durations, and the pre-fault speed that all else is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from mecefo_runtime.events import Event

BASELINE_STEPS = 50
"""The pre-fault speed is the median over at most this many steps before the first fault."""
WARM_UP_STEPS = 5
"""The first steps of a job are left out of the pre-fault speed (allocators, caches and connections warm up in them)."""


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """One step as its leader reported it. All times are CLOCK_MONOTONIC in seconds.

    `began_seconds` is when the attempt that committed began; `previous_seconds` when the step before committed (or
    the same as `began_seconds` where no record of that one exists), so that a step's duration holds everything since
    then. `samples` and `samples_checksum` are None for a job that does not tell.
    """

    step: int
    epoch: int
    loss: float
    tokens: int
    samples: int | None
    samples_checksum: int | None
    began_seconds: float
    committed_seconds: float
    previous_seconds: float

    @property
    def duration_seconds(self) -> float:
        """From the commit of the step before to this one's."""
        return self.committed_seconds - self.previous_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the step over its duration; 0 where the clock saw no time pass."""
        return self.tokens / self.duration_seconds if self.duration_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one job: `first` record of each in the order of commit, and `redone`, those committed again.

    A step is redone when a later epoch commits it anew: the job had gone back behind it.
    """

    first: tuple[CommittedStep, ...]
    redone: tuple[CommittedStep, ...]


def read_steps(events: Iterable[Event], job: str) -> Steps:
    """The committed steps of `job`.

    A record that only says again what an old leader may have said fills a hole, no more.
    """
    records = [
        event for event in events if event.kind == "step_committed" and event.job == job and event.step is not None
    ]
    said, repeated = _split(sorted(records, key=_committed))
    first: dict[int, Event] = {}
    redone: list[Event] = []
    for event in said:
        known = first.setdefault(event.step or 0, event)
        if known is not event and event.fields.get("epoch", 0) > known.fields.get("epoch", 0):
            redone.append(event)
    for event in repeated:
        first.setdefault(event.step or 0, event)
    commits = {step: _committed(event) for step, event in first.items()}
    ordered = sorted(first.values(), key=_committed)
    return Steps(
        tuple(_step(event, commits.get((event.step or 0) - 1)) for event in ordered),
        tuple(_step(event, None) for event in redone),
    )


def baseline(steps: Sequence[CommittedStep], until_seconds: float) -> tuple[CommittedStep, ...]:
    """The steps that tell the speed of a job before `until_seconds`: the last `BASELINE_STEPS` that committed by then.

    The first `WARM_UP_STEPS` of the job are left out when at least as many others remain.
    """
    before = [step for step in steps if step.committed_seconds <= until_seconds]
    warm = [step for step in before if step.step > WARM_UP_STEPS]
    return tuple((warm if len(warm) >= WARM_UP_STEPS else before)[-BASELINE_STEPS:])


def median_tokens_per_second(steps: Sequence[CommittedStep]) -> float | None:
    """The median speed of `steps`, None of none."""
    return median(step.tokens_per_second for step in steps) if steps else None


def median_step_seconds(steps: Sequence[CommittedStep]) -> float | None:
    """The median duration of `steps`, None of none."""
    return median(step.duration_seconds for step in steps) if steps else None


def _split(events: list[Event]) -> tuple[list[Event], list[Event]]:
    said = [event for event in events if not event.fields.get("repeated", False)]
    return said, [event for event in events if event.fields.get("repeated", False)]


def _committed(event: Event) -> float:
    return float(event.fields.get("committed_monotonic", event.monotonic_seconds))


def _step(event: Event, previous_seconds: float | None) -> CommittedStep:
    fields = event.fields
    committed = _committed(event)
    began = min(
        float(fields.get("began_monotonic", committed if previous_seconds is None else previous_seconds)), committed
    )
    # A step cannot have taken longer than from its beginning when the record before it is newer than that beginning.
    previous = began if previous_seconds is None or previous_seconds > began else previous_seconds
    return CommittedStep(
        step=event.step or 0,
        epoch=int(fields.get("epoch", 0)),
        loss=float(fields.get("loss", "nan")),
        tokens=int(fields.get("tokens", 0)),
        samples=fields.get("samples"),
        samples_checksum=fields.get("samples_checksum"),
        began_seconds=began,
        committed_seconds=committed,
        previous_seconds=previous,
    )
