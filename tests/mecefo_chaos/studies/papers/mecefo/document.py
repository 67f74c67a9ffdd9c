"""The tables of docs/explanation/papers.md about MeCeFO, as they follow from what `chaos paper mecefo` shows."""

from __future__ import annotations

from collections.abc import Iterator

from mecefo_chaos.studies.papers.check import Check
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, MICROBATCHES, SHAPES, Cell
from mecefo_chaos.studies.papers.views import measured_text

_FORM = "z.1%"
_SHOWN = ("mecefo", "mecefo-speed", "mecefo-paper", "exact", "oobleck-like", "bamboo-like")


def forecast_lines(check: Check) -> Iterator[str]:
    """Drops of 7B under `high` with regroups and transfers: hidden with few and many microbatches, then exposed."""
    rows = {row.cell: row for row in check.evidence.rows}
    for shape in SHAPES:
        for method in _SHOWN:
            some = [
                rows[Cell("7b", "high", shape, number, method, is_exposed)]
                for is_exposed in (False, True)
                for number in MICROBATCHES
            ]
            paper = "-" if some[0].paper is None else f"{some[0].paper.drop_ratio:.2%}"
            drops = (f"{row.forecast.drop.median:{_FORM}} ({_range(row)})" if row.forecast else "-" for row in some)
            yield _line(shape, METHODS[method].label, paper, *drops)


def _range(row) -> str:
    drop = row.forecast.drop
    return f"{drop.least:{_FORM}} to {drop.greatest:{_FORM}}"


def emulated_lines(check: Check) -> Iterator[str]:
    """Every cell that was emulated."""
    for row in check.evidence.rows:
        if row.emulated is not None:
            seen = row.emulated
            figures = (measured_text(one, _FORM) for one in (seen.settled, seen.predicted, seen.with_events))
            yield _line(row.cell.setting, METHODS[row.cell.method].label, *figures)


def finding_lines(check: Check) -> Iterator[str]:
    """Every claim with its verdict."""
    for one in check.findings:
        yield _line(one.claim, one.paper, one.ours, one.verdict)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
