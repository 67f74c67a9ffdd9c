"""Which ranks sent state that arrived damaged, and how often: the next epoch does not ask them for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# A link may flip a bit; a rank that does it again is not to be asked.
TOLERATED_DELIVERIES = 1


@dataclass(frozen=True, slots=True)
class DamagedTransfers:
    """The (unit, rank that sent it) of every damaged delivery since all state was in place the last time."""

    deliveries: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deliveries)

    def and_also(self, deliveries: Iterable[tuple[str, int]]) -> DamagedTransfers:
        """These together with newer ones."""
        return DamagedTransfers((*self.deliveries, *deliveries))

    @property
    def repeated_sources(self) -> Mapping[int, int]:
        """The ranks that are no longer asked for state, and how many damaged units each sent."""
        counted = Counter(source for _, source in self.deliveries)
        return {source: number for source, number in sorted(counted.items()) if number > TOLERATED_DELIVERIES}

    def offers(self, holdings: Mapping[int, frozenset[str]]) -> dict[int, frozenset[str]]:
        """Of what each rank holds, what it may be asked for."""
        repeated = self.repeated_sources
        return {
            rank: frozenset()
            if rank in repeated
            else units - {unit for unit, source in self.deliveries if source == rank}
            for rank, units in holdings.items()
        }
