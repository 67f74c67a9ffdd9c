"""Plots of survival on eight and on 64 nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from harness.report.drawing import Rows, Scale, below, both_widths, figure, heading, legend, rect, rule
from mecefo_chaos.studies.papers.reft.odds import LARGE, Odds
from mecefo_chaos.studies.papers.reft.schemes import NUM_NODES

_LABEL, _ROW, _BAR = 190, 16, 8
_RIGHT = 24


def plots(odds: Sequence[Odds]) -> Iterator[Markup]:
    """One for each number of nodes."""
    for num_nodes in (NUM_NODES, LARGE):
        yield both_widths(partial(_plot, odds, num_nodes))


def _plot(odds: Sequence[Odds], num_nodes: int, width: int) -> Markup:
    """A line for each scheme and number of nodes lost: drawn with its interval, real processes, the closed form."""
    mine = [one for one in odds if one.num_nodes == num_nodes and one.num_lost is not None]
    body, height = heading(f"{num_nodes} nodes: probability that the state in memory survives", width)
    rows = Rows(width, 15.0 + height, len(mine), _LABEL, _ROW, _RIGHT)
    x = rows.across(0.0, 1.0)
    for value in rows.ticks(0.0, 1.0):
        body.append(rule(x(value), rows.top - 6, rows.bottom, "grid"))
        body.append(below(x(value), rows.bottom + 14, f"{value:g}", width))
    for number, one in enumerate(mine):
        body.append(rows.name(number, f"{one.scheme}, {one.num_lost} lost"))
        body += _row(one, x, rows.middle(number))
    items = [("key-degraded", "drawn through the product's code, 95% interval"), ("mark-bad", "closed form")]
    if any(one.lived is not None for one in mine):
        items.insert(1, ("part-holds", "real processes, 95% interval"))
    signs, height = legend(items, width, rows.bottom + 22)
    words = "; ".join(f"{one.scheme}, {one.num_lost} lost: {one.closed:.3f}" for one in mine)
    title = f"Survival on {num_nodes} nodes"
    return figure(f"survival-{num_nodes}", width, rows.bottom + 28 + height, title, words, [*body, *signs])


def _row(odds: Odds, x: Scale, y: float) -> Iterator[str]:
    if odds.lived is not None and odds.lived.num_draws:
        low, high = odds.lived.interval
        told = f"real: {odds.lived.num_survived} of {odds.lived.num_draws}"
        yield rect(x(low), y - _BAR / 2 - 2, max(x(high) - x(low), 2.0), _BAR + 4, "part-holds", told)
    if odds.drawn is not None:
        low, high = odds.drawn.interval
        told = f"drawn: {odds.drawn.num_survived} of {odds.drawn.num_draws}"
        yield rect(x(low), y - _BAR / 2 + 1, max(x(high) - x(low), 2.0), _BAR - 2, "key-degraded", told)
    yield rect(x(odds.closed) - 1, y - 7, 2, 14, "mark-bad", f"closed form: {odds.closed:.4f}")
