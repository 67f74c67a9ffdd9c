"""The page of a study: one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup, escape

import harness.report
from harness.analysis.words import one_line
from harness.report import drawing
from harness.report.drawing import WIDE, Frame, Rows, both_widths
from harness.report.templates import template
from mecefo_chaos.studies.forecast.model import CAUSES
from mecefo_chaos.studies.forecast.study import Answer, Study
from mecefo_chaos.studies.forecast.text import (
    CAUSE_WORDS,
    duration,
    heading,
    policy_words,
    reading,
    recommendation,
    table_cells,
)

_TEMPLATE = "page.html.j2"
_ROW = 30
_LABELS = 118.0
_MOST_INPUTS = 8
# Colours of the palette; what is productive is drawn pale.
_FILLS = ("#4e79a7", "#b07aa1", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#9c755f", "#edc948", "#bab0ac")


def render(study: Study) -> str:
    """The whole page."""
    report = Path(harness.report.__file__).parent
    header, rows = table_cells(study)
    return template(Path(__file__).parent, _TEMPLATE).render(
        name=study.question.file.name,
        css=Markup(
            "".join((report / name).read_text(encoding="utf-8") for name in ("palette.css", "figures.css", "page.css"))
        ),
        lines=heading(study),
        recommendation=recommendation(study),
        reading=reading(study),
        header=header,
        rows=rows,
        pictures=[
            (
                "Time to the failure-free loss",
                "Times that of a job without failures; less is better.",
                both_widths(partial(_times, study)),
            ),
            (
                "Where the time goes",
                "Shares of the wall clock that are lost, by cause.",
                both_widths(partial(_lost, study)),
            ),
            *_intervals(study.answers),
            *_sensitivities(study),
        ],
    )


def _bar(x: float, y: float, width: float, height: float, fill: str, words: str) -> str:
    title = f"<title>{escape(one_line(words))}</title>"
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}">{title}</rect>'


def _rows(num: int, width: int) -> Rows:
    return Rows(width, 12.0, num, _LABELS + 40, _ROW, 70.0 if width >= WIDE else 46.0)


def _axis(rows: Rows, x: drawing.Scale, low: float, high: float, suffix: str = "", unit: float = 1.0) -> Iterable[str]:
    for value in rows.ticks(low / unit, high / unit):
        at = x(value * unit)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{rows.bottom:.1f}" class="grid"/>'
        yield drawing.below(at, rows.bottom + 16, f"{drawing.number_text(value)}{suffix}", rows.width)


def _times(study: Study, width: int) -> Markup:
    spreads = [(answer.forecast, answer.forecast.time_to_loss_ratio(study.worth)) for answer in study.answers]
    shown = [(found, spread) for found, spread in spreads if spread.median < 1e3]
    high = max([1.2, *(spread.median for _, spread in shown)]) * 1.05
    rows = _rows(len(shown), width)
    x = rows.across(0.0, high)
    body = [*_axis(rows, x, 0.0, high)]
    for row, (found, spread) in enumerate(shown):
        y = rows.middle(row)
        words = f"{policy_words(found.policy)}: {spread.median:.3f} ({spread.least:.3f} to {spread.greatest:.3f})"
        body.append(_bar(x(0), y - 11, x(spread.median) - x(0), _ROW - 10, _FILLS[0], words))
        body.append(
            f'<line x1="{x(min(spread.least, high)):.1f}" x2="{x(min(spread.greatest, high)):.1f}" '
            f'y1="{y - 1:.1f}" y2="{y - 1:.1f}" class="axis"/>'
        )
        body.append(rows.name(row, policy_words(found.policy)))
        body.append(drawing.text(x(min(spread.greatest, high)) + 5, y + 3, f"{spread.median:.2f}"))
    title = "Time to the failure-free loss"
    return drawing.figure("time-to-loss", width, rows.bottom + 34, title, _told(len(spreads)), body)


def _told(num: int) -> str:
    return f"{num} strategies, the soonest first; the line is from the least to the greatest simulation."


def _lost(study: Study, width: int) -> Markup:
    found = [answer.forecast for answer in study.answers]
    shares = [{cause: one.lost_seconds[cause] / one.wall_clock_seconds for cause in CAUSES} for one in found]
    high = max(0.01, *(sum(max(0.0, share) for share in one.values()) for one in shares)) * 1.05
    rows = _rows(len(found), width)
    x = rows.across(0.0, high)
    body = [*_axis(rows, x, 0.0, high, "%", 0.01)]
    for row, (one, by_cause) in enumerate(zip(found, shares, strict=True)):
        y, at = rows.middle(row), 0.0
        for cause, fill in zip(CAUSES, _FILLS, strict=True):
            share = max(0.0, by_cause[cause])
            if share > high / 2000:
                words = f"{policy_words(one.policy)}: {CAUSE_WORDS[cause]} {share:.1%}"
                body.append(_bar(x(at), y - 11, x(at + share) - x(at), _ROW - 10, fill, words))
            at += share
        body.append(rows.name(row, policy_words(one.policy)))
        body.append(drawing.text(x(at) + 5, y + 3, f"{at:.1%}"))
    present = [cause for cause in CAUSES if any(one[cause] > high / 2000 for one in shares)]
    items = [(_FILLS[CAUSES.index(cause)], CAUSE_WORDS[cause]) for cause in present]
    signs, height = _legend(items, width, rows.bottom + 40)
    body += signs
    title = "Where the time goes"
    return drawing.figure(
        "lost", width, rows.bottom + 46 + height, title, "Lost shares of the wall clock by cause.", body
    )


def _legend(items: Sequence[tuple[str, str]], width: int, top: float) -> tuple[list[str], float]:
    """(body, height) of the fills and what they mean."""
    left, step, num_columns = (20.0, 205.0, 4) if width >= WIDE else (8.0, 168.0, 2)
    body: list[str] = []
    for place, (fill, words) in enumerate(items):
        x, y = left + place % num_columns * step, top + place // num_columns * 18
        body += [_bar(x, y, 11, 11, fill, words), drawing.text(x + 17, y + 10, words)]
    return body, 18.0 * -(-len(items) // num_columns)


def _intervals(answers: Iterable[Answer]) -> list[tuple[str, str, Markup]]:
    """Goodput over the checkpoint interval, of the strategies that go back to one."""
    shown = [one for one in answers if one.tried_intervals and one.forecast.policy.stops_on_loss]
    pictures = []
    for answer in shown:
        words = f"Goodput by the time between two checkpoints. Best: {duration(answer.best_interval_seconds or 0)}."
        title = f"Checkpoint interval under {policy_words(answer.forecast.policy)}"
        pictures.append((title, words, both_widths(partial(_interval, answer, words))))
    return pictures


def _interval(answer: Answer, words: str, width: int) -> Markup:
    points = answer.tried_intervals
    frame = Frame(width, 14.0, 190.0)
    least, greatest = points[0][0], points[-1][0]
    x = frame.across(0.0, greatest * 1.02)
    top = max(goodput for _, goodput in points) * 1.1 or 1.0
    y = frame.upwards(0.0, top * 100)
    unit = 60.0 if least >= 60 else 1.0
    body = [
        *drawing.axis_up(frame, y, drawing.ticks(0.0, top * 100), "%"),
        *drawing.axis_across(frame, x, 0.0, greatest, "minutes" if unit == 60 else "seconds", unit),
        drawing.line([(x(seconds), y(goodput * 100)) for seconds, goodput in points], "main"),
    ]
    for seconds, goodput in points:
        fill = _FILLS[3] if seconds == answer.best_interval_seconds else _FILLS[0]
        title = escape(f"{duration(seconds)}: {goodput:.1%}")
        body.append(
            f'<circle cx="{x(seconds):.1f}" cy="{y(goodput * 100):.1f}" r="4" fill="{fill}">'
            f"<title>{title}</title></circle>"
        )
    name = policy_words(answer.forecast.policy)
    return drawing.figure(f"interval-{name}", width, 232, "Checkpoint interval", words, body)


def _sensitivities(study: Study) -> list[tuple[str, str, Markup]]:
    names = list(dict.fromkeys(one.input for one in study.sensitivities))[:_MOST_INPUTS]
    found = {(one.input, one.factor): one.change_ratio for one in study.sensitivities if one.input in names}
    if not any(abs(change) < 1e3 for change in found.values()):
        return []
    description = f"What halving and doubling an input does to the time to loss of {policy_words(study.best.policy)}."
    picture = both_widths(partial(_changes, names, found, description))
    return [("What decides the answer", description, picture)]


def _changes(names: Sequence[str], found: Mapping[tuple[str, float], float], description: str, width: int) -> Markup:
    most = max(0.001, *(abs(change) for change in found.values() if abs(change) < 1e3)) * 1.1
    rows = _rows(len(names), width)
    x = rows.across(-most, most)
    body = [*_axis(rows, x, -most, most, "%", 0.01)]
    for row, name in enumerate(names):
        y = rows.middle(row)
        for factor, fill, offset in ((0.5, _FILLS[0], -12), (2.0, _FILLS[2], -2)):
            change = found.get((name, factor))
            if change is not None and abs(change) < 1e3:
                words = f"{name} x {factor:g}: {change:+.1%}"
                body.append(_bar(x(min(0.0, change)), y + offset, abs(x(change) - x(0.0)), 9, fill, words))
        body.append(rows.name(row, name))
    signs, height = _legend([(_FILLS[0], "halved"), (_FILLS[2], "doubled")], width, rows.bottom + 36)
    title = "What decides the answer"
    return drawing.figure("sensitivity", width, rows.bottom + 42 + height, title, description, [*body, *signs])
