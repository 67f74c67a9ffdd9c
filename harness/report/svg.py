"""The figures of the HTML report as inline SVG. Colours are classes of the page's style sheet, for light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.report.curves import Curves, Holding, Mark, mean_rates, thin_losses
from harness.words import name_seconds, one_line

_WIDTH, _HEIGHT = 860, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 34, 34
_MAX_POINTS = 400
_LANE_HEIGHT = 18
_MARK_WORDS = {"injected": "fault", "regrouped": "regrouped", "repair_started": "repair", "rejoined": "back"}
_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar: `css` names its colour in the style sheet."""

    words: str
    seconds: float
    css: str


def speed_chart(curves: Curves) -> Markup:
    """Work per second over time, with the faults and what followed drawn in; empty when no step was committed."""
    main = mean_rates(curves.main, min(_MAX_POINTS, max(1, len(curves.main))))
    if not main:
        return Markup("")
    begin, end = curves.main[0].since_seconds, curves.main[-1].committed_seconds
    x = _scale(begin, end, _LEFT, _WIDTH - _RIGHT)
    top = max(rate for _, rate in main) * 1.08
    y = _scale(0.0, top, _HEIGHT - _BOTTOM, _TOP)
    bands = [
        _rect(x(first), _TOP, x(last) - x(first), _HEIGHT - _TOP - _BOTTOM, css)
        for first, last, css in _bands(curves.marks, end)
    ]
    body = [
        *bands,
        *_axes(x, y, _ticks(begin, end), _ticks(0.0, top), "seconds since the job started"),
        _line([(x(seconds), y(rate)) for seconds, rate in main], "main"),
        *_mark_lines([(x(mark.seconds), mark) for mark in curves.marks if begin <= mark.seconds <= end]),
    ]
    return _figure(_HEIGHT, f"Training speed in {curves.unit} per second over time", body)


def loss_chart(curves: Curves) -> Markup:
    """The loss of the run and of its twin by step; empty when no loss is known."""
    main, twin = thin_losses(curves.main, _MAX_POINTS), thin_losses(curves.twin, _MAX_POINTS)
    everything = [*main, *twin]
    if not main:
        return Markup("")
    last = max(step for step, _ in everything)
    low, high = min(loss for _, loss in everything), max(loss for _, loss in everything)
    margin = (high - low or 1.0) * 0.06
    x = _scale(1.0, max(last, 2.0), _LEFT, _WIDTH - _RIGHT)
    y = _scale(low - margin, high + margin, _HEIGHT - _BOTTOM, _TOP)
    body = [
        *_axes(x, y, _ticks(1.0, max(last, 2.0)), _ticks(low - margin, high + margin), "step"),
        _line([(x(step), y(loss)) for step, loss in twin], "twin"),
        _line([(x(step), y(loss)) for step, loss in main], "main"),
        *_mark_lines([(x(mark.step), mark) for mark in curves.marks if mark.kind == "injected"]),
    ]
    return _figure(_HEIGHT, "Loss by step, of this run and of its fault-free twin", body)


def lanes_chart(curves: Curves) -> Markup:
    """Who held which layers when: a lane for each rank, over the steps; empty when no layout is known."""
    if not curves.lanes:
        return Markup("")
    last = max(lane[-1].end_step for lane in curves.lanes.values() if lane)
    x = _scale(1.0, float(last), _LEFT, _WIDTH - _RIGHT)
    bottom = _TOP + _LANE_HEIGHT * len(curves.lanes)
    body = [
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" class="hatch-ground"/><line x1="0" y1="0" x2="0" y2="6" class="hatch"/>'
        "</pattern></defs>"
    ]
    for row, (rank, lane) in enumerate(curves.lanes.items()):
        top = _TOP + row * _LANE_HEIGHT
        body.append(_text(_LEFT - 6, top + 13, f"rank {rank}", "end"))
        body.extend(_holding(rank, holding, x, top) for holding in lane)
    body += [_tick_x(x(tick), bottom, tick) for tick in _ticks(1.0, float(last))]
    body.append(_text((_LEFT + _WIDTH) / 2, bottom + 32, "step", "middle"))
    body += _mark_lines([(x(m.step), m) for m in curves.marks if m.kind in ("injected", "rejoined")], bottom)
    return _figure(bottom + 38, "Which layers each rank held, by step", body)


def stacked_bar(parts: Sequence[Part], label: str) -> Markup:
    """Parts side by side, as long as they took; empty when there is nothing to show."""
    total = sum(max(0.0, part.seconds) for part in parts)
    if total <= 0:
        return Markup("")
    body, at = [], 0.0
    for part in parts:
        width = _WIDTH * max(0.0, part.seconds) / total
        title = f"{part.words}: {name_seconds(part.seconds)}"
        body.append(_rect(at, 0, width, 28, part.css, title))
        if width > 7 * len(part.words) + 8:
            body.append(_text(at + width / 2, 18, part.words, "middle", "on-part"))
        at += width
    return _figure(28, label, body)


