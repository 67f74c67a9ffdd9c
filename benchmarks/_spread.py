"""Figures side by side: a median with its spread and n, and tables of them as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """All values of one figure, none left out; `math.inf` is the time of what never happened."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(math.isnan(value) for value in self.values):
            raise ValueError("a value that is no number has no place in an order: leave it out and say so")

    @property
    def num_values(self) -> int:
        """The n of the figure."""
        return len(self.values)

    @property
    def median(self) -> float:
        """Of an even number the mean of the middle two, so `math.inf` where one of these never happened."""
        return median(self.values)

    def to_text(self, name: Callable[[float], str]) -> tuple[str, str, str, str]:
        """Cells (median, minimum, maximum, n), each value written by `name`."""
        if not self.values:
            return "-", "-", "-", "0"
        return name(self.median), name(min(self.values)), name(max(self.values)), str(self.num_values)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON; None stands for what never happened, and for the figures of no values."""
        return {
            "median": _finite(self.median) if self.values else None,
            "min": _finite(min(self.values, default=math.inf)),
            "max": _finite(max(self.values, default=math.inf)),
            "n": self.num_values,
            "values": [_finite(value) for value in self.values],
        }


def spread(values: Iterable[float]) -> Spread:
    """The spread of `values`, in the order in which they were measured."""
    return Spread(tuple(values))


def name_milliseconds(seconds: float) -> str:
    """Milliseconds, or that it never happened."""
    return f"{seconds * 1000:.0f} ms" if math.isfinite(seconds) else "never"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right, without trailing spaces."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        first, *others = row
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
