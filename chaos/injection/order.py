"""The order in which faults that cover each other are undone: the covering one first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chaos.faults.base import Fault


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
