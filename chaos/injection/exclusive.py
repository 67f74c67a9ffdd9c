"""Keeps apart faults that would undo each other: what one needs to itself no other may change while it is active."""

from __future__ import annotations

import asyncio

from chaos.plan.incident import Incident
from chaos.plan.overlap import common
from mecefo_runtime.system.reason import Reason

# How long a fault waits for one that is just being undone, such as one that lasts up to the step before.
UNDO_SECONDS = 2.0


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
