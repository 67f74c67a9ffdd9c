"""Restarts of all ranks, for strategies without takeover: after a loss all end, and the backend starts them again.

What was lost once may be lost every time. So it is counted who was, since training last came further than ever before:
a job that only starts, or only repeats the steps since its checkpoint, is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from mecefo_runtime.comm.messages import Stop
from mecefo_runtime.membership.connectivity import Pair
from mecefo_runtime.membership.member_table import Effects, MemberTable
from mecefo_runtime.system.job_records import Restarting

What = TypeVar("What", int, Pair)

STOPPED = "a rank is lost: all start again"


class Restart:
    """Whether a restart `is_under_way`: all ranks were told to end, and none is waited for but its successor.

    `max_fruitless`: after so many in a row that came no further than the job had been, there is not another one.
    """

    def __init__(self, num_ranks: int, max_fruitless: int, connected: MemberTable, effects: Effects) -> None:
        self._num_ranks = num_ranks
        self._max_fruitless = max_fruitless
        self._connected = connected
        self._effects = effects
        self.is_under_way = False
        # The latest attempt of each rank that said hello or ended: one that ends with a later one never said hello.
        self._attempts: dict[int, int] = {}
        # The newest step that is known to have been committed, and what happened since then.
        self.furthest_step = 0
        self._num_fruitless = 0
        self._losses: Counter[int] = Counter()
        self._early_ends: Counter[int] = Counter()
        self._cut_links: Counter[Pair] = Counter()
        self._trouble = ""

    # ---- the restart ----

    def begin(self, epoch: int, cut_off: Collection[int]) -> None:
        """End all ranks, whatever they are doing, including those that were `cut_off`."""
        self._effects.emit(Restarting(epoch=epoch, ranks=tuple(range(self._num_ranks))))
        for rank in sorted({*self._connected, *cut_off}):
            self.stop(rank)
        self._connected.clear()
        self.is_under_way = True
        self._num_fruitless += 1

    def stop(self, rank: int) -> None:
        """End `rank`: with the others, or later, if it was stopped while they ended."""
        self._effects.send(rank, Stop(STOPPED))
        self._effects.hang_up(rank)

    def is_complete(self) -> bool:
        """Whether the successors of all ranks are there."""
        return len(self._connected) == self._num_ranks

    # ---- whether it comes to anything ----

    def on_hello(self, rank: int, attempt: int) -> None:
        """A process of `rank` is there."""
        self._attempts[rank] = attempt

    def on_end(self, rank: int, attempt: int) -> None:
        """A process of `rank` that is not there has ended."""
        if self.is_under_way and rank in self._attempts and attempt > self._attempts[rank]:
            self._early_ends[rank] += 1
        self._attempts[rank] = max(attempt, self._attempts.get(rank, 0))

    def on_lost(self, rank: int, severed: Collection[Pair]) -> None:
        """`rank` is lost; where it was evicted, the links are `severed` because of which it was."""
        self._losses[rank] += 1
        self._cut_links.update(pair for pair in severed if rank in pair)

    def on_trouble(self, rank: int, error: str) -> None:
        """`rank` has left its epoch, for a reason that may be nobody's loss."""
        self._trouble = f"rank {rank} broke off: {error}"

    def on_committed(self, step: int) -> None:
        """`step` was committed. One that had been committed before is repeated work, and no progress."""
        if step <= self.furthest_step:
            return
        self.furthest_step = step
        self._num_fruitless = 0
        for counted in (self._losses, self._early_ends, self._cut_links):
            counted.clear()
        self._trouble = ""

    def early_end_reason(self) -> str | None:
        """Why the restart in progress cannot succeed, in words; None when it can."""
        if max(self._early_ends.values(), default=0) <= self._max_fruitless:
            return None
        ranks, times = _most(self._early_ends)
        return f"{_ranks(ranks)} ended {times} times in a row before training could begin, see the log"

    def failure_reason(self) -> str | None:
        """Why there must not be another restart, in words, and who is to blame; None if there may be one."""
        if self._num_fruitless < self._max_fruitless:
            return None
        last = "last restart" if self._max_fruitless == 1 else f"last {self._max_fruitless} restarts"
        what = f"no step beyond {self.furthest_step}" if self.furthest_step else "no step"
        return f"{what} was committed after the {last}: {self._blamed()}"

    def _blamed(self) -> str:
        if self._early_ends:
            ranks, times = _most(self._early_ends)
            return f"{_ranks(ranks)} ended before training could begin, {_times(times)}"
        times = max(self._losses.values(), default=0)
        if self._cut_links and max(self._cut_links.values()) >= times:
            pairs, times = _most(self._cut_links)
            links = ", ".join(f"{one}-{other}" for one, other in pairs)
            return f"the {'link' if len(pairs) == 1 else 'links'} {links} carried nothing, {_times(times)}"
        if self._losses:
            ranks, times = _most(self._losses)
            return f"{_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} lost, {_times(times)}"
        return self._trouble or "not all ranks came"


def _most(counted: Counter[What]) -> tuple[list[What], int]:
    times = max(counted.values())
    return sorted(what for what, number in counted.items() if number == times), times


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
