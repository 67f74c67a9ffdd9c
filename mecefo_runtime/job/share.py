"""The part of a unit that a rank copies, or whose optimizer moments it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """The part `index` of `of` equal parts of a unit: so many of its parameters, and their moments."""

    index: int = 0
    of: int = 1

    def extent(self, num_elements: int) -> tuple[int, int]:
        """Its first element and the one behind its last; the shares of one size cover every element once."""
        return self.index * num_elements // self.of, (self.index + 1) * num_elements // self.of


WHOLE = Share()


def share_of(rank: int, holders: Sequence[int]) -> Share:
    """The share that one of the `holders` of a unit has."""
    return Share(holders.index(rank), len(holders))