def _holding(rank: int, holding: Holding, x: Callable[[float], float], top: float) -> str:
    left, width = x(holding.first_step), x(holding.end_step) - x(holding.first_step)
    steps = f"steps {holding.first_step} to {holding.end_step - 1}"
    if holding.layers is None:
        words, css, title = "gone", "part-gone", f"rank {rank} was not in the job, {steps}"
    elif not holding.layers:
        words, css, title = "idle", "part-idle", f"rank {rank} held nothing, {steps}"
    else:
        words = f"{holding.layers[0]}-{holding.layers[-1]}" if len(holding.layers) > 1 else f"{holding.layers[0]}"
        title = f"rank {rank} held layers {words} of replica {holding.replica}, {steps}"
        css = "part-degraded" if holding.degraded else "part-holds"
        if holding.degraded:
            approximated = ", ".join(map(str, sorted(holding.degraded)))
            title += f"; approximated: {approximated}"
            words += " ~"
    body = _rect(left, top + 1, width, _LANE_HEIGHT - 2, css, title)
    if width > 7 * len(words) + 4:
        body += _text(left + width / 2, top + 13, words, "middle", "on-part" if holding.layers else "")
    return body


def _bands(marks: Sequence[Mark], end: float) -> Iterable[tuple[float, float, str]]:
    """(from, to, class): from each fault to the regroup that answers it, and from there until its ranks are back."""
    for mark in marks:
        if mark.kind != "injected":
            continue
        regrouped = next((m.seconds for m in marks if m.kind == "regrouped" and m.seconds > mark.seconds), None)
        if regrouped is None:
            # Nothing had to regroup (a fault on the coordinator), or nothing ever did: no band, the mark says it all.
            continue
        back = next((m.seconds for m in marks if m.kind == "rejoined" and m.seconds > regrouped), end)
        yield mark.seconds, min(regrouped, end), "band-stopped"
        yield min(regrouped, end), min(back, end), "band-degraded"


def _mark_lines(placed: Sequence[tuple[float, Mark]], bottom: float = _HEIGHT - _BOTTOM) -> list[str]:
    """Vertical lines with a word each; words that would overlap go on two levels, and beyond those are left out."""
    body = []
    free_from = [0.0, 0.0]
    for at, mark in sorted(placed, key=lambda item: item[0]):
        words = _MARK_WORDS[mark.kind]
        if mark.kind == "injected" and mark.incident is not None:
            words = f"incident {mark.incident}"
        body.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 4}" y2="{bottom:.1f}" class="mark-{mark.kind}"/>')
        level = next((level for level in (0, 1) if free_from[level] <= at), None)
        if level is not None:
            near_right = at > _WIDTH - 70
            body.append(_text(at, 24 - 13 * level, words, "end" if near_right else "start"))
            free_from[level] = at + 7 * len(words) + 6
    return body


def _axes(
    x: Callable[[float], float],
    y: Callable[[float], float],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_words: str,
) -> list[str]:
    body = []
    for tick in y_ticks:
        at = y(tick)
        body.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        body.append(_text(_LEFT - 6, at + 4, f"{tick:,.10g}", "end"))
    body += [_tick_x(x(tick), _HEIGHT - _BOTTOM, tick) for tick in x_ticks]
    body.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 3, x_words, "middle"))
    return body


def _tick_x(at: float, bottom: float, value: float) -> str:
    line = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}" class="axis"/>'
    return line + _text(at, bottom + 16, f"{value:,.10g}", "middle")


def _ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers within [low, high], about as many as asked for."""
    rough = (high - low) / about
    if rough <= 0 or not math.isfinite(rough):
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough * 0.999)
    return [round(number * step, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _scale(low: float, high: float, at_low: float, at_high: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: at_low + (value - low) / span * (at_high - at_low)


def _line(points: Sequence[_Point], css: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="curve-{css}"/>' if points else ""


def _rect(x: float, y: float, width: float, height: float, css: str, title: str = "") -> str:
    inner = f"<title>{escape(one_line(title))}</title>" if title else ""
    size = f'width="{max(0.0, width):.2f}" height="{height:.1f}"'
    return f'<rect x="{x:.2f}" y="{y:.1f}" {size} class="{css}">{inner}</rect>'


def _text(x: float, y: float, words: str, anchor: str, css: str = "") -> str:
    extra = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(one_line(words))}</text>'


def _figure(height: float, label: str, body: Iterable[str]) -> Markup:
    inner = "".join(body)
    view = f'viewBox="0 0 {_WIDTH} {height:.0f}"'
    return Markup(f'<svg {view} role="img" aria-label="{escape(label)}">{inner}</svg>')
