"""The gates, which decide the exit code: limits for the drop of tokens/s in emulated runs, one cell each.

A forecast decides none of them. A gate passes where all runs of its cell are within the limit, fails where all are
above, and is undecided between, and with fewer than `MIN_RUNS` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mecefo_chaos.studies.papers.mecefo.claims import THROUGHPUT
from mecefo_chaos.studies.papers.mecefo.setting import DEFAULT, METHODS, MICROBATCHES, SHAPES, SPEED, Cell
from mecefo_chaos.studies.papers.mecefo.verdicts import Row
from mecefo_chaos.studies.papers.rules import MIN_RUNS, Measured, at_most, passed_of
from mecefo_chaos.studies.papers.verdicts import Gate, Verdict
from mecefo_chaos.studies.papers.views import spread_text

# The drop of settled layouts alone, or that with transfers and regroups.
Part = Literal["settled", "with_events"]
Source = Literal["paper", "target"]
PART_WORDS: Mapping[Part, str] = {
    "settled": "before transfer and regroup",
    "with_events": "with transfer and regroup",
}
SOURCE_WORDS: Mapping[Source, str] = {"paper": "the paper's", "target": "our target"}
RULE = f"all runs are within the limit, at least {MIN_RUNS}"
# Of `mecefo` with quality `speed` at 7B, communication hidden, by shape: settled, and with transfer and regroup.
_TARGETS: Mapping[str, tuple[float, float]] = {"4x8": (0.005, 0.01), "8x4": (0.016, 0.025)}


@dataclass(frozen=True, slots=True)
class DropGate:
    """A drop in one cell that must not be above `limit`. `figure` is of that cell alone, None: nothing was emulated."""

    cell: Cell
    part: Part
    limit: float
    source: Source
    figure: Measured | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The strategy with its quality, the cell and the part."""
        return f"{METHODS[self.cell.method].label}: {self.cell.setting}, {PART_WORDS[self.part]}"

    @property
    def verdict(self) -> Verdict:
        """By `RULE`."""
        return at_most(self.figure, self.limit)

    @property
    def passed(self) -> bool | None:
        """None: it is not decided."""
        return passed_of(self.verdict)

    @property
    def gate(self) -> Gate:
        """As all papers' gates; in its JSON `value` is the median."""
        figure, method = self.figure, METHODS[self.cell.method]
        return Gate(
            self.name,
            self.passed,
            "not emulated" if figure is None else spread_text(figure, "z.2%"),
            f"{self.limit:.2%}, {SOURCE_WORDS[self.source]}",
            0 if figure is None else figure.n,
            self.reason,
            figures={
                "cell": self.cell.key,
                "strategy": method.strategy,
                "quality": method.quality,
                "part": self.part,
                "limit": self.limit,
                "limit_source": self.source,
                "value": None if figure is None else figure.median,
                "least": None if figure is None else figure.least,
                "greatest": None if figure is None else figure.greatest,
                "num_seeds": 0 if figure is None else figure.n,
                "least_seeds": MIN_RUNS,
                "rule": RULE,
                "verdict": self.verdict,
            },
        )


def wanted_gates() -> Iterator[DropGate]:
    """All gates, without figures: first the paper's drops for the default, then what `quality: speed` must keep."""
    for shape in SHAPES:
        for number in MICROBATCHES:
            for is_exposed in (False, True):
                yield _of_paper(Cell("7b", "high", shape, number, DEFAULT, is_exposed))
    few = MICROBATCHES[0]
    for size in ("1b", "350m"):
        yield _of_paper(Cell(size, "high", "4x8", few, DEFAULT))
    for shape, (settled_limit, limit) in _TARGETS.items():
        for number in MICROBATCHES:
            cell = Cell("7b", "high", shape, number, SPEED)
            yield DropGate(cell, "settled", settled_limit, "target")
            yield DropGate(cell, "with_events", limit, "target")
    for size in ("1b", "350m"):
        yield _of_paper(Cell(size, "high", "4x8", few, SPEED))


def _of_paper(cell: Cell) -> DropGate:
    return DropGate(cell, "with_events", THROUGHPUT["MeCeFO", cell.size].drop_ratio, "paper")


def gates_of(rows: Sequence[Row]) -> tuple[DropGate, ...]:
    """The gates with the figures of the emulated runs in `rows`."""
    by_cell = {row.cell: row for row in rows}
    return tuple(_with_figure(gate, by_cell.get(gate.cell)) for gate in wanted_gates())


def _with_figure(gate: DropGate, row: Row | None) -> DropGate:
    emulated = None if row is None else row.emulated
    figure = None
    if emulated is not None:
        figure = emulated.settled if gate.part == "settled" else emulated.with_events
    gate = replace(gate, figure=figure)
    return replace(gate, reason="; ".join(_reasons(gate, row)))


def _reasons(gate: DropGate, row: Row | None) -> Iterator[str]:
    """What limits or would change the verdict."""
    num_runs = 0 if gate.figure is None else gate.figure.n
    if num_runs < MIN_RUNS:
        yield f"{num_runs} of {MIN_RUNS} runs"
    elif gate.passed is None:
        yield "the limit is within the range"
    elif gate.part == "with_events" and row is not None and row.emulated is not None:
        seconds = bearable_event_seconds(row.emulated.settled.greatest, gate.limit, gate.cell)
        yield f"holds up to {seconds:.1f} s for each loss or rejoin"
    if row is not None and row.forecast is not None:
        forecast = row.forecast.settled_drop if gate.part == "settled" else row.forecast.drop
        yield f"forecast {forecast.least:z.2%} to {forecast.greatest:z.2%}"


def bearable_event_seconds(settled_drop_ratio: float, limit: float, cell: Cell) -> float:
    """How long a loss, and a rejoin, may take for the drop to stay within `limit`."""
    interval_seconds = cell.of_process.interval_hours * 3600
    return max(0.0, (1 - (1 - limit) / (1 - settled_drop_ratio)) * interval_seconds / 2)
