"""Snapshots in the nodes' memory, as a simulated job has them: which is the newest, and whether it outlives a loss.

Nothing is stepped through: a snapshot is begun after every so many steps and complete so long after, so the newest one
follows from when the steps were committed. A version is lost with the nodes that lose their memory after it was copied,
or after it was protected again, if a group of nodes lacks more of them than its code can bear; groups are the runtime's
own (`job.protection`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Literal

from mecefo_chaos.studies.forecast.model import SnapshotSaving
from mecefo_runtime.job.protection import Group, groups_of

# So many runs of steps are remembered before it is looked at which of them can still matter.
_MOST_RUNS = 64


@dataclass(frozen=True, slots=True)
class Work:
    """What committed steps came to."""

    productive_seconds: float = 0.0
    degraded_speed_seconds: float = 0.0
    redundancy_seconds: float = 0.0
    num_steps: float = 0.0
    degraded_steps: float = 0.0
    projected_steps: float = 0.0

    @property
    def seconds(self) -> float:
        """What they took."""
        return self.productive_seconds + self.degraded_speed_seconds + self.redundancy_seconds

    def towards(self, end: Work, num_steps: float) -> Work:
        """After `num_steps` steps, which are between those of this one and of `end`; all steps between are alike."""
        share = (num_steps - self.num_steps) / (end.num_steps - self.num_steps)
        values = ((getattr(self, name), getattr(end, name)) for name in self.__dataclass_fields__)
        return Work(*(before + share * (after - before) for before, after in values))


@dataclass(frozen=True, slots=True)
class Version:
    """The state that was copied `at_seconds`, after `work`."""

    at_seconds: float
    work: Work


@dataclass(frozen=True, slots=True)
class _Run:
    """Steps in a row, each as long as any other, from `start_seconds` on."""

    start_seconds: float
    step_seconds: float
    start: Work
    end: Work


@dataclass(slots=True)
class _Lost:
    """`node` lost its memory `at_seconds` and is there again `back_seconds`."""

    node: int
    at_seconds: float
    back_seconds: float = inf


def survives(groups: Collection[Group], lost: Collection[int]) -> bool:
    """Whether all of a version can be had when the nodes in `lost` have lost what they kept of it."""
    return all(sum(node in lost for node in group.nodes) <= group.num_parities for group in groups)


class Memory:
    """The snapshots of a job on `num_nodes` nodes whose step takes `step_seconds` without failures."""

    def __init__(self, saving: SnapshotSaving, num_nodes: int, step_seconds: float) -> None:
        self.saving = saving
        self._nodes = range(num_nodes)
        # No snapshot is begun before the last one is complete.
        complete_steps = ceil(saving.complete_seconds / step_seconds)
        self._every_steps = max(1, round(saving.interval_seconds / step_seconds), complete_steps)
        self.step_extra_seconds = saving.save_seconds / self._every_steps
        self._base: Version | None = None
        self._runs: list[_Run] = []
        self._lost: list[_Lost] = []
        self._groups: dict[frozenset[int], tuple[Group, ...]] = {}
        # After the loss of nodes the others protect what is left of the newest version again, once they train again.
        self._resumed_seconds: float | None = None
        self._is_to_protect = False

    # ---- what happens ----

    def note(self, start_seconds: float, step_seconds: float, start: Work, end: Work) -> None:
        """Steps were committed, one after another, the first of them `start_seconds` + `step_seconds`."""
        self._runs.append(_Run(start_seconds, step_seconds, start, end))
        if self._is_to_protect:
            self._resumed_seconds, self._is_to_protect = start_seconds, False
        if len(self._runs) > _MOST_RUNS:
            end_seconds = start_seconds + step_seconds * (end.num_steps - start.num_steps)
            newest = self._newest(end_seconds)
            if newest is not None:
                self._base = newest
                self._runs = [run for run in self._runs if run.end.num_steps > newest.work.num_steps]
                self._lost = [lost for lost in self._lost if lost.back_seconds > newest.at_seconds]

    def lose(self, at_seconds: float, nodes: Collection[int]) -> None:
        """These nodes are lost with their memory."""
        self._lost += [_Lost(node, at_seconds) for node in nodes]
        self._is_to_protect |= bool(nodes)

    def come_back(self, at_seconds: float, nodes: Collection[int]) -> None:
        """These are there again, with nothing in their memory."""
        for lost in self._lost:
            if lost.node in nodes and lost.back_seconds == inf:
                lost.back_seconds = at_seconds

    def go_back_to(self, version: Version | None) -> None:
        """All ranks begin with this version; None: with another one that is not in memory."""
        self._base = version
        self._runs.clear()

    # ---- what there is ----

    def usable(self, at_seconds: float) -> tuple[Version, Literal["snapshot", "parity"]] | None:
        """The newest version if it can be had, and whether a part of it has to be rebuilt; None: it cannot."""
        newest = self._newest(at_seconds)
        if newest is None:
            return None
        copied, resumed = newest.at_seconds, self._resumed_seconds
        if resumed is not None and copied < resumed and resumed + self.saving.complete_seconds <= at_seconds:
            # What had been lost by then is among what the others keep.
            copied = resumed
        away = frozenset(one.node for one in self._lost if one.at_seconds < copied < one.back_seconds)
        lost = {one.node for one in self._lost if one.at_seconds >= copied} - away
        if away not in self._groups:
            saving = self.saving
            there = [node for node in self._nodes if node not in away]
            self._groups[away] = groups_of(there, saving.protection, saving.group_size, saving.nodes_per_rack)
        if not survives(self._groups[away], lost):
            return None
        return newest, "parity" if lost else "snapshot"

    def _newest(self, at_seconds: float) -> Version | None:
        """The newest version that is complete by then."""
        every = self._every_steps
        for run in reversed(self._runs):
            first = run.start.num_steps
            copied_by_seconds = at_seconds - self.saving.complete_seconds
            # A nanosecond: times are sums of many.
            num = floor((copied_by_seconds - run.start_seconds) / run.step_seconds + 1e-9)
            step = floor(min(run.end.num_steps, first + num) / every) * every
            if step > first:
                at = run.start_seconds + (step - first) * run.step_seconds
                return Version(at, run.start.towards(run.end, step))
        return self._base
