"""The page of a study: one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup, escape

import harness.report
from harness.analysis.words import one_line
from harness.forecast.model import CAUSES
from harness.forecast.study import Answer, Study
from harness.forecast.text import CAUSE_WORDS, duration, heading, policy_words, reading, recommendation, table_cells
from harness.report import drawing
from harness.report.drawing import WIDE, Frame
from harness.report.templates import template

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
            ("Time to the failure-free loss", "Times that of a job without failures; less is better.", _times(study)),
            ("Where the time goes", "Shares of the wall clock that are lost, by cause.", _lost(study)),
            *_intervals(study.answers),
            *_sensitivities(study),
        ],
    )


def _bar(x: float, y: float, width: float, height: float, fill: str, words: str) -> str:
    title = f"<title>{escape(one_line(words))}</title>"
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}">{title}</rect>'


def _rows(num: int) -> tuple[float, float]:
    """Bottom of the bars and height of the picture."""
    return 12.0 + _ROW * num, 12.0 + _ROW * num + 34


def _across(low: float, high: float) -> tuple[Frame, drawing.Scale]:
    return Frame(WIDE, 0.0, 0.0), drawing.scale(low, high, _LABELS + 40, WIDE - 70.0)


def _axis(
    x: drawing.Scale, low: float, high: float, bottom: float, suffix: str = "", unit: float = 1.0
) -> Iterable[str]:
    for value in drawing.ticks(low / unit, high / unit):
        at = x(value * unit)
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{bottom:.1f}" class="grid"/>'
        yield drawing.text(at, bottom + 16, f"{drawing.number_text(value)}{suffix}", "middle")


def _times(study: Study) -> Markup:
    spreads = [(answer.forecast, answer.forecast.time_to_loss_ratio(study.worth)) for answer in study.answers]
    shown = [(found, spread) for found, spread in spreads if spread.median < 1e3]
    high = max([1.2, *(spread.median for _, spread in shown)]) * 1.05
    bottom, height = _rows(len(shown))
    _, x = _across(0.0, high)
    body = [*_axis(x, 0.0, high, bottom)]
    for row, (found, spread) in enumerate(shown):
        y = 12.0 + _ROW * row
        words = f"{policy_words(found.policy)}: {spread.median:.3f} ({spread.least:.3f} to {spread.greatest:.3f})"
        body.append(_bar(x(0), y + 4, x(spread.median) - x(0), _ROW - 10, _FILLS[0], words))
        body.append(
            f'<line x1="{x(min(spread.least, high)):.1f}" x2="{x(min(spread.greatest, high)):.1f}" '
            f'y1="{y + _ROW / 2 - 1:.1f}" y2="{y + _ROW / 2 - 1:.1f}" class="axis"/>'
        )
        body.append(drawing.text(_LABELS + 34, y + _ROW / 2 + 3, policy_words(found.policy), "end"))
        body.append(drawing.text(x(min(spread.greatest, high)) + 5, y + _ROW / 2 + 3, f"{spread.median:.2f}"))
    return drawing.figure("time-to-loss", WIDE, height, "Time to the failure-free loss", _told(len(spreads)), body)


def _told(num: int) -> str:
    return f"{num} strategies, the soonest first; the line is from the least to the greatest simulation."


def _lost(study: Study) -> Markup:
    found = [answer.forecast for answer in study.answers]
    shares = [{cause: one.lost_seconds[cause] / one.wall_clock_seconds for cause in CAUSES} for one in found]
    high = max(0.01, *(sum(max(0.0, share) for share in one.values()) for one in shares)) * 1.05
    bottom, height = _rows(len(found))
    _, x = _across(0.0, high)
    body = [*_axis(x, 0.0, high, bottom, "%", 0.01)]
    for row, (one, by_cause) in enumerate(zip(found, shares, strict=True)):
        y, at = 12.0 + _ROW * row, 0.0
        for cause, fill in zip(CAUSES, _FILLS, strict=True):
            share = max(0.0, by_cause[cause])
            if share > high / 2000:
                words = f"{policy_words(one.policy)}: {CAUSE_WORDS[cause]} {share:.1%}"
                body.append(_bar(x(at), y + 4, x(at + share) - x(at), _ROW - 10, fill, words))
            at += share
        body.append(drawing.text(_LABELS + 34, y + _ROW / 2 + 3, policy_words(one.policy), "end"))
        body.append(drawing.text(x(at) + 5, y + _ROW / 2 + 3, f"{at:.1%}"))
    present = [cause for cause in CAUSES if any(one[cause] > high / 2000 for one in shares)]
    for place, cause in enumerate(present):
        column, line = place % 4, place // 4
        left, top = 20.0 + column * 205, height + 6 + line * 18
        body.append(_bar(left, top, 11, 11, _FILLS[CAUSES.index(cause)], CAUSE_WORDS[cause]))
        body.append(drawing.text(left + 17, top + 10, CAUSE_WORDS[cause]))
    height += 12 + 18 * -(-len(present) // 4)
    return drawing.figure("lost", WIDE, height, "Where the time goes", "Lost shares of the wall clock by cause.", body)


def _intervals(answers: Iterable[Answer]) -> list[tuple[str, str, Markup]]:
    """Goodput over the checkpoint interval, of the strategies that go back to one."""
    shown = [one for one in answers if one.tried_intervals and one.forecast.policy.stops_on_loss]
    pictures = []
    for answer in shown:
        points = answer.tried_intervals
        frame = Frame(WIDE, 14.0, 190.0)
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
        words = f"Goodput by the time between two checkpoints. Best: {duration(answer.best_interval_seconds or 0)}."
        picture = drawing.figure(f"interval-{name}", WIDE, 232, "Checkpoint interval", words, body)
        pictures.append((f"Checkpoint interval under {name}", words, picture))
    return pictures


def _sensitivities(study: Study) -> list[tuple[str, str, Markup]]:
    names = list(dict.fromkeys(one.input for one in study.sensitivities))[:_MOST_INPUTS]
    found = {(one.input, one.factor): one.change_ratio for one in study.sensitivities}
    changes = [abs(change) for (name, _), change in found.items() if name in names and abs(change) < 1e3]
    if not names or not changes:
        return []
    most = max(0.001, *changes) * 1.1
    bottom, height = _rows(len(names))
    _, x = _across(-most, most)
    body = [*_axis(x, -most, most, bottom, "%", 0.01)]
    for row, name in enumerate(names):
        y = 12.0 + _ROW * row
        for factor, fill, offset in ((0.5, _FILLS[0], 3), (2.0, _FILLS[2], 13)):
            change = found.get((name, factor))
            if change is not None and abs(change) < 1e3:
                words = f"{name} x {factor:g}: {change:+.1%}"
                body.append(_bar(x(min(0.0, change)), y + offset, abs(x(change) - x(0.0)), 9, fill, words))
        body.append(drawing.text(_LABELS + 34, y + _ROW / 2 + 3, name, "end"))
    for left, fill, words in ((20.0, _FILLS[0], "halved"), (120.0, _FILLS[2], "doubled")):
        body += [_bar(left, height + 2, 11, 11, fill, words), drawing.text(left + 17, height + 12, words)]
    description = f"What halving and doubling an input does to the time to loss of {policy_words(study.best.policy)}."
    picture = drawing.figure("sensitivity", WIDE, height + 20, "What decides the answer", description, body)
    return [("What decides the answer", description, picture)]
