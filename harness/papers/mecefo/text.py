"""The check as text: gates first, then tables, then what is open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from harness.papers.mecefo.check import Check
from harness.papers.mecefo.claims import PAPER, SIZES
from harness.papers.mecefo.findings import OPEN
from harness.papers.mecefo.setting import Cell
from harness.papers.mecefo.undilated import NUM_RANKS as NUM_UNDILATED_RANKS
from harness.papers.mecefo.undilated import Undilated
from harness.papers.mecefo.verdicts import Gate, Row
from harness.papers.verdicts import gate_word
from harness.papers.views import NOT_KNOWN, finding_lines, open_lines, table

_COLUMNS = (
    *("method", "paper", "forecast", "with events", "tokens/s"),
    *("emulated", "least to greatest", "n", "same ranks", "with events", "verdict"),
)
UNDILATED_COLUMNS = ("method", "drop", "least to greatest", "n")


def check_text(check: Check) -> str:
    """All of it."""
    return "\n".join(_lines(check))


def _lines(check: Check) -> Iterator[str]:
    yield f"MeCeFO, {PAPER}: drop of tokens/s, perplexity and memory, as claimed and as found here"
    yield ""
    yield "gates, for mecefo with quality: speed under high (by emulated runs)"
    for gate in check.gates:
        yield f"  {gate_line(gate)}"
    for title, rows in blocks(check):
        yield ""
        yield title
        yield from table(_COLUMNS, [row_cells(row) for row in rows])
    yield ""
    yield "verdicts under high, with reasons"
    for row in check.rows:
        if row.verdict != "no claim" and row.cell.process == "high":
            yield f"  {row.cell.key}: {row.verdict}, {row.reason}"
    yield ""
    yield f"memory and perplexity ({check.convergence.command}, {check.convergence.date or 'date not told'})"
    yield from finding_lines(check.findings)
    yield ""
    yield undilated_title(check.undilated)
    yield from table(UNDILATED_COLUMNS, undilated_cells(check.undilated), left=range(len(UNDILATED_COLUMNS)))
    yield ""
    yield from open_lines(OPEN)
    yield ""
    yield from check.notes


def undilated_title(undilated: Undilated) -> str:
    """What the undilated runs are."""
    return (
        f"measured undilated: {NUM_UNDILATED_RANKS} real ranks as fast as they go, one of them lost for a while "
        f"({undilated.date}, {undilated.machine}); ranks that share cores gain by the loss of one"
    )


def undilated_cells(undilated: Undilated) -> list[tuple[str, ...]]:
    """The rows of their table."""
    return [
        (
            one.method,
            f"{one.median_ratio:z.1%}",
            f"{one.least_ratio:z.1%} to {one.greatest_ratio:z.1%}",
            f"{one.num_seeds}",
        )
        for one in undilated.rows
    ]


def gate_line(gate: Gate) -> str:
    """One gate in a line."""
    value = NOT_KNOWN if gate.value is None else f"{gate.value:.2%}"
    tail = f" ({gate.reason})" if gate.reason else ""
    return f"{gate_word(gate.passed):<9} {gate.name}: {value}, limit {gate.limit:.2%}, n {gate.num_seeds}{tail}"


def blocks(check: Check) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each table, with its title."""

    def same(row: Row) -> tuple[str, str, str, int, bool]:
        cell = row.cell
        return cell.size, cell.process, cell.shape, cell.num_microbatches, cell.is_exposed

    for _, rows in groupby(check.rows, key=same):
        mine = list(rows)
        yield block_title(mine[0].cell), mine


def block_title(cell: Cell) -> str:
    """What the rows of a table have in common."""
    data_parallel, pipeline = cell.shape.split("x")
    return (
        f"{SIZES[cell.size].words}, {cell.process}, D={data_parallel} x P={pipeline}, "
        f"{cell.num_microbatches} microbatches of {cell.sequences_per_microbatch} sequences a replica, "
        f"communication {'exposed' if cell.is_exposed else 'hidden'}"
    )


def row_cells(row: Row) -> tuple[str, ...]:
    """One row of a table: paper | forecast | emulated | verdict."""
    forecast = (NOT_KNOWN,) * 3
    if row.forecast is not None:
        found = row.forecast
        forecast = (
            f"{found.settled[0]:z.2%}",
            f"{found.with_events[0]:z.2%}",
            f"{found.tokens_per_second / 1000:,.1f}k",
        )
    emulated = (NOT_KNOWN,) * 5
    if row.emulated is not None:
        seen = row.emulated
        emulated = (
            f"{seen.settled.median:z.2%}",
            f"{seen.settled.least:z.2%} to {seen.settled.greatest:z.2%}",
            str(len(seen.seeds)),
            f"{seen.predicted.median:z.2%}",
            f"{seen.with_events.median:z.2%}",
        )
    paper = NOT_KNOWN if row.paper is None else f"{row.paper.drop_ratio:z.2%}"
    return row.cell.method, paper, *forecast, *emulated, row.verdict
