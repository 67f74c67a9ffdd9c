"""A plot of the drops of tokens/s for each size and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from markupsafe import Markup

from harness.report.drawing import Rows, Scale, below, both_widths, figure, heading, legend, rect, rule
from mecefo_chaos.studies.papers.mecefo.claims import SIZES
from mecefo_chaos.studies.papers.mecefo.setting import METHODS
from mecefo_chaos.studies.papers.mecefo.verdicts import Row

_LABEL, _ROW, _BAR = 236, 30, 9
_RIGHT = 60


def plots(rows: Sequence[Row]) -> Iterator[Markup]:
    """One for each size and shape, under `high`."""
    high = [row for row in rows if row.cell.process == "high"]
    for (size, shape), some in groupby(high, key=lambda row: (row.cell.size, row.cell.shape)):
        title = f"{SIZES[size].words}, high, D x P = {shape}"
        yield both_widths(partial(_plot, title, f"{size}-{shape}", list(some)))


def _plot(title: str, name: str, rows: Sequence[Row], width: int) -> Markup:
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
    body, height = heading(f"{title}: drop of tokens/s, with regroups and transfers", width)
    lanes = Rows(width, 15.0 + height, len(ordered), _LABEL, _ROW * 0.62, _RIGHT)
    x = lanes.across(least, most)
    for value in lanes.ticks(least, most):
        body.append(rule(x(value), lanes.top - 6, lanes.bottom, "grid"))
        body.append(below(x(value), lanes.bottom + 14, f"{value * 100:g}%", width))
    for number, row in enumerate(ordered):
        body += _row(row, x, lanes, number)
    items = [("part-holds", "forecast"), ("key-degraded", "emulated, least to greatest"), ("mark-bad", "the paper")]
    signs, height = legend(items, width, lanes.bottom + 22)
    return figure(name, width, lanes.bottom + 28 + height, title, _words(ordered), [*body, *signs])


def _row(row: Row, x: Scale, lanes: Rows, number: int) -> Iterator[str]:
    y = lanes.middle(number)
    cell = row.cell
    words = f"{METHODS[cell.method].label}, m{cell.num_microbatches}{', exposed' if cell.is_exposed else ''}"
    yield lanes.name(number, words)
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
