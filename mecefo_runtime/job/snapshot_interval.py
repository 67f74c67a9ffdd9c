"""The snapshot interval with the least total cost, from the cost of a snapshot and the mean time between losses."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import astuple, dataclass, fields
from typing import Literal

# Of one rank, before anything was lost: 419 unexpected interruptions in 54 days on 16,384 GPUs ("The Llama 3 Herd of
# Models", arXiv 2407.21783, table 5).
RANK_MTBF_SECONDS = 54 * 86400 * 16384 / 419
# Another interval is not worth a line in the log, and is no better within what has been measured.
_LEAST_CHANGE_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class SnapshotCosts:
    """What a snapshot takes, as one rank has measured it lately; 0.0: not yet.

    It stops training for `stopped_seconds`, and is complete on the node, and protected, after `complete_seconds`. A
    step takes `step_seconds`.
    """

    stopped_seconds: float = 0.0
    complete_seconds: float = 0.0
    step_seconds: float = 0.0

    @classmethod
    def greatest(cls, costs: Collection[SnapshotCosts]) -> SnapshotCosts:
        """The maximum of each figure: all ranks wait for the slowest."""
        return cls(*map(max, zip(*map(astuple, costs), strict=True)))


NUM_SNAPSHOT_COSTS = len(fields(SnapshotCosts))
NO_SNAPSHOT_COSTS = SnapshotCosts()


@dataclass(frozen=True, slots=True)
class Failures:
    """What a job has lost so far: `num_losses` in `seconds`, where losses at one time are one."""

    num_losses: int = 0
    seconds: float = 0.0

    def mtbf_seconds(self, num_ranks: int, more_seconds: float = 0.0) -> float:
        """The mean time between losses, after `more_seconds` without any."""
        if not self.num_losses:
            return RANK_MTBF_SECONDS / num_ranks
        return (self.seconds + more_seconds) / self.num_losses


NO_FAILURES = Failures()


def interval_steps(costs: SnapshotCosts, mtbf_seconds: float) -> int:
    """Steps between snapshots that cost least: Young's sqrt(2 x cost x MTBF), but no sooner than one is complete.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
    """
    if not costs.step_seconds > 0:
        return 1
    young_seconds = math.sqrt(2 * costs.stopped_seconds * mtbf_seconds)
    return max(
        1, round(young_seconds / costs.step_seconds), math.ceil(round(costs.complete_seconds / costs.step_seconds, 6))
    )


class SnapshotInterval:
    """The interval active, the same on all ranks: it follows from what they exchange, and from nothing else.

    `every_steps` is given, or `auto`: 1 until all ranks of an epoch have a snapshot; whenever they have another one, it
    is found again from its cost and the mean time between losses: `mtbf_seconds`, or, where that is None, what has been
    seen of losses.
    """

    def __init__(self, every_steps: int | Literal["auto"], mtbf_seconds: float | None, num_ranks: int) -> None:
        self._is_auto = every_steps == "auto"
        self._given_mtbf_seconds = mtbf_seconds
        self._num_ranks = num_ranks
        self._failures = NO_FAILURES
        self._first_step = 1
        self._agreed_step = 0
        self.steps = 1 if every_steps == "auto" else every_steps
        self.mtbf_seconds = 0.0

    def enter(self, failures: Failures, first_step: int) -> None:
        """An epoch begins with `first_step`."""
        self._failures, self._first_step, self._agreed_step = failures, first_step, 0
        if self._is_auto:
            self.steps = 1

    def on_committed(self, step: int, agreed_step: int, costs: SnapshotCosts) -> bool:
        """`step` is committed, and all have a snapshot of `agreed_step` (0 or less: of none); `costs` are the greatest.

        Returns whether the interval is another one from now on.
        """
        if not self._is_auto or agreed_step <= self._agreed_step:
            return False
        is_first, self._agreed_step = not self._agreed_step, agreed_step
        since_seconds = (step - self._first_step + 1) * costs.step_seconds
        self.mtbf_seconds = self._given_mtbf_seconds or self._failures.mtbf_seconds(self._num_ranks, since_seconds)
        steps = interval_steps(costs, self.mtbf_seconds)
        if not is_first and max(steps, self.steps) < _LEAST_CHANGE_RATIO * min(steps, self.steps):
            return False
        has_changed, self.steps = is_first or steps != self.steps, steps
        return has_changed
