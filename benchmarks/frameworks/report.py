"""All cells as text and as a JSON document."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks._machine import Machine
from benchmarks._spread import Spread, spread, table
from benchmarks.frameworks.cases import FAULT_STEP, Fault, Framework
from benchmarks.frameworks.cells import Round

WIDTH = 118


@dataclass(frozen=True, slots=True)
class Cell:
    """All rounds of one fault under one framework."""

    fault: Fault
    rounds: tuple[Round, ...]

    @property
    def recovery(self) -> Spread:
        """Of the rounds that recovered."""
        return spread(r.recovery_seconds for r in self.rounds if r.recovery_seconds is not None)

    @property
    def disagreements(self) -> list[str]:
        """Of the rounds with the scripts."""
        return [text for one in self.rounds for text in one.disagreements]

    @property
    def recovery_differences(self) -> Spread:
        """How far the run and the script are apart, in seconds, without sign."""
        return spread(
            abs(r.recovery_seconds - r.own_recovery_seconds)
            for r in self.rounds
            if r.recovery_seconds is not None and r.own_recovery_seconds is not None
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A framework with its cells. `why_not` says why there are none, or no more."""

    framework: Framework
    cells: tuple[Cell, ...] = ()
    why_not: str | None = None

    @property
    def title(self) -> str:
        """With the versions."""
        known = [f"{library} {number or 'not installed'}" for library, number in self.framework.versions().items()]
        return f"{self.framework.title} ({', '.join(known)})"


def report(rows: Sequence[Row], machine: Machine, others_cores: float) -> str:
    """As text: a table for each framework, then the matrix of verdicts."""
    lines = [f"machine: {machine}; others used {others_cores:.2f} cores"]
    lines.append(f"two ranks, 60 steps, a checkpoint after every tenth; each fault at step {FAULT_STEP} of rank 1")
    for row in rows:
        lines += ["", row.title]
        if row.cells:
            lines += _rows_of(row)
        if row.why_not is not None:
            lines += _wrapped(row.why_not)
    lines += ["", matrix(rows)]
    differences = [value for row in rows for cell in row.cells for value in cell.recovery_differences.values]
    if differences:
        apart = spread(differences)
        lines += [
            "",
            f"recovery, this tool and the script's own record: apart by {apart.median * 1000:.1f} ms (median), "
            f"{max(differences) * 1000:.1f} ms (most), n={apart.num_values}",
        ]
    for row in rows:
        for cell in row.cells:
            for text in cell.disagreements:
                lines += _wrapped(f"DISAGREES: {row.framework.name}, {cell.fault.name}: {text}")
    return "\n".join(lines)


def _rows_of(row: Row) -> list[str]:
    header = ("fault", "verdict (exit)", "steps lost", "script", "recovery", "min", "max", "n", "script")
    told = [
        (
            cell.fault.name,
            _verdicts(cell),
            _values([r.steps_lost for r in cell.rounds]),
            _values([r.own_steps_lost for r in cell.rounds]),
            *cell.recovery.to_text(_name_seconds),
            spread(r.own_recovery_seconds for r in cell.rounds if r.own_recovery_seconds is not None).to_text(
                _name_seconds
            )[0],
        )
        for cell in row.cells
    ]
    lines = table(header, told).splitlines()
    for cell in row.cells:
        for what in dict.fromkeys(one.what for one in cell.rounds):
            lines += _wrapped(f"{cell.fault.name}: {what}")
    return lines


def matrix(rows: Sequence[Row]) -> str:
    """Framework by fault: verdict, steps lost, median recovery."""
    faults = list(dict.fromkeys(cell.fault.name for row in rows for cell in row.cells))
    lines = []
    for row in rows:
        by_fault = {cell.fault.name: cell for cell in row.cells}
        cells = [_short(by_fault[name]) if name in by_fault else "-" for name in faults]
        lines.append((row.framework.name, *cells))
    return table(("verdict, recovery", *faults), lines)


def _short(cell: Cell) -> str:
    recovery = cell.recovery
    return f"{_verdicts(cell, with_code=False)}, {_name_seconds(recovery.median) if recovery.values else '-'}"


def _verdicts(cell: Cell, with_code: bool = True) -> str:
    told = [f"{r.verdict} ({r.exit_code})" if with_code else r.verdict for r in cell.rounds]
    return "/".join(dict.fromkeys(told))


def _values(values: Sequence[int | None]) -> str:
    return "/".join(dict.fromkeys("-" if value is None else str(value) for value in values))


def _name_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def to_document(rows: Sequence[Row], machine: Machine, others_cores: float) -> dict[str, Any]:
    """As plain JSON values, every round with its reasons and caveats."""
    return {
        "machine": machine.to_dict(),
        "others_cores": others_cores,
        "frameworks": [
            {
                "name": row.framework.name,
                "versions": row.framework.versions(),
                "why_not": row.why_not,
                "faults": [
                    {
                        "name": cell.fault.name,
                        "kind": cell.fault.kind,
                        "options": list(cell.fault.options),
                        "recovery_seconds": cell.recovery.to_dict(),
                        "recovery_difference_seconds": cell.recovery_differences.to_dict(),
                        "disagreements": cell.disagreements,
                        "rounds": [one.to_dict() for one in cell.rounds],
                    }
                    for cell in row.cells
                ],
            }
            for row in rows
        ],
    }
