"""What the reports draw, taken from the events: speed and loss over the run, the marks of the faults, who held what."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.steps import WORK_UNITS, unit_of, work_of
from mecefo_runtime.events import MAIN_JOB, Event
from mecefo_runtime.layout import Layout

_MARKED = ("injected", "regrouped", "repair_started", "rejoined")


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One committed step: when its attempt began and it was committed (seconds since the job started), work, loss."""

    step: int
    since_seconds: float
    committed_seconds: float
    work: float
    loss: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the curves are marked with, at `seconds` since the job started and during `step`."""

    kind: str
    seconds: float
    step: int
    incident: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a rank did from step `first_step` up to, but without, `end_step`.

    `layers` is None for a rank that was not in the job, and empty for one that was in it but idle.
    """

    first_step: int
    end_step: int
    replica: int | None
    layers: range | None
    degraded: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Curves:
    """The drawable history of a run: points by step, work in `unit`, `lanes` by rank, everything in ascending order."""

    main: tuple[StepPoint, ...]
    twin: tuple[StepPoint, ...]
    marks: tuple[Mark, ...]
    lanes: dict[int, tuple[Holding, ...]]
    unit: str = WORK_UNITS[0]


def trace(events: Iterable[Event]) -> Curves:
    """The curves of a run. A log that lacks something gives empty curves, not an error."""
    ordered = sorted(events, key=lambda event: event.monotonic_seconds)
    main = [event for event in ordered if event.job == MAIN_JOB]
    begin = next((e.monotonic_seconds for e in main if e.kind == "job_started"), None)
    if begin is None:
        begin = main[0].monotonic_seconds if main else 0.0
    unit = unit_of([event for event in main if event.kind == "step_committed"])
    points = _points(main, begin, unit)
    twin = [event for event in ordered if event.job != MAIN_JOB]
    twin_begin = next((e.monotonic_seconds for e in twin if e.kind == "job_started"), begin)
    twin_unit = unit_of([event for event in twin if event.kind == "step_committed"])
    lanes = _lanes(main, points)
    return Curves(points, _points(twin, twin_begin, twin_unit), _marks(main, points, begin), lanes, unit)


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


def thin_losses(points: Sequence[StepPoint], max_points: int) -> tuple[tuple[float, float], ...]:
    """(step, loss) of at most `max_points` points: means over equally many consecutive steps where there are more."""
    known = [(point.step, point.loss) for point in points if point.loss is not None]
    size = -(-len(known) // max_points) if known else 1
    groups = [known[first : first + size] for first in range(0, len(known), size)]
    return tuple((sum(s for s, _ in g) / len(g), sum(loss for _, loss in g) / len(g)) for g in groups)


def _points(events: Sequence[Event], begin: float, unit: str) -> tuple[StepPoint, ...]:
    points: dict[int, StepPoint] = {}
    previous: float | None = None
    for event in events:
        if event.kind != "step_committed" or event.step is None or event.step in points:
            continue
        fields = event.fields
        committed = float(fields.get("committed_monotonic", event.monotonic_seconds)) - begin
        since = float(fields.get("began_monotonic", committed + begin)) - begin if previous is None else previous
        loss = fields.get("loss")
        known = isinstance(loss, int | float) and loss == loss and abs(loss) != float("inf")
        points[event.step] = StepPoint(
            event.step,
            min(since, committed),
            committed,
            work_of(event, unit),
            float(loss) if known and loss is not None else None,
        )
        previous = committed if previous is None else max(previous, committed)
    return tuple(points[step] for step in sorted(points))


def _marks(events: Sequence[Event], points: Sequence[StepPoint], begin: float) -> tuple[Mark, ...]:
    committed = [point.committed_seconds for point in points]
    marks = []
    for event in events:
        if event.kind not in _MARKED or event.fields.get("reason") == "start":
            continue
        seconds = event.monotonic_seconds - begin
        step = event.step
        if step is None:
            step = points[min(bisect_right(committed, seconds), len(points) - 1)].step if points else 0
        marks.append(Mark(event.kind, seconds, step, event.fields.get("incident")))
    return tuple(marks)


def _lanes(events: Sequence[Event], points: Sequence[StepPoint]) -> dict[int, tuple[Holding, ...]]:
    layouts = [e for e in events if e.kind == "layout" and e.fields.get("layout") and e.fields.get("resume_step")]
    if not layouts or not points:
        return {}
    ends = [event.fields["resume_step"] for event in layouts[1:]] + [points[-1].step + 1]
    lanes: dict[int, list[Holding]] = {
        rank: [] for event in layouts for rank in sorted(Layout.from_dict(event.fields["layout"]).ranks())
    }
    for event, end in zip(layouts, ends, strict=True):
        first = event.fields["resume_step"]
        if end <= first:
            # A layout that never ran a step: another loss came while the ranks were still regrouping.
            continue
        layout = Layout.from_dict(event.fields["layout"])
        members = set(event.fields.get("members") or layout.ranks())
        for rank, lane in lanes.items():
            place = layout.find(rank)
            if place is None:
                lane.append(Holding(first, end, None, range(0) if rank in members else None))
            else:
                replica, position = place
                span = replica.spans[position]
                lane.append(Holding(first, end, replica.replica, span.layers, span.degraded))
    return {rank: tuple(lanes[rank]) for rank in sorted(lanes)}


def _interpolate(times: Sequence[float], totals: Sequence[float], at: float) -> float:
    index = bisect_right(times, at)
    if index == 0:
        return totals[0]
    if index == len(times):
        return totals[-1]
    low, high = times[index - 1], times[index]
    return totals[index - 1] + (totals[index] - totals[index - 1]) * (at - low) / (high - low)
