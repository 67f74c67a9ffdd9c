"""The loss chart of a run and its baseline, and the markers that all charts of a run share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from harness.analysis.words import count, name_seconds
from harness.report import drawing
from harness.report.curves import Curves, Mark, StepPoint, differences, thin_losses
from harness.report.drawing import WIDE, Frame, Point, Scale
from harness.report.history import History

_MANY_FAULTS = 24
"""With more faults than this the lines of all would hide the curve."""
_SIGNS = {"injected": "fault", "committed": "recovered", "repair_started": "repair", "rejoined": "back"}
_SIGN_WORDS = {
    "injected": "fault (incident number)",
    "committed": "recovered: first step begun after the fault",
    "repair_started": "repair started",
    "rejoined": "lost ranks rejoined",
}
_SIGN_WIDTH = 12.0
"""Signs that are nearer than this stand one above the other."""
ACTIVE = ("band-active", "fault active, or ranks missing")
TOP = 40.0
"""Above it stand what is counted, and the numbers of the faults."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that depend on a picture's width."""

    points: int
    height: int

    @classmethod
    def of(cls, width: int) -> Sizes:
        """For a picture so many pixels wide."""
        return cls(400, 190) if width >= WIDE else cls(160, 150)


def loss_by_step(curves: Curves, history: History, width: int) -> Markup:
    """The loss of the run and of its baseline, and how far they are apart; empty with fewer than two losses."""
    sizes = Sizes.of(width)
    main, baseline = thin_losses(curves.by_step, sizes.points), thin_losses(curves.baseline, sizes.points)
    # Also in work that was thrown away: that is evidence.
    bad = sorted({point.step for point in (*curves.by_step, *curves.main) if point.is_loss_bad})
    if len(main) < 2 and not bad:
        return Markup("")
    first, last = _steps_drawn(curves, [*curves.by_step, *curves.baseline])
    frame = Frame(width, TOP, TOP + sizes.height)
    x = frame.across(first, last)
    low, high = drawing.visible_range([loss for _, loss in (*main, *baseline)])
    y = frame.upwards(low, high)
    beyond, beyond_items = drawing.out_of_range((main, baseline), x, frame, low, high)
    apart, apart_frame, apart_items = _apart(curves, frame, x, sizes)
    body = [
        *_step_bands(curves, history, frame, x),
        *drawing.axis_up(frame, y, drawing.ticks(low, high)),
        drawing.text(6.0, 12.0, "loss", css="strong"),
        *(drawing.line(piece, "twin") for piece in _pieces(curves.baseline, baseline, x, y, low, high)),
        *(drawing.line(piece, "main") for piece in _pieces(curves.by_step, main, x, y, low, high)),
        *(
            drawing.rect(x(since), frame.top, max(2.0, x(until) - x(since)), 6, "mark-bad")
            for since, until in _runs(bad)
        ),
        *beyond,
        *apart,
        *drawing.axis_across(apart_frame, x, first, last, "step"),
        *signs([(x(mark.step), mark) for mark in curves.marks], frame),
    ]
    size = -(-len(curves.by_step) // (sizes.points // 2)) if len(curves.by_step) > sizes.points else 1
    thinned = f", lowest and highest of every {size} steps" if size > 1 else ""
    items = [("curve-main", f"this run{thinned}"), *((("curve-twin", "fault-free baseline"),) if baseline else ())]
    if bad:
        items.append(("mark-bad", "not finite"))
    items += [*beyond_items, *apart_items, *_step_band_items(curves, history)]
    legend, height = drawing.legend([*items, *sign_items(curves.marks)], width, apart_frame.bottom + 38)
    return drawing.figure(
        "loss",
        width,
        apart_frame.bottom + 38 + height + 4,
        "Loss by step",
        _loss_text(_losses(curves.by_step), _losses(curves.baseline), bad),
        [*body, *legend],
    )


def _steps_drawn(curves: Curves, points: Sequence[StepPoint]) -> tuple[float, float]:
    """From the first step to the last one, committed or affected."""
    steps = [point.step for point in points]
    affected = [mark.step for mark in curves.marks]
    return float(min(steps)), float(max(*steps, *affected, min(steps) + 1))


def _apart(curves: Curves, frame: Frame, x: Scale, sizes: Sizes) -> tuple[list[str], Frame, list[tuple[str, str]]]:
    """A small panel below `frame`: the difference from the baseline, in percent. With the legend's items."""
    baseline = curves.baseline if curves.has_counted else ()
    points = [(step, 100 * ratio) for step, ratio in differences(curves.by_step, baseline, sizes.points)]
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
        *(drawing.line(piece, "main") for piece in _pieces(curves.by_step, points, x, y, low, high)),
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


def _step_band_items(curves: Curves, history: History) -> list[tuple[str, str]]:
    """The same by step: a fault between two of them has no width."""
    return [ACTIVE] if any(curves.step_at(until) > curves.step_at(since) for since, until in history.active) else []


def _step_bands(curves: Curves, history: History, frame: Frame, x: Scale) -> Iterable[str]:
    for since, until in history.active:
        left, right = x(curves.step_at(since)), x(curves.step_at(until))
        yield drawing.rect(left, frame.top, max(1.0, right - left), frame.bottom - frame.top, "band-active")


def signs(placed: Sequence[tuple[float, Mark]], frame: Frame) -> Iterable[str]:
    """A sign on a line for each fault, recovery, repair and return; faults with the number of their incident.

    Of many faults the signs alone: lines would hide the curve, and the bands say how long each was. Below, the sign of
    what came later stands above that of what came just before it, so that none hides another.
    """
    is_crowded = sum(mark.kind == "injected" for _, mark in placed) > _MANY_FAULTS
    numbers_from, below_from, level, faults_from = -math.inf, -math.inf, 0, -math.inf
    order = list(_SIGNS)
    known = [item for item in placed if item[1].kind in _SIGNS]
    for at, mark in sorted(known, key=lambda item: (item[0], order.index(item[1].kind), item[1].incident or 0)):
        sign = _SIGNS[mark.kind]
        if is_crowded and sign != "fault":
            continue
        if not is_crowded:
            yield drawing.rule(at, frame.top - 4, frame.bottom, f"rule-{sign}")
        if sign != "fault":
            level = level + 1 if at < below_from else 0
            below_from = at + _SIGN_WIDTH
            yield drawing.glyph(sign, at, frame.bottom - 6 - level * _SIGN_WIDTH)
            continue
        # Faults of the same moment stand side by side; the line is where they fired.
        place = at if is_crowded else min(max(at, faults_from), max(at, frame.right))
        faults_from = place + _SIGN_WIDTH
        yield drawing.glyph(sign, place, frame.top - 8)
        words = str(mark.incident)
        if mark.incident is not None and place >= numbers_from:
            yield drawing.text(place, frame.top - 15, words, "middle", "strong")
            numbers_from = place + 7 * len(words) + 4


def sign_items(marks: Sequence[Mark]) -> list[tuple[str, str]]:
    """The items of a legend for the signs of `marks`."""
    kinds = {mark.kind for mark in marks}
    if sum(mark.kind == "injected" for mark in marks) > _MANY_FAULTS:
        kinds = {"injected"}
    return [(f"sign-{_SIGNS[kind]}", words) for kind, words in _SIGN_WORDS.items() if kind in kinds]


def marks_text(marks: Sequence[Mark]) -> str:
    """The faults among `marks` in words."""
    faults = [mark for mark in marks if mark.kind == "injected"]
    told = ", ".join(f"incident {mark.incident} at {name_seconds(mark.seconds)}" for mark in faults[:8])
    rest = f" and {len(faults) - 8} more" if len(faults) > 8 else ""
    return f"Faults: {told}{rest}." if faults else "No fault."


def _losses(points: Sequence[StepPoint]) -> list[float]:
    return [point.loss for point in points if point.loss is not None]


def _loss_text(main: Sequence[float], baseline: Sequence[float], bad: Sequence[int]) -> str:
    said = []
    if main:
        said.append(
            f"The run's loss goes from {main[0]:.4g} to {median(main[-10:]):.4g}; its highest is {max(main):.4g}."
        )
    if bad:
        said.append(f"It was not finite in {count(len(bad), 'step')}, first in step {bad[0]}.")
    last = f"The baseline's goes to {median(baseline[-10:]):.4g}." if baseline else "There is no fault-free baseline."
    said.append(last)
    return " ".join(said)
