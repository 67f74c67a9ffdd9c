"""Members that cannot reach each other: all are probed, and the fewest are evicted so that the rest can.

A cut link has two ends, and neither is to blame more than the other. So when one member cannot reach another, the
coordinator asks all of them, and judges by all their answers. An evicted rank is *cut off*: it is alive, and rejoins
by itself when it can reach the remaining members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from mecefo_runtime.comm.messages import Evicted, Peers, Probe
from mecefo_runtime.membership.member_table import Effects, MemberTable

Pair = tuple[int, int]

# So many choices are tried at most; then the best that was found will do. Cut links between two groups, or of a few
# hosts, take a handful.
MAX_CHOICES = 20_000


@dataclass(slots=True)
class ConnectivityCheck:
    """One question to all of `asked`: whom of the others they cannot reach; what is said after the deadline is late.

    `must_regroup`: a member has left the epoch over it, so that there has to be another one in any case.
    """

    number: int
    asked: frozenset[int]
    deadline_seconds: float
    must_regroup: bool = False
    _answers: dict[int, frozenset[int]] = field(default_factory=dict)

    def question(self, member_table: MemberTable) -> Probe:
        """The request to each of `asked`."""
        return Probe(self.number, member_table.addresses(self.asked))

    def answer(self, rank: int, unreachable: Iterable[int]) -> None:
        """`rank` has tried all of them."""
        if rank in self.asked:
            self._answers[rank] = frozenset(unreachable) & self.asked

    def is_answered(self, connected: Collection[int]) -> bool:
        """Whether all members that are still connected have answered."""
        return all(rank in self._answers for rank in self.asked if rank in connected)

    def severed(self, connected: Collection[int]) -> tuple[Pair, ...]:
        """The pairs, lower rank first, of which one cannot reach the other while both are still connected."""
        pairs = {
            (min(rank, peer), max(rank, peer)) for rank, unreachable in self._answers.items() for peer in unreachable
        }
        return tuple(sorted(pair for pair in pairs if set(pair) <= set(connected)))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: `evicted` are evicted because of the `severed` pairs.

    `must_regroup`: a member has left the epoch over it, so that there has to be another one in any case.
    """

    evicted: tuple[int, ...]
    severed: tuple[Pair, ...]
    must_regroup: bool


class Connectivity:
    """The check that is under way, if any, and who is `cut_off`."""

    def __init__(
        self, connected: MemberTable, effects: Effects, clock: Callable[[], float], timeout_seconds: float
    ) -> None:
        self._connected = connected
        self._effects = effects
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._check: ConnectivityCheck | None = None
        self._num_checks = 0
        self.cut_off: set[int] = set()

    @property
    def is_under_way(self) -> bool:
        """Whether a check is under way."""
        return self._check is not None

    @property
    def deadline_seconds(self) -> float | None:
        """The latest time to conclude, in the clock's seconds; None when no check is under way."""
        return None if self._check is None else self._check.deadline_seconds

    def ask(self, members: Collection[int]) -> None:
        """Ask all connected `members` which of the others they cannot reach."""
        self._num_checks += 1
        asked = frozenset(self._connected.survivors(members))
        self._check = ConnectivityCheck(self._num_checks, asked, self._clock() + self._timeout_seconds)
        for member in sorted(asked):
            self._effects.send(member, self._check.question(self._connected))

    def must_regroup(self) -> None:
        """A member has left the epoch meanwhile."""
        if self._check is not None:
            self._check.must_regroup = True

    def answer(self, rank: int, check_number: int, unreachable: Collection[int]) -> bool:
        """`rank` has tried all of them; returns whether that is what was asked."""
        if self._check is None or self._check.number != check_number:
            return False
        self._check.answer(rank, unreachable)
        return True

    def conclude(self, members: Collection[int], *, is_due: bool) -> CheckResult | None:
        """The result of the check; None while answers are missing, unless the deadline has passed (`is_due`)."""
        check = self._check
        if check is None or not (is_due or check.is_answered(self._connected)):
            return None
        self._check = None
        severed = check.severed(self._connected.survivors(members))
        return CheckResult(tuple(sorted(fewest_to_evict(severed))), severed, check.must_regroup)

    def send_away(self, rank: int, epoch: int, severed: Collection[Pair]) -> None:
        """Evict a rank because of its `severed` pairs; it may rejoin when it can reach the remaining members."""
        self.cut_off.add(rank)
        peers = sorted(peer for pair in severed if rank in pair for peer in pair if peer != rank)
        self._effects.send(rank, Evicted(epoch, is_cut_off=True, cut_off_from=tuple(peers)))

    def tell_peers(self, rank: int, members: Collection[int]) -> None:
        """The `members` that it must reach before it may rejoin."""
        peers = self._connected.survivors(members)
        self._effects.send(rank, Peers(self._connected.addresses(peers)))

    def drop(self) -> None:
        """Discard the check: its epoch is over."""
        self._check = None


def fewest_to_evict(pairs: Collection[Pair], max_choices: int = MAX_CHOICES) -> frozenset[int]:
    """The fewest ranks that are in every pair (a minimum vertex cover); the same for the same pairs, in any order.

    Ties evict the higher rank. Beyond `max_choices` pairs the result may not be minimal.
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
