"""Rules that compute a verdict from the figures that are printed beside it; every rule can fail.

A figure is a `Measured`: the median of `n` runs, seeds or cases of one cell, and their range. A claim holds where the
whole range is on its side, fails where the whole range is on the other, and is undecided between: ranges that overlap
show no difference. Fewer than `MIN_RUNS` show no range. What was not measured is not checked.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mecefo_chaos.studies.papers.verdicts import Figure, Verdict

MIN_RUNS = 3
UNDECIDED: Verdict = "cannot be decided here"
BETTER: Verdict = "better than the paper"
NOT_CHECKED: Verdict = "not checked"


@dataclass(frozen=True, slots=True)
class Measured:
    """Median, least and greatest of `n` values of one cell, in one unit."""

    median: float
    least: float
    greatest: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Measured | None:
        """Of `values`; None where there are none."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found)) if found else None

    @property
    def has_range(self) -> bool:
        """Whether there are enough values for the range to mean something."""
        return self.n >= MIN_RUNS


def at_most(figure: Measured | None, limit: float) -> Verdict:
    """Whether `figure` is at most `limit`."""
    if figure is None:
        return NOT_CHECKED
    if not figure.has_range:
        return UNDECIDED
    if figure.greatest <= limit:
        return "reproduced"
    return "not reproduced" if figure.least > limit else UNDECIDED


def at_least(figure: Measured | None, limit: float) -> Verdict:
    """Whether `figure` is at least `limit`."""
    if figure is None:
        return NOT_CHECKED
    if not figure.has_range:
        return UNDECIDED
    if figure.least >= limit:
        return "reproduced"
    return "not reproduced" if figure.greatest < limit else UNDECIDED


def less_than(one: Measured | None, other: Measured | None) -> Verdict:
    """Whether `one` is less than `other`: all its values below all of the other's."""
    if one is None or other is None:
        return NOT_CHECKED
    if not (one.has_range and other.has_range):
        return UNDECIDED
    if one.greatest < other.least:
        return "reproduced"
    return "not reproduced" if one.least >= other.greatest else UNDECIDED


def within(figure: Measured | None, low: float, high: float) -> Verdict:
    """Whether `figure` lies between `low` and `high`, with its whole range."""
    if figure is None:
        return NOT_CHECKED
    if not figure.has_range:
        return UNDECIDED
    if low <= figure.least and figure.greatest <= high:
        return "reproduced"
    return "not reproduced" if figure.greatest < low or figure.least > high else UNDECIDED


def mean_and_worst_at_most(values: Sequence[float], limit: float) -> Verdict:
    """Whether an error is at most `limit`, where the claim does not say whether it is a mean or the worst of the cells.

    Reproduced if it holds for both, not reproduced if it holds for neither.
    """
    if not values:
        return NOT_CHECKED
    holds = (statistics.fmean(values) <= limit, max(values) <= limit)
    if len(values) < MIN_RUNS or any(holds) != all(holds):
        return UNDECIDED
    return "reproduced" if all(holds) else "not reproduced"


def always(num_held: int, num_cases: int) -> Verdict:
    """Whether something held in each of the cases; one case in which it did not is enough to refute it."""
    if num_cases == 0:
        return NOT_CHECKED
    if num_held < num_cases:
        return "not reproduced"
    return "reproduced" if num_cases >= MIN_RUNS else UNDECIDED


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim about several cells: reproduced in all of them, or not reproduced in one."""
    found = set(verdicts)
    if "not reproduced" in found:
        return "not reproduced"
    if not found or found == {NOT_CHECKED}:
        return NOT_CHECKED
    return "reproduced" if found == {"reproduced"} else UNDECIDED


def in_one_setting(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim about a setting that is not known: decided where all that were tried agree."""
    found = set(verdicts)
    if not found or found == {NOT_CHECKED}:
        return NOT_CHECKED
    return found.pop() if len(found) == 1 else UNDECIDED


def passed_of(verdict: Verdict) -> bool | None:
    """Return whether a gate with that verdict passes; None: it is undecided."""
    return {"reproduced": True, "better than the paper": True, "not reproduced": False}.get(verdict)


def figures_of(cells: Mapping[str, Measured | None]) -> tuple[Figure, ...]:
    """The figures of the cells that were measured, by name."""
    return tuple(
        Figure(cell, one.median, one.least, one.greatest, one.n) for cell, one in cells.items() if one is not None
    )
