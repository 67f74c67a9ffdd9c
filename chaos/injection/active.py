"""What incidents there are at this moment: those that wait for their trigger, and those that are active.

`Armed` is one incident and the ranks that it holds. The others say what may be active at once and in which order it
ends: `ActiveRanks` and `may_fire` for the limits, `Exclusive` for faults that would undo each other, `UndoOrder` for
faults that cover each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from chaos.experiment.limits import Limits
from chaos.faults.base import Fault
from chaos.in_process.protocol import Place, SnapshotsOf
from chaos.injection.write_watch import WriteWatch
from chaos.plan.incident import Incident
from chaos.plan.overlap import common
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason

# How long a fault waits for one that is just being undone, such as one that lasts up to the step before.
UNDO_SECONDS = 2.0


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
    # The file and its size, where it was held within a save.
    save: dict[str, Any] = field(default_factory=dict)
    # Watches the file that a rank writes, until it has the size of the trigger.
    watching: dict[Place, WriteWatch] = field(default_factory=dict)
    # The byte to which a file came in saves that were over before that.
    passed_by: int = 0
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
        if trigger.is_open:
            return phase == trigger.announced and step >= (trigger.step or 0)
        return (trigger.step, trigger.announced) == (step, phase)

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


def may_fire(affected: Iterable[int], incident: Incident, limits: Limits, cluster: Cluster) -> Reason | None:
    """Why `incident` must not fire while faults are active on the ranks `affected`; None if it may."""
    ranks = frozenset(incident.target.ranks)
    if not ranks:
        return None
    return limits.violation(frozenset(affected) | ranks, cluster)


class ActiveRanks:
    """The ranks on which faults are active now: for their lifetime, and of losses until they are back."""

    def __init__(self) -> None:
        self._in_force: dict[int, frozenset[int]] = {}
        self._lost: set[int] = set()

    @property
    def ranks(self) -> frozenset[int]:
        """All of them."""
        return frozenset(self._lost).union(*self._in_force.values())

    def begin(self, incident: Incident) -> None:
        """It is about to be applied."""
        ranks = frozenset(incident.target.ranks)
        self._in_force[incident.incident] = ranks
        if incident.is_loss:
            self._lost |= ranks

    def end(self, incident: Incident) -> None:
        """It was undone; ranks that it took down are still down."""
        self._in_force.pop(incident.incident, None)

    def on_event(self, event: Event) -> None:
        """Follow an event of the job."""
        if event.kind == "rejoined":
            self._lost -= set(event.fields["ranks"])


class Exclusive:
    """The incidents that are active now and have something to themselves (see `Fault.exclusive`)."""

    def __init__(self) -> None:
        self._active: dict[int, tuple[Incident, str, asyncio.Event]] = {}

    async def why_taken(self, incident: Incident, exclusive: str) -> Reason | None:
        """Why `incident` must not begin; None if it may, which holds until the caller waits for something else."""
        deadline = asyncio.get_running_loop().time() + UNDO_SECONDS
        while (found := self._in_the_way(incident, exclusive)) is not None:
            other, where, is_over = found
            try:
                async with asyncio.timeout_at(deadline):
                    await is_over.wait()
            except TimeoutError:
                number, fault = other.incident, other.fault
                return Reason("exclusive", incident=number, fault=fault, where=where, what=exclusive)
        return None

    def begin(self, incident: Incident, exclusive: str | None) -> None:
        """It is about to be applied."""
        if exclusive is not None:
            self._active[incident.incident] = (incident, exclusive, asyncio.Event())

    def end(self, incident: Incident) -> None:
        """It was undone, or never began."""
        if (entry := self._active.pop(incident.incident, None)) is not None:
            entry[2].set()

    def _in_the_way(self, incident: Incident, exclusive: str) -> tuple[Incident, str, asyncio.Event] | None:
        for other, theirs, is_over in self._active.values():
            where = common(incident.target, other.target)
            if theirs == exclusive and where is not None:
                return other, where, is_over
        return None


class UndoOrder:
    """What is active in one run, in the order in which it was applied."""

    def __init__(self) -> None:
        self._in_force: list[tuple[Fault[Any], asyncio.Event]] = []

    def begin(self, fault: Fault[Any]) -> None:
        """It is about to be applied."""
        self._in_force.append((fault, asyncio.Event()))

    def end(self, fault: Fault[Any]) -> None:
        """It is undone, or will not be by us; as often as one likes."""
        for entry in [entry for entry in self._in_force if entry[0] is fault]:
            self._in_force.remove(entry)
            entry[1].set()

    async def uncovered(self, fault: Fault[Any], release: Callable[[], None]) -> None:
        """Until nothing that came later keeps what `fault` has changed out of reach.

        Nobody waits for what came earlier, so that they never wait for each other; nor may a rank be held meanwhile,
        without which the job's steps would not continue: `release` is called before.
        """
        since = next(index for index, (other, _) in enumerate(self._in_force) if other is fault)
        for other, is_over in self._in_force[since + 1 :]:
            if other.covers and other.scope == fault.scope:
                release()
                await is_over.wait()
