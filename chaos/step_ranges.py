"""A set of steps, and sets of numbers in words: for the sentences that explain an incident that did not fire."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

# Beyond these, intervals in the middle are dropped: a run of any length takes bounded memory.
MAX_INTERVALS = 2000
_NUM_NAMED = 4
_NUM_FIRST = 3
_MIN_REGULAR = 4


class Steps:
    """A set of steps, kept as disjoint intervals (first, last) in ascending order, no two of which are adjacent."""

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in intervals:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add the steps from `first` to `last`, which is at least `first`."""
        # All intervals that overlap or touch the new one become one with it.
        begin, end = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end], self._lasts[begin:end] = [first], [last]
        if len(self._firsts) > MAX_INTERVALS:
            del self._firsts[MAX_INTERVALS // 2], self._lasts[MAX_INTERVALS // 2]

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """(first, last) of each interval."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, step: int) -> bool:
        index = bisect_right(self._firsts, step)
        return index > 0 and step <= self._lasts[index - 1]

    def nearest(self, step: int) -> int:
        """The step of the set, which is not empty, that is nearest to `step`; of two the earlier one."""
        ends = (min(max(step, first), last) for first, last in self.intervals)
        return min(ends, key=lambda end: (abs(end - step), end))

    @property
    def when(self) -> str:
        """`in steps 20, 40 and 60`; `every 20 steps from 20 to 980`."""
        return f"{'' if self._regular_gap else 'in '}{self}"

    @property
    def _regular_gap(self) -> int | None:
        """How many steps lie between two of the set, where that is always the same number and more than one."""
        if len(self._firsts) < _MIN_REGULAR or self._firsts != self._lasts:
            return None
        gaps = {later - earlier for earlier, later in pairwise(self._firsts)}
        return gaps.pop() if len(gaps) == 1 else None

    def __str__(self) -> str:
        """`steps 20, 40 and 60`; `every 20 steps from 20 to 980`; `steps 20, 41, 60 and others, up to 980`."""
        if not self:
            return "no step"
        firsts, lasts = self._firsts, self._lasts
        if (gap := self._regular_gap) is not None:
            return f"every {gap} steps from {firsts[0]} to {lasts[-1]}"
        named = [str(first) if first == last else f"{first} to {last}" for first, last in self.intervals]
        if len(named) > _NUM_NAMED:
            return f"steps {', '.join(named[:_NUM_FIRST])} and others, up to {lasts[-1]}"
        noun = "step" if firsts == lasts[:1] else "steps"
        return f"{noun} {joined(named)}"


def on_other_ranks(phase: str, own: Collection[int], others: Collection[int], steps: Steps, advice: str | None) -> str:
    """The sentence that `phase` never came on the ranks `own`, but on `others` in `steps`."""
    if phase == "checkpoint":
        lacks, have = f"{_agreeing('save', own)} no checkpoint", "do" if len(others) > 1 else "does"
    else:
        lacks, have = f"{_agreeing('have', own)} no {phase} phase", _agreeing("have", others)
    cure = "" if advice is None else f": write {advice}"
    return f"{ranks_text(own)} {lacks}; {ranks_text(others)} {have}, {steps.when}{cure}"


def _agreeing(verb: str, ranks: Collection[int]) -> str:
    return verb if len(ranks) > 1 else {"have": "has"}.get(verb, f"{verb}s")


def joined(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 4 and 5`, `ranks 0 to 15`."""
    return f"rank{'' if len(numbers := sorted(set(ranks))) == 1 else 's'} {joined(_ranges(numbers))}"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    for first, last in Steps((number, number) for number in numbers).intervals:
        if last - first < 2:
            yield from map(str, range(first, last + 1))
        else:
            yield f"{first} to {last}"
