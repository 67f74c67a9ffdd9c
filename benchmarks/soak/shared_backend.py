"""What all runs of a soak stand on, and what is left of them on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.host.run_files import LOGS_FOLDER
from harness.backends.local.backend import LocalNodes
from harness.backends.nodes import JobsOnNodes
from harness.control.control_server import ControlServer
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import new_token

MARK = "SOAK_RUN"
SETTLE_SECONDS = 0.2


class SharedBackend:
    """One control server and one backend for all runs of a soak: the fork server takes seconds to start."""

    def __init__(self, folder: Path) -> None:
        self.mark = new_token()
        self._folder = folder
        self._logs = folder / LOGS_FOLDER
        self._on_event: Callable[[Event], None] = lambda _: None
        emitter = Emitter(self._pass_on, "backend")
        self._control = ControlServer(self._pass_on)
        self.backend = JobsOnNodes(LocalNodes(self._logs), self._control, new_token(), self._logs, emitter)

    async def __aenter__(self) -> Self:
        self._point_logs_to(self._folder)
        os.environ[MARK] = self.mark
        await self._control.open()
        await self.backend.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.backend.close()
        await self._control.close()
        self._logs.unlink()
        del os.environ[MARK]

    def begin(self, logs: Path, on_event: Callable[[Event], None]) -> None:
        """The next run begins: its logs go to `logs` and its events to `on_event`."""
        self._point_logs_to(logs)
        self._on_event = on_event

    async def settle(self) -> None:
        """Let what the dead have still said arrive."""
        await asyncio.sleep(SETTLE_SECONDS)

    def _point_logs_to(self, folder: Path) -> None:
        # A backend has one folder for its logs; a link in its place gives every run its own.
        self._logs.unlink(missing_ok=True)
        self._logs.symlink_to(folder.resolve())

    def _pass_on(self, event: Event) -> None:
        self._on_event(event)


def find_by_environment(mark: str) -> list[ProcessId]:
    """Every running process of ours that was started with `mark` in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(ProcessId.of(int(entry.name)))
            except OSError:
                # Gone meanwhile, or somebody else's.
                continue
    return [process for process in found if process.is_running()]
