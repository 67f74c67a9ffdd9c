"""The data of the charts, from the events: speed and loss over the run, the marks of the faults, what ranks held."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from math import inf, isfinite
from typing import TypeVar

from harness.analysis.contained import charge
from harness.analysis.state import RunState, state_of
from harness.analysis.steps import WORK_UNITS, CommittedStep, step_under_way
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.events import BASELINE_JOB, Event
from mecefo_runtime.system.job_records import (
    JobStarted,
    LayoutTold,
    ProcessExited,
    ProcessStarted,
    Regrouped,
    Rejoined,
    Restarting,
)
from mecefo_runtime.system.json_values import from_json
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected, OfIncident, RepairStarted

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One committed step: when the step before it and it itself were committed (seconds since the job started).

    `loss` is None where the job does not tell it, and where it is no finite number: then `is_loss_bad`.
    """

    step: int
    since_seconds: float
    committed_seconds: float
    work: float
    loss: float | None
    is_loss_bad: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the curves are marked with, at `seconds` since the job started and during `step`."""

    kind: str
    seconds: float
    step: int
    incident: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a rank did between two times, in seconds since the job started.

    `layers` is None for a rank that was not in the job, and empty for one that was in it but idle. Of a command's job,
    whose layers nobody can see, `attempt` says in which start of its ranks the rank was up.
    """

    since_seconds: float
    until_seconds: float
    replica: int | None
    layers: range | None
    degraded: frozenset[int] = frozenset()
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Curves:
    """The drawable history of a run: points by step, work in `unit`, `lanes` by rank, everything in ascending order.

    `began_seconds` is when the job started, on the clock of the events. `main` has the first pass of each step; `kept`
    the pass that was kept where the job resumed from an earlier step (None: not known, or as in `main`).
    `has_counted`: the numbers of the steps are known, so that the baseline's are comparable.
    """

    main: tuple[StepPoint, ...]
    baseline: tuple[StepPoint, ...]
    marks: tuple[Mark, ...]
    lanes: Mapping[int, tuple[Holding, ...]] = field(default_factory=dict)
    unit: str = WORK_UNITS[0]
    began_seconds: float = 0.0
    kept: tuple[StepPoint, ...] | None = None
    has_counted: bool = True

    @property
    def by_step(self) -> tuple[StepPoint, ...]:
        """The passes whose losses are drawn."""
        return self.main if self.kept is None else self.kept

    def step_at(self, seconds: float) -> int:
        """The step that was under way so many seconds after the start of the job; 0 when none was ever committed."""
        if not self.main:
            return 0
        later = bisect_right(self.main, seconds, key=lambda point: point.committed_seconds)
        return self.main[min(later, len(self.main) - 1)].step


def trace(events: Iterable[Event]) -> Curves:
    """The curves of a run. A log that lacks something gives empty curves, not an error."""
    state = state_of(events)
    times = state.timeline
    begin, baseline_started = times.started_seconds, state.first_of(JobStarted, BASELINE_JOB)
    baseline_begin = begin if baseline_started is None else baseline_started.monotonic_seconds
    baseline = () if times.is_baseline_disturbed else _points(times.baseline.first, baseline_begin)
    curves = Curves(
        _points(times.steps.first, begin),
        baseline,
        (),
        unit=times.steps.unit,
        began_seconds=begin,
        kept=_points(times.kept, begin) if times.steps_are_counted and times.steps.redone else None,
        has_counted=times.steps_are_counted,
    )
    return replace(
        curves,
        marks=_marks(state, curves),
        lanes=(_layer_lanes if times.traits.has_layout else _attempt_lanes)(state),
    )


