"""The curves of a run as pictures: its speed over time and by step, and its loss beside the twin's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup, escape

from harness.analysis.words import count, name_seconds, speed_text
from harness.report import drawing
from harness.report.curves import Curves, Mark, StepPoint, differences, mean_rates, step_rates, thin_losses
from harness.report.drawing import WIDE, Clock, Frame, Point, Scale
from harness.report.history import History, shares
from harness.report.wording import cause_words

_MANY_FAULTS = 24
"""With more faults than this the lines of all would hide the curve."""
_SIGNS = {"injected": "fault", "repair_started": "repair", "rejoined": "back"}
_RIBBON = 34
_IN_FORCE = ("band-inforce", "a fault in force, or its ranks away")
_TOP = 40.0
"""Above it stand what is counted, and the numbers of the faults."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a picture of a width has room for."""

    points: int
    height: int

    @classmethod
    def of(cls, width: int) -> Sizes:
        """For a picture so many pixels wide."""
        return cls(400, 190) if width >= WIDE else cls(160, 150)


def speed_over_time(curves: Curves, history: History, width: int) -> Markup:
    """Work per second over the wall clock, with what the time went to beneath; empty when no step was committed."""
    sizes = Sizes.of(width)
    rates = mean_rates(curves.main, min(sizes.points, max(1, 2 * len(curves.main))))
    if not rates:
        return Markup("")
    end = max(history.end_seconds, curves.main[-1].committed_seconds)
    clock = Clock.of(end)
    frame = Frame(width, _TOP, _TOP + sizes.height)
    x = frame.across(0.0, end)
    top = max(*(rate for _, rate in rates), history.before or 0.0) * 1.08 or 1.0
    y = frame.upwards(0.0, top)
    ribbon, ribbon_legend = _ribbon(history, frame, x, end)
    below = Frame(width, frame.bottom, frame.bottom + (_RIBBON + 8 if ribbon else 0))
    body = [
        *_bands(history, frame, x),
        *drawing.axis_up(frame, y, drawing.ticks(0.0, top)),
        drawing.text(6.0, 12.0, f"{curves.unit} per second", css="strong"),
        drawing.line([(frame.left, y(history.before)), (frame.right, y(history.before))], "before")
        if history.before
        else "",
        drawing.line([(x(seconds), y(rate)) for seconds, rate in (*rates, *_standstill(curves, history))], "main"),
        *ribbon,
        *drawing.axis_across(below, x, 0.0, end, f"{clock.words} since the job started", clock.seconds),
        *_signs([(x(mark.seconds), mark) for mark in curves.marks if 0 <= mark.seconds <= end], frame),
    ]
    items = [("curve-main", "speed")]
    if history.before:
        items.append(("curve-before", "median before the first fault" if history.affected else "median"))
    if history.affected:
        items += _band_items(history)
    legend, height = drawing.legend([*items, *_sign_items(curves.marks), *ribbon_legend], width, below.bottom + 38)
    lowest = min(rates, key=lambda rate: rate[1])
    description = (
        f"{curves.unit.capitalize()} per second over {name_seconds(end)}. "
        + (f"Before any fault: {speed_text(history.before)} in the median. " if history.before else "")
        + f"Lowest: {speed_text(lowest[1])}, {name_seconds(lowest[0])} after the start. {_marks_text(curves.marks)}"
    )
    title = f"Training speed over time, in {curves.unit} per second"
    return drawing.figure(
        "speed-over-time", width, below.bottom + 38 + height + 4, title, description, [*body, *legend]
    )


