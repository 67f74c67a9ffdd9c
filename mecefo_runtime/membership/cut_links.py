"""Members that cannot reach each other: all are asked whom they can reach, and the fewest go until they can.

An inquiry, with all answers or at its deadline, is concluded: how to judge it is in `inquiry`. Who went is *cut off*:
it lives, and comes back by itself when it can reach those who stayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from mecefo_runtime.membership.inquiry import Inquiry, Pair, fewest_to_evict
from mecefo_runtime.membership.roster import Effects, Roster


@dataclass(frozen=True, slots=True)
class Finding:
    """What an inquiry comes to: `evicted` have to go, because of the `severed` pairs.

    `must_regroup`: a member has left the epoch over it, so that there has to be another one in any case.
    """

    evicted: tuple[int, ...]
    severed: tuple[Pair, ...]
    must_regroup: bool


class CutLinks:
    """The inquiry that is under way, if any, and who is `cut_off`."""

    def __init__(self, connected: Roster, effects: Effects, clock: Callable[[], float], timeout_seconds: float) -> None:
        self._connected = connected
        self._effects = effects
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._inquiry: Inquiry | None = None
        self._num_inquiries = 0
        self.cut_off: set[int] = set()

    @property
    def are_asked_for(self) -> bool:
        """Whether an inquiry is under way."""
        return self._inquiry is not None

    @property
    def deadline_seconds(self) -> float | None:
        """When to conclude at the latest, in the clock's seconds; None: there is nothing to conclude."""
        return None if self._inquiry is None else self._inquiry.deadline_seconds

    def ask(self, members: Collection[int]) -> None:
        """Ask all `members` that are there whom of the others they cannot reach."""
        self._num_inquiries += 1
        asked = frozenset(self._connected.survivors(members))
        self._inquiry = Inquiry(self._num_inquiries, asked, self._clock() + self._timeout_seconds)
        for member in sorted(asked):
            self._effects.send(member, self._inquiry.question(self._connected))

    def must_regroup(self) -> None:
        """A member has left the epoch meanwhile."""
        if self._inquiry is not None:
            self._inquiry.must_regroup = True

    def answer(self, rank: int, inquiry: int, unreachable: Collection[int]) -> bool:
        """`rank` has tried all of them; returns whether that is what was asked."""
        if self._inquiry is None or self._inquiry.number != inquiry:
            return False
        self._inquiry.answer(rank, unreachable)
        return True

    def conclude(self, members: Collection[int], *, is_due: bool) -> Finding | None:
        """What the inquiry comes to; None while answers are waited for, which they are not any more if `is_due`."""
        inquiry = self._inquiry
        if inquiry is None or not (is_due or inquiry.is_answered(self._connected)):
            return None
        self._inquiry = None
        severed = inquiry.severed(self._connected.survivors(members))
        return Finding(tuple(sorted(fewest_to_evict(severed))), severed, inquiry.must_regroup)

    def send_away(self, rank: int, epoch: int, severed: Collection[Pair]) -> None:
        """It may come back when it can reach those who stay; the `severed` pairs with it are why it goes."""
        self.cut_off.add(rank)
        peers = sorted(peer for pair in severed if rank in pair for peer in pair if peer != rank)
        message = {"type": "evicted", "epoch": epoch, "is_cut_off": True, "cut_off_from": peers}
        self._effects.send(rank, message)

    def tell_peers(self, rank: int, members: Collection[int]) -> None:
        """Whom of `members` it has to reach before it may come back."""
        peers = self._connected.survivors(members)
        self._effects.send(rank, {"type": "peers", "addresses": self._connected.addresses(peers)})

    def drop(self) -> None:
        """The epoch is over: whatever the inquiry would come to is of no use."""
        self._inquiry = None
