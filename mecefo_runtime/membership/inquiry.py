"""Who must go so that all who are left can reach each other: the members' answers, and the fewest of them.

A link that is cut has two ends, neither of which is to blame more than the other. So the coordinator, when one member
cannot reach another, asks all of them, and judges by all their answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mecefo_runtime.membership.roster import Roster
from mecefo_runtime.system.wire import Message

Pair = tuple[int, int]

# So many choices are tried at most; then the best that was found will do. Cut links between two groups, or of a few
# hosts, take a handful.
MAX_CHOICES = 20_000


@dataclass(slots=True)
class Inquiry:
    """One question to all of `asked`: whom of the others they cannot reach; what is said after the deadline is late.

    `must_regroup`: a member has left the epoch over it, so that there has to be another one in any case.
    """

    number: int
    asked: frozenset[int]
    deadline_seconds: float
    must_regroup: bool = False
    _answers: dict[int, frozenset[int]] = field(default_factory=dict)

    def question(self, roster: Roster) -> Message:
        """What each of `asked` is to do."""
        return {"type": "probe", "inquiry": self.number, "addresses": roster.addresses(self.asked)}

    def answer(self, rank: int, unreachable: Iterable[int]) -> None:
        """`rank` has tried all of them."""
        if rank in self.asked:
            self._answers[rank] = frozenset(unreachable) & self.asked

    def is_answered(self, connected: Collection[int]) -> bool:
        """Whether all who are still there have answered."""
        return all(rank in self._answers for rank in self.asked if rank in connected)

    def severed(self, connected: Collection[int]) -> tuple[Pair, ...]:
        """The pairs, the lower one first, of which one cannot reach the other, and both are still there."""
        pairs = {
            (min(rank, peer), max(rank, peer)) for rank, unreachable in self._answers.items() for peer in unreachable
        }
        return tuple(sorted(pair for pair in pairs if set(pair) <= set(connected)))


def fewest_to_evict(pairs: Collection[Pair], max_choices: int = MAX_CHOICES) -> frozenset[int]:
    """The fewest ranks that are in every pair (a minimum vertex cover); the same for the same pairs, in any order.

    Where it makes no difference, the higher rank goes. Beyond `max_choices` it may be more than the fewest.
    """
    neighbours: dict[int, set[int]] = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    search = _Search(_greedy(neighbours), max_choices)
    search.go(neighbours, frozenset())
    return search.best


class _Search:
    """Branch and bound: of the rank with the most cut links, either it goes, or all at their other ends do."""

    def __init__(self, best: frozenset[int], max_choices: int) -> None:
        self.best = best
        self._choices_left = max_choices

    def go(self, neighbours: dict[int, set[int]], gone: frozenset[int]) -> None:
        if not neighbours:
            if len(gone) < len(self.best):
                self.best = gone
            return
        if len(gone) + _least(neighbours) >= len(self.best) or self._choices_left <= 0:
            return
        self._choices_left -= 1
        busiest = _busiest(neighbours)
        self.go(_without(neighbours, {busiest}), gone | {busiest})
        others = neighbours[busiest]
        self.go(_without(neighbours, others), gone | others)


def _busiest(neighbours: dict[int, set[int]]) -> int:
    return max(neighbours, key=lambda rank: (len(neighbours[rank]), rank))


def _without(neighbours: dict[int, set[int]], gone: Collection[int]) -> dict[int, set[int]]:
    """What is cut when `gone` are out of it; ranks with nothing cut are left out."""
    left = {rank: others.difference(gone) for rank, others in neighbours.items() if rank not in gone}
    return {rank: others for rank, others in left.items() if others}


def _greedy(neighbours: dict[int, set[int]]) -> frozenset[int]:
    gone: set[int] = set()
    while neighbours:
        busiest = _busiest(neighbours)
        gone.add(busiest)
        neighbours = _without(neighbours, {busiest})
    return frozenset(gone)


def _least(neighbours: dict[int, set[int]]) -> int:
    """A number that no cover can be smaller than: of pairs without a common rank, each needs one."""
    used: set[int] = set()
    for rank in sorted(neighbours, key=lambda rank: (len(neighbours[rank]), rank)):
        if rank not in used:
            other = next((peer for peer in sorted(neighbours[rank]) if peer not in used), None)
            if other is not None:
                used |= {rank, other}
    return len(used) // 2
