"""Every table of the check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mecefo_chaos.studies.papers.check import Section
from mecefo_chaos.studies.papers.mecefo.claims import SIZES
from mecefo_chaos.studies.papers.mecefo.evidence import Evidence
from mecefo_chaos.studies.papers.mecefo.memory import Memory
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, Cell
from mecefo_chaos.studies.papers.mecefo.undilated import NUM_RANKS as NUM_UNDILATED_RANKS
from mecefo_chaos.studies.papers.mecefo.undilated import Undilated
from mecefo_chaos.studies.papers.mecefo.verdicts import Row
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.verdicts import Verdict
from mecefo_chaos.studies.papers.views import NOT_KNOWN, measured_text

_COLUMNS = (
    *("method", "paper", "forecast", "with events", "least to greatest", "n", "tokens/s"),
    *("emulated", "least to greatest", "n", "same ranks", "with events", "least to greatest"),
    *("verdict", "by", "reason"),
)
_TOO_MUCH = "!"


def sections(evidence: Evidence) -> tuple[Section, ...]:
    """Every table; those of single settings, with every figure, are details."""
    return (
        _methods(),
        _summary(evidence.rows),
        _undilated(evidence.undilated),
        _memory(evidence.memory),
        _verdicts(evidence.rows),
        *(_block(title, rows) for title, rows in _blocks(evidence.rows)),
    )


def _methods() -> Section:
    """Which strategy and which quality each row of the tables is; the default one comes first."""
    head = ("method", "strategy", "quality", "for --only", "what it does")
    return Section(
        "Methods",
        "",
        head,
        tuple(
            (one.label, one.strategy or NOT_KNOWN, one.quality or NOT_KNOWN, one.name, one.words)
            for one in METHODS.values()
        ),
        left=tuple(range(len(head))),
    )


def _summary(rows: Sequence[Row]) -> Section:
    """How many settings of a size and a method have which verdict."""
    words: tuple[Verdict, ...] = (
        *("better than the paper", "reproduced", "not reproduced", "cannot be decided here", "not checked"),
    )
    claimed: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.verdict != "no claim":
            claimed.setdefault((row.cell.size, row.cell.method), []).append(row)
    return Section(
        "Drop of tokens/s under high, verdicts",
        "settings by verdict: both shapes, few and many microbatches, communication hidden and exposed; and the "
        "least and the greatest of their medians",
        ("model", "method", "paper", "medians here", *words),
        tuple(
            (
                SIZES[size].words,
                METHODS[method].label,
                _paper(mine[0]),
                _medians(mine),
                *(f"{sum(row.verdict == word for row in mine)}" for word in words),
            )
            for (size, method), mine in claimed.items()
        ),
        left=(0, 1),
    )


def _medians(rows: Sequence[Row]) -> str:
    medians = [row.figure.median for row in rows if row.figure is not None]
    return f"{min(medians):z.2%} to {max(medians):z.2%}" if medians else NOT_KNOWN


def _verdicts(rows: Sequence[Row]) -> Section:
    """Every row of which the paper claims something."""
    return Section(
        "Drop of tokens/s under high, verdict of each setting",
        "",
        ("setting", "verdict", "here", "by", "paper", "reason"),
        tuple(
            (
                row.cell.key,
                row.verdict,
                measured_text(row.figure, "z.2%"),
                row.basis or NOT_KNOWN,
                _paper(row),
                row.reason,
            )
            for row in rows
            if row.verdict != "no claim"
        ),
        left=(0, 1, 3, 5),
        is_detail=True,
    )


def _undilated(undilated: Undilated) -> Section:
    return Section(
        "Measured undilated",
        f"{NUM_UNDILATED_RANKS} real ranks as fast as they go, one of them lost for a while "
        f"({undilated.date}, {undilated.machine}); ranks that share cores gain by the loss of one",
        ("method", "drop", "least to greatest", "n"),
        tuple(
            (
                METHODS[one.method].label,
                f"{one.median_ratio:z.1%}",
                f"{one.least_ratio:z.1%} to {one.greatest_ratio:z.1%}",
                f"{one.num_seeds}",
            )
            for one in undilated.rows
        ),
    )


def _memory(memory: Sequence[Memory]) -> Section:
    """In GB; what does not fit is marked."""
    methods = tuple(memory[0].needed_bytes) if memory else ()
    return Section(
        "Memory of the fullest rank after the worst single loss, 7B, GB",
        f"{_TOO_MUCH}: more than the device has",
        ("D x P", "sequences a microbatch", "has", "no loss", *methods),
        tuple(
            (
                one.shape,
                f"{one.sequences_per_microbatch}",
                f"{one.capacity_bytes / 1e9:.0f}",
                f"{one.free_bytes / 1e9:.1f}",
                *(_needed(one, method) for method in methods),
            )
            for one in memory
        ),
    )


def _needed(memory: Memory, method: str) -> str:
    needed = memory.needed_bytes[method]
    if needed is None:
        return "no layout"
    return f"{needed / 1e9:.1f}{'' if memory.fits(method) else _TOO_MUCH}"


def _block(title: str, rows: Sequence[Row]) -> Section:
    return Section(
        title,
        "",
        _COLUMNS,
        tuple((*_row_cells(row), row.reason if row.paper else "") for row in rows),
        left=(0, 13, 14, 15),
        begins=(_COLUMNS.index("emulated"), _COLUMNS.index("verdict")),
        is_detail=True,
    )


def _blocks(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each setting, with its title."""

    def same(row: Row) -> tuple[str, str, str, int, bool]:
        cell = row.cell
        return cell.size, cell.process, cell.shape, cell.num_microbatches, cell.is_exposed

    for _, some in groupby(rows, key=same):
        mine = list(some)
        yield _block_title(mine[0].cell), mine


def _block_title(cell: Cell) -> str:
    """What the rows of a table have in common."""
    data_parallel, pipeline = cell.shape.split("x")
    return (
        f"{SIZES[cell.size].words}, {cell.process}, D={data_parallel} x P={pipeline}, "
        f"{cell.num_microbatches} microbatches of {cell.sequences_per_microbatch} sequences a replica, "
        f"communication {'exposed' if cell.is_exposed else 'hidden'}"
    )


def _row_cells(row: Row) -> tuple[str, ...]:
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
    basis = NOT_KNOWN if row.paper is None or row.basis is None else row.basis
    return METHODS[row.cell.method].label, _paper(row), *forecast, *emulated, row.verdict, basis


def _paper(row: Row) -> str:
    return NOT_KNOWN if row.paper is None else f"{row.paper.drop_ratio:z.2%}"


def _with_range(figure: Measured) -> tuple[str, str]:
    return f"{figure.median:z.2%}", f"{figure.least:z.2%} to {figure.greatest:z.2%}"