def speed_by_step(curves: Curves, history: History, width: int) -> Markup:
    """Work per second of each step, the wait before it included; empty when no step was committed."""
    sizes = Sizes.of(width)
    rates = step_rates(curves.main, sizes.points)
    if len(rates) < 2:
        return Markup("")
    frame = Frame(width, _TOP, _TOP + sizes.height * 0.8)
    first, last = _steps_drawn(curves, curves.main)
    x = frame.across(first, last)
    top = max(rate for _, rate in rates) * 1.08 or 1.0
    y = frame.upwards(0.0, top)
    body = [
        *_step_bands(curves, history, frame, x),
        *drawing.axis_up(frame, y, drawing.ticks(0.0, top, 5)),
        drawing.text(6.0, 12.0, f"{curves.unit} per second", css="strong"),
        drawing.line([(x(step), y(rate)) for step, rate in rates], "main"),
        *drawing.axis_across(frame, x, first, last, "step"),
        *_signs([(x(mark.step), mark) for mark in curves.marks], frame),
    ]
    legend, height = drawing.legend(
        [
            ("curve-main", "speed of the step, the wait before it included"),
            *_step_band_items(curves, history),
            *_sign_items(curves.marks),
        ],
        width,
        frame.bottom + 38,
    )
    slowest = min(rates, key=lambda rate: rate[1])
    description = (
        f"Speed of the {count(len(curves.main), 'committed step')}, {first:.0f} to {last:.0f}. Slowest: "
        f"{speed_text(slowest[1])} {curves.unit} per second around step {slowest[0]:.0f}. {_marks_text(curves.marks)}"
    )
    title = f"Training speed by step, in {curves.unit} per second"
    return drawing.figure("speed-by-step", width, frame.bottom + 38 + height + 4, title, description, [*body, *legend])


def loss_by_step(curves: Curves, history: History, width: int) -> Markup:
    """The loss of the run and of its twin, and how far they are apart; empty when fewer than two losses are known."""
    sizes = Sizes.of(width)
    main, twin = thin_losses(curves.main, sizes.points), thin_losses(curves.twin, sizes.points)
    bad = [point.step for point in curves.main if point.is_loss_bad]
    if len(main) < 2 and not bad:
        return Markup("")
    first, last = _steps_drawn(curves, [*curves.main, *curves.twin])
    frame = Frame(width, _TOP, _TOP + sizes.height)
    x = frame.across(first, last)
    low, high = drawing.visible_range([loss for _, loss in (*main, *twin)])
    y = frame.upwards(low, high)
    beyond, beyond_items = drawing.out_of_range((main, twin), x, frame, low, high)
    apart, apart_frame, apart_items = _apart(curves, frame, x, sizes)
    body = [
        *_step_bands(curves, history, frame, x),
        *drawing.axis_up(frame, y, drawing.ticks(low, high)),
        drawing.text(6.0, 12.0, "loss", css="strong"),
        *(drawing.line(piece, "twin") for piece in _pieces(curves.twin, twin, x, y, low, high)),
        *(drawing.line(piece, "main") for piece in _pieces(curves.main, main, x, y, low, high)),
        *(
            drawing.rect(x(since), frame.top, max(2.0, x(until) - x(since)), 6, "mark-bad")
            for since, until in _runs(bad)
        ),
        *beyond,
        *apart,
        *drawing.axis_across(apart_frame, x, first, last, "step"),
        *_signs([(x(mark.step), mark) for mark in curves.marks], frame),
    ]
    size = -(-len(curves.main) // (sizes.points // 2)) if len(curves.main) > sizes.points else 1
    thinned = f", lowest and highest of every {size} steps" if size > 1 else ""
    items = [("curve-main", f"this run{thinned}"), *((("curve-twin", "fault-free baseline"),) if twin else ())]
    if bad:
        items.append(("mark-bad", "no finite number"))
    items += [*beyond_items, *apart_items, *_step_band_items(curves, history)]
    legend, height = drawing.legend([*items, *_sign_items(curves.marks)], width, apart_frame.bottom + 38)
    return drawing.figure(
        "loss",
        width,
        apart_frame.bottom + 38 + height + 4,
        "Loss by step",
        _loss_text(_losses(curves.main), _losses(curves.twin), bad),
        [*body, *legend],
    )


def _steps_drawn(curves: Curves, points: Sequence[StepPoint]) -> tuple[float, float]:
    """From the first step to the last one, committed or affected."""
    steps = [point.step for point in points]
    affected = [mark.step for mark in curves.marks]
    return float(min(steps)), float(max(*steps, *affected, min(steps) + 1))


def _apart(curves: Curves, frame: Frame, x: Scale, sizes: Sizes) -> tuple[list[str], Frame, list[tuple[str, str]]]:
    """A small panel below `frame`: the difference from the twin, in percent. With the legend's items."""
    points = [(step, 100 * ratio) for step, ratio in differences(curves.main, curves.twin, sizes.points)]
    if len(points) < 2:
        return [], frame, []
    panel = Frame(frame.width, frame.bottom + 34, frame.bottom + 34 + 60)
    low, high = drawing.visible_range([percent for _, percent in points] + [0.0])
    low, high = min(low, 0.0), max(high, 0.0)
    y = panel.upwards(low, high)
    beyond, items = drawing.out_of_range((points,), x, panel, low, high, "%")
    body = [
        drawing.text(6.0, panel.top - 10, "difference from the baseline", css="strong"),
        *drawing.axis_up(panel, y, drawing.ticks(low, high, 3), "%"),
        drawing.line([(panel.left, y(0.0)), (panel.right, y(0.0))], "before"),
        drawing.line([(x(step), y(min(high, max(low, percent)))) for step, percent in points], "main"),
        *beyond,
    ]
    return body, panel, items


def _pieces(
    points: Sequence[StepPoint], thin: Sequence[Point], x: Scale, y: Scale, low: float, high: float
) -> Iterable[list[Point]]:
    """The curve, broken off where losses are no numbers."""
    bad = _runs([point.step for point in points if point.is_loss_bad])
    pieces: list[list[Point]] = [[]]
    breaks = iter([*bad, (math.inf, math.inf)])
    since, _ = next(breaks)
    for step, loss in thin:
        if step > since:
            pieces.append([])
            since = next((begin for begin, _ in breaks if begin >= step), math.inf)
        pieces[-1].append((x(step), y(min(high, max(low, loss)))))
    return [piece for piece in pieces if piece]


def _runs(steps: Sequence[int]) -> list[tuple[float, float]]:
    """(first, end) of the runs of consecutive numbers in `steps`."""
    runs: list[tuple[float, float]] = []
    for step in steps:
        if runs and step <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], float(step))
        else:
            runs.append((float(step), float(step)))
    return runs


