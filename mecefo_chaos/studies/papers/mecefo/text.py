"""The check as text: gates first, then tables, then what is open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from harness.report.text_table import Table, laid_out
from mecefo_chaos.studies.papers.mecefo.check import Check
from mecefo_chaos.studies.papers.mecefo.claims import PAPER, SIZES
from mecefo_chaos.studies.papers.mecefo.findings import OPEN
from mecefo_chaos.studies.papers.mecefo.gates import RULE, SOURCE_WORDS, Gate
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, Cell
from mecefo_chaos.studies.papers.mecefo.undilated import NUM_RANKS as NUM_UNDILATED_RANKS
from mecefo_chaos.studies.papers.mecefo.undilated import Undilated
from mecefo_chaos.studies.papers.mecefo.verdicts import Row
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.verdicts import gate_word
from mecefo_chaos.studies.papers.views import NOT_KNOWN, finding_lines, measured_text, open_lines, table

COLUMNS = (
    *("method", "paper", "forecast", "with events", "least to greatest", "n", "tokens/s"),
    *("emulated", "least to greatest", "n", "same ranks", "with events", "least to greatest", "verdict", "by"),
)
METHOD_COLUMNS = ("method", "strategy", "quality", "for --only", "what it does")
UNDILATED_COLUMNS = ("method", "drop", "least to greatest", "n")


def check_text(check: Check, width: int = 80) -> str:
    """All of it, within `width` cells."""
    return "\n".join(laid_out(_parts(check), width))


def _parts(check: Check) -> Iterator[str | Table]:
    yield f"MeCeFO, {PAPER}: drop of tokens/s, perplexity and memory, as claimed and as found here"
    yield ""
    yield gates_title(check)
    for gate in check.gates:
        yield f"  {gate_line(gate)}"
    yield ""
    yield "methods"
    yield from table(METHOD_COLUMNS, method_cells(), left=range(len(METHOD_COLUMNS)))
    for title, rows in blocks(check):
        yield ""
        yield title
        yield from table(
            COLUMNS,
            [row_cells(row) for row in rows],
            left=(0, 13, 14),
            begins=(COLUMNS.index("emulated"), COLUMNS.index("verdict")),
        )
    yield ""
    yield "verdicts under high, with reasons"
    for row in check.rows:
        if row.verdict != "no claim" and row.cell.process == "high":
            yield f"  {row_reason(row)}"
    yield ""
    yield f"other claims ({sources(check)})"
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
            METHODS[one.method].label,
            f"{one.median_ratio:z.1%}",
            f"{one.least_ratio:z.1%} to {one.greatest_ratio:z.1%}",
            f"{one.num_seeds}",
        )
        for one in undilated.rows
    ]


def gates_title(check: Check) -> str:
    """The number of gates that are decided, and their rule."""
    passed = [gate.passed for gate in check.gates]
    counts = f"{passed.count(True)} pass, {passed.count(False)} fail, {passed.count(None)} are undecided"
    return f"gates, drop of tokens/s under high in emulated runs: {counts}; a gate passes if {RULE}"


def gate_line(gate: Gate) -> str:
    """One gate in a line."""
    tail = f" ({gate.reason})" if gate.reason else ""
    value = "not emulated" if gate.figure is None else measured_text(gate.figure, "z.2%")
    limit = f"at most {gate.limit:.2%}, {SOURCE_WORDS[gate.source]}"
    return f"{gate_word(gate.passed):<9} {gate.name}: {value}; {limit}{tail}"


def method_cells() -> list[tuple[str, ...]]:
    """Which strategy and which quality each row of the tables is; the default one comes first."""
    return [
        (one.label, one.strategy or NOT_KNOWN, one.quality or NOT_KNOWN, one.name, one.words)
        for one in METHODS.values()
    ]


def row_reason(row: Row) -> str:
    """The verdict on one row, the figure that decides it, and why."""
    figure = NOT_KNOWN if row.figure is None else f"{measured_text(row.figure, 'z.2%')}, {row.basis}"
    paper = NOT_KNOWN if row.paper is None else f"{row.paper.drop_ratio:.2%}"
    return f"{row.cell.key}: {row.verdict}: {figure}, against {paper}: {row.reason}"


def sources(check: Check) -> str:
    """The origin of the figures of perplexity and speed."""
    measured = ((one.command, one.date or "date not given") for one in (check.convergence, check.fault_free))
    return "; ".join(f"{command}, {date}" for command, date in measured)


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
    forecast = (NOT_KNOWN,) * 5
    if row.forecast is not None:
        found = row.forecast
        forecast = (
            f"{found.settled_drop.median:z.2%}",
            *_with_range(found.drop),
            str(found.num_seeds),
            f"{found.tokens_per_second / 1000:,.1f}k",
        )
    emulated = (NOT_KNOWN,) * 6
    if row.emulated is not None:
        seen = row.emulated
        emulated = (
            *_with_range(seen.settled),
            str(len(seen.seeds)),
            f"{seen.predicted.median:z.2%}",
            *_with_range(seen.with_events),
        )
    paper = NOT_KNOWN if row.paper is None else f"{row.paper.drop_ratio:z.2%}"
    basis = NOT_KNOWN if row.paper is None or row.basis is None else row.basis
    return METHODS[row.cell.method].label, paper, *forecast, *emulated, row.verdict, basis


def _with_range(figure: Measured) -> tuple[str, str]:
    return f"{figure.median:z.2%}", f"{figure.least:z.2%} to {figure.greatest:z.2%}"
