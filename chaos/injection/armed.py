"""An incident that waits for its trigger, and the ranks that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chaos.faults.base import Fault
from chaos.in_process.protocol import Place, SnapshotsOf
from chaos.language.trigger import OPEN_PHASES
from chaos.plan.incident import Incident


@dataclass(slots=True)
class Armed:
    """An incident and how far it is."""

    incident: Incident
    fault: Fault[Any]
    # Whom to hold, and how many of them must be held before it fires.
    witnesses: frozenset[Place]
    quorum: int
    arrived: dict[Place, Callable[[], None]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    # Its time has come, and it waits for its ranks to be held wherever they are.
    is_due: bool = False
    fired: asyncio.Task[None] | None = None
    # Where it came to be held, when that was not said beforehand.
    moment: tuple[int, str] | None = None
    # At how many attempts of the job's launcher it has been armed, and whether a later one took its place.
    num_attempts: int = 1
    is_superseded: bool = False
    # Whether any of its witnesses was connected when the step of its trigger was committed; None: it was not yet.
    was_present: bool | None = None

    def wants(self, place: Place, step: int, phase: str) -> bool:
        """Whether whoever is at `place` is to be held for it at (step, phase)."""
        if self.fired is not None or place not in self.witnesses:
            return False
        trigger = self.incident.trigger
        if trigger.at_seconds is not None:
            return self.is_due
        if trigger.phase in OPEN_PHASES:
            return phase == trigger.phase and step >= (trigger.step or 0)
        return (trigger.step, trigger.phase) == (step, phase)

    @property
    def held_ranks(self) -> tuple[int, ...]:
        """The ranks that it holds."""
        return tuple(sorted(place for place in self.arrived if isinstance(place, int)))

    @property
    def held_nodes(self) -> tuple[int, ...]:
        """The nodes whose snapshot processes it holds."""
        return tuple(sorted(place.node for place in self.arrived if isinstance(place, SnapshotsOf)))

    def release(self) -> None:
        """Release the ranks that it holds."""
        for let_go in self.arrived.values():
            let_go()
        self.arrived.clear()


def last_of(count: int, release: Callable[[], None]) -> Callable[[], None]:
    """Calls `release` when it is called for the last of `count` times: as often as incidents hold the rank."""
    calls = 0

    def let_go() -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            release()

    return let_go
