"""What the job does while faults are in force, as its events tell it: for faults whose effect shows in the job."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from mecefo_runtime.system.events import Event

_KEPT_STEPS = 1000


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
        self.steps: deque[SeenStep] = deque(maxlen=_KEPT_STEPS)
        self._waiting: list[tuple[Callable[[Event], bool], asyncio.Future[Event]]] = []

    @property
    def last_step(self) -> int:
        """The last committed step, 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    def feed(self, event: Event) -> None:
        """Take in one event of the job."""
        if event.kind == "step_committed" and event.step is not None and event.step > self.last_step:
            fields = event.fields
            committed = float(fields.get("committed_monotonic", event.monotonic_seconds))
            self.steps.append(SeenStep(event.step, float(fields.get("began_monotonic", committed)), committed))
        for is_wanted, future in list(self._waiting):
            if not future.done() and is_wanted(event):
                future.set_result(event)

    async def wait_for(self, is_wanted: Callable[[Event], bool], timeout_seconds: float | None) -> Event:
        """The next event for which `is_wanted`. Without a time-out the caller has to be ready to cancel it.

        Raises:
            TimeoutError: none came within the time.
        """
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
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
                lambda event: event.kind == "step_committed" and (event.step or 0) >= step, timeout_seconds
            )
