"""Watches whether nodes reach their memory limit: the kernel then ends a process without telling anyone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from chaos.host import memory_limit
from chaos.language.quantities import bytes_text
from harness.analysis.words import count
from mecefo_runtime.system.process import ProcessId

LOOK_SECONDS = 0.5


class MemoryWatch:
    """Looks whether the out-of-memory killer has ended processes of a container that may use `limit_bytes`.

    `on_kill` hears of it, in words, once each time.
    """

    def __init__(self, limit_bytes: int, on_kill: Callable[[str], None]) -> None:
        self._limit = bytes_text(limit_bytes)
        self._on_kill = on_kill
        # Of each container that was begun: its group, and how many processes of it were told of.
        self._groups: dict[str, Path] = {}
        self._told: dict[str, int] = {}

    def begin(self, name: str, process: ProcessId) -> None:
        """From now on the container `name` is the one whose first process this is."""
        self._told[name] = 0
        if (group := memory_limit.group_of(process)) is not None:
            self._groups[name] = group

    async def run(self) -> None:
        """Look again and again, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Once. Of a container that is gone its group is, too."""
        for name, group in self._groups.items():
            num_kills = memory_limit.oom_kills_in(group) or 0
            if (num_new := num_kills - self._told[name]) > 0:
                self._told[name] = num_kills
                self._on_kill(
                    f"{name} reached its memory limit, {self._limit}: the kernel ended "
                    f"{count(num_new, 'process')} of it. Raise --node-memory"
                )
