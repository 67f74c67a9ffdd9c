"""Follows the job's events while faults are active, for faults whose effect shows in the job."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from chaos.faults.phase_steps import PhaseSteps
from mecefo_runtime.system.command_records import CheckpointBegun, RankRaised, TrainingEntered
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import (
    CheckpointFailed,
    CheckpointWritten,
    ProcessExited,
    Regrouped,
    StepCommitted,
)
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse

_KEPT_STEPS = 1000
_KEPT_SAVES = 64
_KEPT_ENDINGS = 1000
_OF_ENDINGS = (CheckpointFailed, ProcessExited, RankRaised)
_OF_SAVES = (CheckpointBegun, CheckpointWritten, CheckpointFailed)
# Of jobs of our own and of commands: from then on a step is under way.
_OF_BEGINNINGS = (Regrouped, TrainingEntered, StepCommitted)
ALWAYS_READ = frozenset(record.KIND for record in (*_OF_SAVES, *_OF_BEGINNINGS, *_OF_ENDINGS))
"""The kinds of events that a watch keeps something of; of all others it needs those for which somebody waits."""


@dataclass(frozen=True, slots=True)
class SeenStep:
    """One committed step of the job: CLOCK_MONOTONIC seconds."""

    step: int
    began_seconds: float
    committed_seconds: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.committed_seconds - self.began_seconds


def from_commit_to_commit(steps: Iterable[SeenStep]) -> dict[int, float]:
    """Seconds between the commits of a step and of the one before, where both were seen, by step.

    What a script does outside of the phases that we see in it is part of that.
    """
    return {
        later.step: later.committed_seconds - earlier.committed_seconds
        for earlier, later in pairwise(steps)
        if later.step == earlier.step + 1
    }


class Watch:
    """Follows one job. Feeding it is cheap, and nothing in it grows with the run."""

    def __init__(self) -> None:
        # The first step that was committed, None before it.
        self.first_step: int | None = None
        # Whether a step was under way, as far as that can be seen.
        self.has_begun = False
        # What scripts saved of late.
        self.saves: deque[CheckpointWritten] = deque(maxlen=_KEPT_SAVES)
        # How ranks ended of late, and what they could not save.
        self.endings: deque[Record] = deque(maxlen=_KEPT_ENDINGS)
        self.steps: deque[SeenStep] = deque(maxlen=_KEPT_STEPS)
        # In which steps each phase came, by rank; the injector adds what the agents report.
        self.phases = PhaseSteps()
        self._waiting: list[tuple[Callable[[Record], bool], asyncio.Future[Record]]] = []

    @property
    def last_step(self) -> int:
        """The last committed step, 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    def feed(self, event: Event) -> None:
        """Process one event of the job; malformed events are ignored."""
        if event.kind not in ALWAYS_READ and not self._waiting:
            return
        try:
            record = parse(event)
        except ValueError:
            return
        if isinstance(record, _OF_SAVES) and record.rank is not None and record.step is not None:
            self.phases.saved(record.rank, record.step)
        self.has_begun = self.has_begun or isinstance(record, _OF_BEGINNINGS)
        if isinstance(record, StepCommitted) and record.step is not None and record.step > self.last_step:
            self.first_step = record.step if self.first_step is None else self.first_step
            committed = record.committed_seconds
            began = committed if record.began_monotonic is None else record.began_monotonic
            self.steps.append(SeenStep(record.step, began, committed))
        elif isinstance(record, CheckpointWritten) and record.saved:
            self.saves.append(record)
        elif isinstance(record, _OF_ENDINGS):
            self.endings.append(record)
        for is_wanted, future in list(self._waiting):
            if not future.done() and is_wanted(record):
                future.set_result(record)

    async def wait_for(self, is_wanted: Callable[[Record], bool], timeout_seconds: float | None) -> Record:
        """The record of the next event for which `is_wanted`. Without a time-out the caller has to be ready to cancel.

        Raises:
            TimeoutError: none came within the time.
        """
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        entry = (is_wanted, future)
        self._waiting.append(entry)
        try:
            return await asyncio.wait_for(future, timeout_seconds)
        finally:
            self._waiting.remove(entry)

    async def wait_for_step(self, step: int, timeout_seconds: float | None) -> None:
        """Until `step` is committed. Without a time-out the caller has to be ready to cancel it.

        Raises:
            TimeoutError: it was not, within the time.
        """
        if self.last_step < step:
            await self.wait_for(
                lambda record: isinstance(record, StepCommitted) and (record.step or 0) >= step, timeout_seconds
            )
