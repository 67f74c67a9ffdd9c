"""In which steps each phase came, by rank: what a trigger that never came and a fault of saves are explained with."""

from __future__ import annotations

from collections.abc import Collection

from chaos.in_process.protocol import Came
from chaos.step_ranges import Steps


class PhaseSteps:
    """The steps in which each phase came, by rank. What the agents report is exact while a rank lives."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, str], Steps] = {}
        # Where a phase comes in every step: from which one on, until the agent reports another.
        self._steady_since: dict[tuple[int, str], int] = {}

    def came(self, rank: int, message: Came) -> None:
        """An agent reports that a phase came."""
        key = rank, message.phase
        steps = self._steps.setdefault(key, Steps())
        since = self._steady_since.pop(key, None)
        if since is not None and message.ended is not None and message.ended >= since:
            steps.add(since, message.ended)
        steps.add(message.step, message.step)
        if message.is_steady:
            self._steady_since[key] = message.step

    def saved(self, rank: int, step: int) -> None:
        """An event of a save shows that the phase `checkpoint` came, whatever the version of the rank's agent."""
        self._steps.setdefault((rank, "checkpoint"), Steps()).add(step, step)

    def left(self, rank: int, last_step: int) -> None:
        """The agent of `rank` is gone, when `last_step` was the newest committed step."""
        for key in [key for key in self._steady_since if key[0] == rank]:
            since = self._steady_since.pop(key)
            self._steps[key].add(since, max(since, last_step))

    def of(self, phase: str, ranks: Collection[int] | None, last_step: int) -> Steps:
        """The steps up to `last_step` in which `phase` came on any of `ranks`; None: on any rank."""
        union = Steps()
        for (rank, name), steps in self._steps.items():
            if name != phase or (ranks is not None and rank not in ranks):
                continue
            for first, last in steps.intervals:
                union.add(first, last)
            if (since := self._steady_since.get((rank, name))) is not None:
                union.add(since, max(since, last_step))
        return union

    def ranks_of(self, phase: str) -> tuple[int, ...]:
        """The ranks on which `phase` came."""
        return tuple(sorted(rank for rank, name in self._steps if name == phase))

    def phases_of(self, ranks: Collection[int] | None) -> frozenset[str]:
        """The phases that came on any of `ranks`; None: on any rank."""
        return frozenset(phase for rank, phase in self._steps if ranks is None or rank in ranks)