def _standstill(curves: Curves, history: History) -> list[Point]:
    """No speed from the last commit to the end, of a job that stood still until then."""
    last = curves.main[-1].committed_seconds
    if not history.stopped or history.stopped[-1][1] < history.end_seconds:
        return []
    return [(last, 0.0), (history.end_seconds, 0.0)] if history.end_seconds > last else []


def _ribbon(history: History, frame: Frame, x: Scale, end: float) -> tuple[list[str], list[tuple[str, str]]]:
    """What the time went to, stretch by stretch: the height of a colour is its share. With the legend's items."""
    num_bins = int(min(240, frame.right - frame.left) // 1)
    parts = shares(history.segments, history.end_seconds, num_bins)
    if not parts:
        return [], []
    top = frame.bottom + 6
    base = [0.0] * num_bins
    edges = [x(history.end_seconds * index / num_bins) for index in range(num_bins + 1)]
    body = []
    for cause, values in parts.items():
        raised = [low + share for low, share in zip(base, values, strict=True)]
        body.append(_steps_path(edges, base, raised, top, f"share cause-{cause}", cause_words(cause)))
        base = raised
    # What is too little to be seen is in the page's table.
    seen = [cause for cause, values in parts.items() if sum(values) > 0.5]
    return body, [(f"cause cause-{cause}", cause_words(cause)) for cause in seen]


def _steps_path(
    edges: Sequence[float], low: Sequence[float], high: Sequence[float], top: float, css: str, title: str
) -> str:
    """The area between two step functions, of shares that stack up from the bottom of the ribbon."""
    bottom = top + _RIBBON
    pieces: list[tuple[float, float, float, float]] = []
    for index in range(len(low)):
        if high[index] - low[index] <= 1e-9:
            continue
        left, right = edges[index], edges[index + 1]
        up, down = bottom - high[index] * _RIBBON, bottom - low[index] * _RIBBON
        if pieces and pieces[-1][1:] == (left, up, down):
            pieces[-1] = (pieces[-1][0], right, up, down)
        else:
            pieces.append((left, right, up, down))
    path = "".join(f"M{left:.1f},{up:.1f}H{right:.1f}V{down:.1f}H{left:.1f}z" for left, right, up, down in pieces)
    return f'<path d="{path}" class="{css}"><title>{escape(title)}</title></path>' if path else ""


def _bands(history: History, frame: Frame, x: Scale) -> Iterable[str]:
    height = frame.bottom - frame.top
    for since, until in history.in_force:
        yield drawing.rect(x(since), frame.top, max(1.0, x(until) - x(since)), height, "band-inforce")
    for since, until in _stopped(history):
        yield drawing.rect(x(since), frame.top, max(1.0, x(until) - x(since)), height, "band-stopped")


def _stopped(history: History) -> list[tuple[float, float]]:
    """(from, until) of each stretch in which no step got on while a fault was in force."""
    return [
        (max(since, start), min(until, end))
        for since, until in history.stopped
        for start, end in history.in_force
        if max(since, start) < min(until, end)
    ]


def _band_items(history: History) -> list[tuple[str, str]]:
    """The bands that can be seen: where no step got on as long as a fault was in force, one hides the other."""
    in_force, stopped = (sum(until - since for since, until in part) for part in (history.in_force, _stopped(history)))
    items = [_IN_FORCE] if in_force > 1.01 * stopped else []
    return [*items, ("band-stopped", "no step got on")] if stopped else items


def _step_band_items(curves: Curves, history: History) -> list[tuple[str, str]]:
    """The same by step: a fault between two of them has no width."""
    return (
        [_IN_FORCE] if any(curves.step_at(until) > curves.step_at(since) for since, until in history.in_force) else []
    )


def _step_bands(curves: Curves, history: History, frame: Frame, x: Scale) -> Iterable[str]:
    for since, until in history.in_force:
        left, right = x(curves.step_at(since)), x(curves.step_at(until))
        yield drawing.rect(left, frame.top, max(1.0, right - left), frame.bottom - frame.top, "band-inforce")


def _signs(placed: Sequence[tuple[float, Mark]], frame: Frame) -> Iterable[str]:
    """A sign on a line for each fault, repair and return; faults with the number of their incident.

    Of many faults the signs alone: lines would hide the curve, and the bands say how long each was.
    """
    is_crowded = sum(mark.kind == "injected" for _, mark in placed) > _MANY_FAULTS
    free_from = -math.inf
    for at, mark in sorted(placed, key=lambda item: item[0]):
        sign = _SIGNS.get(mark.kind)
        if sign is None or (is_crowded and sign != "fault"):
            continue
        if not is_crowded:
            yield drawing.rule(at, frame.top - 4, frame.bottom, f"rule-{sign}")
        yield drawing.glyph(sign, at, frame.top - 8 if sign == "fault" else frame.bottom - 5)
        words = str(mark.incident)
        if sign == "fault" and mark.incident is not None and at >= free_from:
            yield drawing.text(at, frame.top - 15, words, "middle", "strong")
            free_from = at + 7 * len(words) + 8


def _sign_items(marks: Sequence[Mark]) -> list[tuple[str, str]]:
    kinds = {mark.kind for mark in marks}
    if sum(mark.kind == "injected" for mark in marks) > _MANY_FAULTS:
        kinds = {"injected"}
    words = {"injected": "fault, with its number", "repair_started": "repair begins", "rejoined": "ranks back"}
    return [(f"sign-{_SIGNS[kind]}", what) for kind, what in words.items() if kind in kinds]


def _marks_text(marks: Sequence[Mark]) -> str:
    faults = [mark for mark in marks if mark.kind == "injected"]
    told = ", ".join(f"incident {mark.incident} at {name_seconds(mark.seconds)}" for mark in faults[:8])
    rest = f" and {len(faults) - 8} more" if len(faults) > 8 else ""
    return f"Faults: {told}{rest}." if faults else "No fault."


def _losses(points: Sequence[StepPoint]) -> list[float]:
    return [point.loss for point in points if point.loss is not None]


def _loss_text(main: Sequence[float], twin: Sequence[float], bad: Sequence[int]) -> str:
    said = []
    if main:
        said.append(
            f"The run's loss goes from {main[0]:.4g} to {median(main[-10:]):.4g}; its highest is {max(main):.4g}."
        )
    if bad:
        said.append(f"It was no finite number in {count(len(bad), 'step')}, first in step {bad[0]}.")
    said.append(f"The baseline's goes to {median(twin[-10:]):.4g}." if twin else "There is no fault-free baseline.")
    return " ".join(said)
