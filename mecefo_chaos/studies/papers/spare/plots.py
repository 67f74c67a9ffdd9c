"""Plots of times by redundancy and of gains by assumption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from harness.report.drawing import (
    Frame,
    Rows,
    Scale,
    axis_across,
    axis_up,
    below,
    both_widths,
    figure,
    heading,
    legend,
    line,
    rect,
    rule,
    text,
    ticks,
)
from mecefo_chaos.studies.papers.spare.claims import CLAIMS, GAIN_RATIOS, SIZES
from mecefo_chaos.studies.papers.spare.tables import CurvePoint, Sensitivity

_LABEL, _ROW, _BAR = 220, 14, 9
_RIGHT = 24
_HEIGHT = 190.0
# Times beyond that are off the picture: with r = 2 a job takes that and more.
_MOST_TIME_RATIO = 10.0
_CURVES = (("spare", "main", "SPARe"), ("replication", "twin", "replication"))


def plots(points: Sequence[CurvePoint], sensitive: Sequence[Sensitivity]) -> Iterator[Markup]:
    """One for each number of groups, and one of all assumptions."""
    for size in SIZES:
        yield both_widths(partial(_curves, points, size))
    yield both_widths(partial(_gains, sensitive))


def _curves(points: Sequence[CurvePoint], num_groups: int, width: int) -> Markup:
    """Time to train by redundancy: ours as curves, the authors' rows as marks."""
    mine = [point for point in points if point.num_groups == num_groups]
    most = max((point.redundancy for point in mine), default=2)
    shown = [point for point in mine if point.time_ratio <= _MOST_TIME_RATIO]
    top = max((point.time_ratio for point in shown), default=2.0)
    title = f"{num_groups} groups: time to train, of the time without failures, by redundancy"
    body, height = heading(title, width)
    frame = Frame(width, 15.0 + height, 15.0 + height + _HEIGHT)
    x, y = frame.across(1.5, most + 0.5), frame.upwards(1.0, top)
    body += axis_up(frame, y, ticks(1.0, top))
    body += axis_across(frame, x, 1.5, most + 0.5, "copies of each shard, r")
    for scheme, css, _ in _CURVES:
        of_scheme = [point for point in shown if point.scheme == scheme]
        body.append(line([(x(point.redundancy), y(point.time_ratio)) for point in of_scheme], css))
    body += _marks(num_groups, x, y)
    items = [*((f"curve-{css}", f"{words}, here") for _, css, words in _CURVES), ("mark-bad", "the authors' rows")]
    signs, height = legend(items, width, frame.bottom + 38)
    words = "; ".join(f"{point.scheme} r={point.redundancy}: {point.time_ratio:.2f}" for point in mine)
    return figure(f"times-{num_groups}", width, frame.bottom + 44 + height, title, words, [*body, *signs])


def _marks(num_groups: int, x: Scale, y: Scale) -> Iterator[str]:
    for claim in CLAIMS:
        if claim.num_groups == num_groups:
            told = f"{claim.scheme} r={claim.redundancy}: {claim.time_ratio:.2f} in the authors' table"
            yield rect(x(claim.redundancy) - 3, y(claim.time_ratio) - 3, 6, 6, "mark-bad", told)


def _gains(sensitive: Sequence[Sensitivity], width: int) -> Markup:
    """How much less time SPARe takes than replication, by what is assumed; the abstract's range as two lines."""
    top = max([GAIN_RATIOS[1], *(one.gain_ratio for one in sensitive if one.gain_ratio is not None)]) + 0.05
    title = "How much less time SPARe takes than replication, by what is assumed"
    body, height = heading(title, width)
    rows = Rows(width, 15.0 + height, len(sensitive), _LABEL, _ROW, _RIGHT)
    x = rows.across(0.0, top)
    for value in rows.ticks(0.0, top):
        body.append(rule(x(value), rows.top - 6, rows.bottom, "grid"))
        body.append(below(x(value), rows.bottom + 14, f"{value:.0%}", width))
    for number, one in enumerate(sensitive):
        at = rows.middle(number)
        name = one.assumed or "default reading"
        body.append(rows.name(number, f"{name}, N={one.num_groups}"))
        if one.gain_ratio is None:
            body.append(text(rows.left + 6, at + 4, "comes to no end"))
            continue
        told = f"{name}, N={one.num_groups}: {one.gain_ratio:.1%} less"
        body.append(rect(x(0.0), at - _BAR / 2, x(max(0.0, one.gain_ratio)) - x(0.0), _BAR, "part-holds", told))
    body += [rule(x(value), rows.top - 6, rows.bottom, "rule-fault") for value in GAIN_RATIOS]
    items = [("part-holds", "here"), ("mark-bad", "the abstract: 40 to 50% less")]
    signs, height = legend(items, width, rows.bottom + 22)
    words = "; ".join(
        f"{one.assumed or 'default reading'}, N={one.num_groups}: {one.gain_ratio:.1%}"
        for one in sensitive
        if one.gain_ratio is not None
    )
    return figure("gains", width, rows.bottom + 28 + height, title, words, [*body, *signs])
