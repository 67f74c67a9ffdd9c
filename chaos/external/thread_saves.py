"""Saves on other threads of a script, while the thread that trains continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.external.saving import Failed, SaveFailure, Written


@dataclass(slots=True)
class _Saving:
    step: int
    path: str
    began_seconds: float
    depth: int = 1


class ThreadSaves:
    """The saves on other threads than the one that trains, a checkpoint each.

    The state is taken to be that after the step that was over when the call began. `begun` gets that step, the path,
    and whether the training has taken nothing of the next step yet.
    """

    def __init__(self, begun: Callable[[int, str, bool], None], written: Written, failed: Failed) -> None:
        self._begun, self._written, self._failed = begun, written, failed
        # By thread.
        self._savings: dict[int, _Saving] = {}

    def begin(self, path: str | None, step: int, *, is_between_steps: bool) -> bool:
        """A call on this thread is about to save to `path`; returns whether its end must be reported.

        A call within another one is part of that. What is written to no file is none.
        """
        own = self._savings.get(threading.get_ident())
        if own is not None:
            own.depth += 1
            return True
        if path is None or step <= 0:
            return False
        self._savings[threading.get_ident()] = _Saving(step, str(Path(path).absolute()), time.monotonic())
        self._begun(step, path, is_between_steps)
        return True

    def ended(self, error: BaseException | None = None) -> bool:
        """A call on this thread has returned, or raised `error`; returns whether it was one of these."""
        own = self._savings.get(threading.get_ident())
        if own is None:
            return False
        own.depth -= 1
        if own.depth:
            return True
        del self._savings[threading.get_ident()]
        if error is not None:
            self._failed(own.step, SaveFailure.of(error, own.path))
            return True
        saved: list[list[Any]] = []
        with suppress(OSError):
            status = Path(own.path).stat()
            size = None if Path(own.path).is_dir() else status.st_size
            saved = [[own.path, status.st_dev, status.st_ino, size]]
        self._written(own.step, 0.0, time.monotonic() - own.began_seconds, saved)
        return True
