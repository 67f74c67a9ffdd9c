"""The check as one HTML page that needs no network and no script, with a plot for each size and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from harness.papers.mecefo.check import Check
from harness.papers.mecefo.claims import PAPER, SIZES
from harness.papers.mecefo.findings import OPEN
from harness.papers.mecefo.setting import METHODS
from harness.papers.mecefo.text import (
    COLUMNS,
    METHOD_COLUMNS,
    UNDILATED_COLUMNS,
    blocks,
    gate_line,
    gates_title,
    method_cells,
    row_cells,
    sources,
    undilated_cells,
    undilated_title,
)
from harness.papers.mecefo.verdicts import Row
from harness.papers.views import styles
from harness.report.drawing import WIDE, Frame, figure, legend, rect, rule, scale, text, ticks
from harness.report.templates import template

_TEMPLATE = "page.html.j2"
_LABEL, _ROW, _BAR = 236, 30, 9
_RIGHT = 60


def render(check: Check) -> str:
    """The whole page."""
    return template(Path(__file__).parent, _TEMPLATE).render(
        check=check,
        paper=PAPER,
        open=OPEN,
        undilated_title=undilated_title(check.undilated),
        undilated_columns=UNDILATED_COLUMNS,
        undilated_rows=undilated_cells(check.undilated),
        styles=styles(),
        gates_title=gates_title(check),
        method_columns=METHOD_COLUMNS,
        methods=method_cells(),
        sources=sources(check),
        columns=COLUMNS,
        gates=[(gate.passed, gate_line(gate)) for gate in check.gates],
        plots=list(_plots(check.rows)),
        blocks=[
            (title, [(*row_cells(row), row.reason if row.paper else "") for row in rows])
            for title, rows in blocks(check)
        ],
    )


def _plots(rows: Sequence[Row]) -> Iterator[Markup]:
    """One for each size and shape, under `high`."""
    high = [row for row in rows if row.cell.process == "high"]
    for (size, shape), some in groupby(high, key=lambda row: (row.cell.size, row.cell.shape)):
        yield _plot(f"{SIZES[size].words}, high, D x P = {shape}", f"{size}-{shape}", list(some))


def _plot(title: str, name: str, rows: Sequence[Row]) -> Markup:
    """A line for each method and execution model: the paper's figure, the forecast, and what was emulated."""
    models = list(dict.fromkeys((row.cell.num_microbatches, row.cell.is_exposed) for row in rows))
    ordered = [
        row
        for method in METHODS
        for model in models
        for row in rows
        if (row.cell.method, row.cell.num_microbatches, row.cell.is_exposed) == (method, *model)
    ]
    most = max([0.05, *(value for row in ordered for value in _values(row))])
    least = min([0.0, *(value for row in ordered for value in _values(row))])
    frame = Frame(WIDE, 30.0, 34.0 + _ROW * 0.62 * len(ordered))
    x = scale(least, most, _LABEL, WIDE - _RIGHT)
    body = [text(8, 16, f"{title}: drop of tokens/s, with regroups and transfers", css="strong")]
    for value in ticks(least, most):
        body.append(rule(x(value), frame.top - 6, frame.bottom, "grid"))
        body.append(text(x(value), frame.bottom + 14, f"{value * 100:g}%", "middle"))
    for number, row in enumerate(ordered):
        body += _row(row, x, frame.top + (number + 0.5) * _ROW * 0.62)
    items = [("part-holds", "forecast"), ("key-degraded", "emulated, least to greatest"), ("mark-bad", "the paper")]
    signs, height = legend(items, WIDE, frame.bottom + 22)
    return figure(name, WIDE, frame.bottom + 28 + height, title, _words(ordered), [*body, *signs])


def _row(row: Row, x: object, y: float) -> Iterator[str]:
    assert callable(x)
    cell = row.cell
    words = f"{METHODS[cell.method].label}, m{cell.num_microbatches}{', exposed' if cell.is_exposed else ''}"
    yield text(_LABEL - 8, y + 4, words, "end")
    if row.forecast is not None:
        value = row.forecast.with_events[0]
        yield _bar(x, 0.0, value, y, _BAR, "part-holds", f"{words}: forecast {value:.2%}")
    if row.emulated is not None:
        seen = row.emulated.with_events
        told = f"{words}: emulated {seen.median:.2%}, {seen.least:.2%} to {seen.greatest:.2%}"
        yield _bar(x, seen.least, seen.greatest, y, _BAR - 3, "key-degraded", told)
        yield rect(x(seen.median) - 1.5, y - 6, 3, 12, "key-degraded", told)
    if row.paper is not None:
        drop = row.paper.drop_ratio
        yield rect(x(drop) - 1, y - 7, 2, 14, "mark-bad", f"the paper: {drop:.2%}")


def _bar(x: object, low: float, high: float, y: float, height: float, css: str, title: str) -> str:
    assert callable(x)
    left, right = sorted((x(low), x(high)))
    return rect(left, y - height / 2, max(right - left, 2.0), height, css, title)


def _values(row: Row) -> Iterator[float]:
    if row.forecast is not None:
        yield row.forecast.with_events[0]
    if row.emulated is not None:
        yield from (row.emulated.with_events.least, row.emulated.with_events.greatest)
    if row.paper is not None:
        yield row.paper.drop_ratio


def _words(rows: Sequence[Row]) -> str:
    return "; ".join(f"{row.cell.key}: {row.reason}" for row in rows if row.paper is not None)