def mean_rates(points: Sequence[StepPoint], num_bins: int) -> tuple[tuple[float, float], ...]:
    """Work per second in `num_bins` equal stretches of time: (middle of the stretch in seconds, rate).

    A step's work is spread evenly over the time since the step before it, so a stall shows as the dip that it is and
    the area under the curve is the work done.
    """
    if not points:
        return ()
    times = [points[0].since_seconds, *(point.committed_seconds for point in points)]
    totals = [0.0]
    for point in points:
        totals.append(totals[-1] + point.work)
    begin, width = times[0], (times[-1] - times[0]) / num_bins
    if width <= 0:
        return ()
    edges = [begin + width * index for index in range(num_bins + 1)]
    rates = pairwise(_interpolate(times, totals, edge) for edge in edges)
    return tuple((begin + width * (i + 0.5), (high - low) / width) for i, (low, high) in enumerate(rates))


def thin_losses(points: Sequence[StepPoint], max_points: int) -> tuple[tuple[int, float], ...]:
    """(step, loss) of at most `max_points` points: where there are more, the extremes of equally many steps each."""
    return _extremes([(point.step, point.loss) for point in points if point.loss is not None], max_points)


def differences(
    main: Sequence[StepPoint], baseline: Sequence[StepPoint], max_points: int
) -> tuple[tuple[int, float], ...]:
    """(step, loss over the baseline's less 1) of the steps that both know, thinned as `thin_losses`."""
    others = {point.step: point.loss for point in baseline if point.loss}
    known = [
        (point.step, point.loss / other - 1.0)
        for point in main
        if point.loss is not None and (other := others.get(point.step)) is not None
    ]
    return _extremes(known, max_points)


