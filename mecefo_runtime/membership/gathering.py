"""What a coordinator waits for at its start: which ranks connect, which will not, and what they report.

At the job's start no rank knows of an epoch. A restarted coordinator learns the epoch from the ranks, and continues
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

from mecefo_runtime.comm.messages import RankReport

START_TIMEOUT_SECONDS = 120.0


class GatheringOutcome(Enum):
    """What to do next."""

    NOTHING = "nothing"  # but to wait
    NEW = "new"  # begin: nobody was in an epoch
    EPOCH = "epoch"  # go on in the one that was learned
    END = "end"  # the job is done
    TOO_FEW = "too few"  # give up: some did not come in time


class Gathering:
    """`learned` is the report that knows the newest epoch, `absent` are the ranks that will not come by themselves.

    `begun_epoch` is the newest epoch that is known to have begun under an earlier coordinator, 0: none.
    `has_completed`: a rank has come to the job's end. `deadline_seconds` counts while ranks are gathered.
    """

    def __init__(self, num_ranks: int, clock: Callable[[], float], patience_seconds: float, begun_epoch: int) -> None:
        self._num_ranks = num_ranks
        self._clock = clock
        self._patience_seconds = patience_seconds
        self.begun_epoch = begun_epoch
        self.absent: set[int] = set()
        self.learned: RankReport | None = None
        self.has_completed = False
        self.deadline_seconds: float | None = clock() + START_TIMEOUT_SECONDS

    def learn(self, report: RankReport) -> None:
        """Remember the newest epoch that a rank knows."""
        if report.epoch > 0 and (self.learned is None or report.epoch > self.learned.epoch):
            self.learned = report
            self.deadline_seconds = self._clock() + self._patience_seconds

    def on_completed(self) -> None:
        """A rank ended in order. Whoever still has state comes to the same end by itself, and may say so."""
        self.has_completed = True
        if self.learned is None:
            self.deadline_seconds = self._clock() + self._patience_seconds

    def look(self, connected: Collection[int], *, has_losses: bool) -> GatheringOutcome:
        """What to do next, with these ranks `connected`; while losses are being gathered, more may follow."""
        if self.learned is not None:
            is_complete = set(self.learned.members) <= set(connected) | self.absent
            return GatheringOutcome.EPOCH if is_complete else GatheringOutcome.NOTHING
        if has_losses or len(connected) + len(self.absent) != self._num_ranks:
            return GatheringOutcome.NOTHING
        if connected or self.has_completed:
            return GatheringOutcome.NEW
        if self.deadline_seconds is not None:
            # All are gone. Whether they had come to the end, their supervisors will tell in a moment.
            self.deadline_seconds = min(self.deadline_seconds, self._clock() + self._patience_seconds)
        return GatheringOutcome.NOTHING

    def look_at_deadline(self) -> GatheringOutcome:
        """What to do when the deadline passes and no other rank connects."""
        self.deadline_seconds = None
        if self.learned is not None:
            return GatheringOutcome.EPOCH
        if self.has_completed:
            return GatheringOutcome.END
        return GatheringOutcome.NEW if len(self.absent) == self._num_ranks else GatheringOutcome.TOO_FEW

    def failure_reason(self, connected: Collection[int]) -> str:
        """The ranks that did not connect, in words."""
        missing = sorted(set(range(self._num_ranks)) - set(connected))
        did_not = "come back" if self.begun_epoch else "start"
        return f"ranks {missing} did not {did_not} within {START_TIMEOUT_SECONDS:.0f} s; see their logs"

    def begin_again(self, begun_epoch: int) -> None:
        """Wait as a restarted coordinator would, with `begun_epoch` known to have begun."""
        self.begun_epoch = max(self.begun_epoch, begun_epoch)
        self.learned = None
        self.deadline_seconds = self._clock() + START_TIMEOUT_SECONDS

    def begin_anew(self) -> None:
        """Wait for all ranks without a limit: they are restarted, and none knows of an epoch."""
        self.learned = self.deadline_seconds = None
        self.absent.clear()
