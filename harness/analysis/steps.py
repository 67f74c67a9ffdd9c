"""The committed steps of a job: losses, durations, and the pre-fault speed that all else is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mecefo_runtime.system.events import Event

Epochs = Mapping[int, Sequence[tuple[float, int]]]
"""By pid: since when (CLOCK_MONOTONIC, seconds) the process belongs to which epoch, in the order of time."""
WORK_UNITS = ("tokens", "samples", "steps")
"""What throughput is counted in: the first of these that every step of the job tells."""

BASELINE_STEPS = 50
"""The pre-fault speed is the median over at most this many steps before the first fault."""
WARM_UP_STEPS = 5
"""The first steps of a job are left out of the pre-fault speed (allocators, caches and connections warm up in them)."""


_AFTER_STEP = frozenset({"layout", "regrouped", "rejoined", "checkpoint_restored"})
"""Events whose `step` is the last that was committed before training continues."""


def step_under_way(event: Event) -> int | None:
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

    @property
    def duration_seconds(self) -> float:
        """From the commit of the step before to this one's."""
        return self.committed_seconds - self.previous_seconds

    @property
    def work_per_second(self) -> float:
        """Work of the step over its duration; 0 where the clock saw no time pass."""
        return self.work / self.duration_seconds if self.duration_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one job: `first` record of each in the order of commit, and `redone`, those committed again.

    A step is redone when a later epoch commits it anew: the job had gone back behind it. `unit` is one of WORK_UNITS.
    """

    first: tuple[CommittedStep, ...]
    redone: tuple[CommittedStep, ...]
    unit: str = WORK_UNITS[0]

    @property
    def every(self) -> tuple[CommittedStep, ...]:
        """Each record, in the order of commit."""
        return tuple(sorted((*self.first, *self.redone), key=lambda step: step.committed_seconds))


def read_steps(events: Iterable[Event], job: str, epochs: Epochs | None = None) -> Steps:
    """The committed steps of `job`; `epochs`, of those who told them, are believed before what a step says itself.

    A record that only says again what an old leader may have said fills a hole, no more.
    """
    epochs = {} if epochs is None else epochs
    records = [
        event for event in events if event.kind == "step_committed" and event.job == job and event.step is not None
    ]
    said, repeated = _split(sorted(records, key=_committed))
    first: dict[int, Event] = {}
    redone: list[Event] = []
    for event in said:
        known = first.setdefault(event.step or 0, event)
        if known is not event and _epoch(event, epochs) > _epoch(known, epochs):
            redone.append(event)
    for event in repeated:
        first.setdefault(event.step or 0, event)
    commits = {step: _committed(event) for step, event in first.items()}
    again = {(_epoch(event, epochs), event.step or 0): _committed(event) for event in redone}
    unit = unit_of(records)

    def step_of(event: Event, is_first: bool) -> CommittedStep:
        epoch, before = _epoch(event, epochs), (event.step or 0) - 1
        # Of a job that had gone back, the step before is the one that its own epoch committed.
        previous_seconds = again.get((epoch, before), commits.get(before) if is_first else None)
        return _step(event, epoch, previous_seconds, unit)

    return Steps(
        tuple(step_of(event, True) for event in sorted(first.values(), key=_committed)),
        tuple(step_of(event, False) for event in redone),
        unit,
    )


def baseline(steps: Sequence[CommittedStep], until_seconds: float) -> tuple[CommittedStep, ...]:
    """The steps that tell the speed of a job before `until_seconds`: the last `BASELINE_STEPS` that committed by then.

    The first `WARM_UP_STEPS` of the job are left out when at least as many others remain.
    """
    before = [step for step in steps if step.committed_seconds <= until_seconds]
    # By their order, not by their numbers: a job that goes on from a checkpoint warms up, too.
    warm = before[WARM_UP_STEPS:]
    return tuple((warm if len(warm) >= WARM_UP_STEPS else before)[-BASELINE_STEPS:])


def shows_recovery(began_seconds: float, *, is_left_out: bool, injected_seconds: float) -> bool:
    """Whether a step, once it is committed, shows that the job is past a fault.

    One that was in flight when the fault affected proves nothing, and one that was left out taught the model nothing.
    """
    return began_seconds > injected_seconds and not is_left_out


def median_work_per_second(steps: Sequence[CommittedStep]) -> float | None:
    """The median speed of `steps`, None of none."""
    return median(step.work_per_second for step in steps) if steps else None


def median_step_seconds(steps: Sequence[CommittedStep]) -> float | None:
    """The median duration of `steps`, None of none."""
    return median(step.duration_seconds for step in steps) if steps else None


def work_of(event: Event, unit: str) -> float:
    """What a committed step counts for in `unit`, which it tells."""
    return 1.0 if unit == WORK_UNITS[-1] else float(event.fields[unit])


def _split(events: list[Event]) -> tuple[list[Event], list[Event]]:
    said = [event for event in events if not event.fields.get("repeated", False)]
    return said, [event for event in events if event.fields.get("repeated", False)]


def _committed(event: Event) -> float:
    return float(event.fields.get("committed_monotonic", event.monotonic_seconds))


def _epoch(event: Event, epochs: Epochs) -> int:
    known = epochs.get(event.pid)
    if not known:
        return int(event.fields.get("epoch", 0))
    return next((epoch for since, epoch in reversed(known) if since <= _committed(event)), known[0][1])


def unit_of(records: Sequence[Event]) -> str:
    """What the throughput of these committed steps is counted in; see WORK_UNITS."""
    for unit in WORK_UNITS[:-1]:
        if all(event.fields.get(unit) is not None for event in records):
            return unit
    return WORK_UNITS[-1]


def _step(event: Event, epoch: int, previous_seconds: float | None, unit: str) -> CommittedStep:
    fields = event.fields
    loss = fields.get("loss")
    committed = _committed(event)
    began = min(
        float(fields.get("began_monotonic", committed if previous_seconds is None else previous_seconds)), committed
    )
    # A step cannot have taken longer than from its beginning when the record before it is newer than that beginning.
    previous = began if previous_seconds is None or previous_seconds > began else previous_seconds
    return CommittedStep(
        step=event.step or 0,
        epoch=epoch,
        loss=None if loss is None else float(loss),
        work=work_of(event, unit),
        samples=fields.get("samples"),
        samples_checksum=fields.get("samples_checksum"),
        began_seconds=began,
        committed_seconds=committed,
        previous_seconds=previous,
        is_left_out=bool(fields.get("skipped", False)),
    )