def _groups(things: Sequence[_T], max_groups: int) -> list[Sequence[_T]]:
    size = -(-len(things) // max_groups) if things else 1
    return [things[first : first + size] for first in range(0, len(things), size)]


def _extremes(known: Sequence[tuple[int, float]], max_points: int) -> tuple[tuple[int, float], ...]:
    """`known`, or the lowest and the highest of each group of them: a mean would hide how far a single step was off."""
    if len(known) <= max_points:
        return tuple(known)
    ends = (
        {min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])}
        for group in _groups(known, max(1, max_points // 2))
    )
    return tuple(point for pair in ends for point in sorted(pair))


def _points(steps: Iterable[CommittedStep], begin: float) -> tuple[StepPoint, ...]:
    points: list[StepPoint] = []
    previous: float | None = None
    for step in steps:
        committed, loss = step.committed_seconds - begin, step.loss
        since = step.began_seconds - begin if previous is None else previous
        is_known = loss is not None and isfinite(loss)
        points.append(
            StepPoint(
                step.step,
                min(since, committed),
                committed,
                step.work,
                loss if is_known else None,
                is_loss_bad=loss is not None and not is_known,
            )
        )
        previous = committed
    return tuple(sorted(points, key=lambda point: point.step))


def _marks(state: RunState, curves: Curves) -> tuple[Mark, ...]:
    marks = []
    for record in state.of(Record):
        if not isinstance(record, Injected | Regrouped | RepairStarted | Rejoined):
            continue
        if isinstance(record, Regrouped) and record.reason == "start":
            continue
        seconds = record.monotonic_seconds - curves.began_seconds
        at, told = curves.step_at(seconds), step_under_way(record)
        # A job that went back to a checkpoint is, on an axis of steps, where it had been.
        step = at if told is None or told < at - 1 else told
        incident = record.incident if isinstance(record, OfIncident) else None
        marks.append(Mark(record.kind, seconds, step, incident))
    return tuple(marks)


def _layer_lanes(state: RunState) -> dict[int, tuple[Holding, ...]]:
    """What each rank held, by the layouts that came to be active: a layout is from its regroup to the next layout."""
    layouts = [(told, from_json(Layout, told.layout, lenient=True)) for told in state.of(LayoutTold) if told.layout]
    if not layouts:
        return {}
    begin, end = state.timeline.started_seconds, state.timeline.ended_seconds
    regrouped = {record.epoch: record.monotonic_seconds for record in state.of(Regrouped)}
    # All ranks end, to be started again.
    restarting = [record.monotonic_seconds for record in state.of(Restarting)]
    lost = _losses(state)
    ranks = sorted({rank for _, layout in layouts for rank in layout.ranks()})
    lanes: dict[int, list[Holding]] = {rank: [] for rank in ranks}
    for (told, layout), later in zip_longest(layouts, layouts[1:]):
        # A layout that nobody came to work under: another loss came while the ranks were still regrouping.
        since = regrouped.get(told.epoch)
        if since is None:
            continue
        until = end if later is None else later[0].monotonic_seconds
        members = set(told.members or layout.ranks())
        charge(len(ranks))
        for rank in ranks:
            # Whoever is killed is gone at once, not when the others have agreed on it.
            own_end = min(_next(lost.get(rank, ()), since), _next(restarting, since), until)
            if own_end > since:
                lanes[rank].append(_holding(layout, rank, members, since - begin, own_end - begin))
    if not any(lanes.values()):
        return {}  # stopped before the ranks had come together
    return {rank: _with_absences(lanes[rank], end - begin) for rank in ranks}


def _next(times: Sequence[float], since: float) -> float:
    """The first of `times`, which are in order, from then on."""
    place = bisect_left(times, since)
    return times[place] if place < len(times) else inf


def _holding(layout: Layout, rank: int, members: set[int], since: float, until: float) -> Holding:
    place = layout.find(rank)
    if place is None:
        return Holding(since, until, None, range(0) if rank in members else None)
    replica, position = place
    span = replica.spans[position]
    return Holding(since, until, replica.replica, span.layers, span.degraded)


def _with_absences(lane: Sequence[Holding], end: float) -> tuple[Holding, ...]:
    """`lane` with one piece for each time that the rank was away; the pauses of a regroup stay empty."""
    filled: list[Holding] = []
    here = [piece for piece in lane if piece.layers is not None]
    # Pieces follow each other, so that the last absence that began before the next piece is the one that ended last.
    away = [piece for piece in lane if piece.layers is None]
    for piece, later in zip_longest(here, here[1:]):
        filled.append(piece)
        since = inf if later is None else later.since_seconds
        num_begun = bisect_left(away, since, key=lambda other: other.since_seconds)
        if num_begun and piece.until_seconds <= away[num_begun - 1].until_seconds:
            filled.append(Holding(piece.until_seconds, end if later is None else later.since_seconds, None, None))
    return tuple(filled)


def _losses(state: RunState) -> dict[int, list[float]]:
    """When each rank's process was ended by a fault."""
    lost: dict[int, list[float]] = {}
    for injected in state.of(Injected):
        if injected.is_loss and not injected.goes_on:
            for rank in injected.ranks:
                lost.setdefault(rank, []).append(injected.monotonic_seconds)
    return lost


def _attempt_lanes(state: RunState) -> dict[int, tuple[Holding, ...]]:
    """When each rank of a command's job was up, and in which attempt of its launcher."""
    begin, end = state.timeline.started_seconds, state.timeline.ended_seconds
    exits = {record.exited_pid: record.monotonic_seconds for record in state.of(ProcessExited)}
    lanes: dict[int, list[Holding]] = {}
    for started in state.of(ProcessStarted):
        if started.role != "rank" or started.started_rank is None:
            continue
        since, until = started.monotonic_seconds - begin, exits.get(started.started_pid, end) - begin
        lane = lanes.setdefault(started.started_rank, [])
        if lane and lane[-1].until_seconds > since:
            # Nobody saw it end.
            lane[-1] = replace(lane[-1], until_seconds=since)
        lane.append(Holding(since, until, None, None, attempt=started.rank_attempt or 1))
    return {rank: tuple(lanes[rank]) for rank in sorted(lanes)}


def _interpolate(times: Sequence[float], totals: Sequence[float], at: float) -> float:
    index = bisect_right(times, at)
    if index == 0:
        return totals[0]
    if index == len(times):
        return totals[-1]
    low, high = times[index - 1], times[index]
    return totals[index - 1] + (totals[index] - totals[index - 1]) * (at - low) / (high - low)
