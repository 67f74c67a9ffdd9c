"""What a script saves after a step: one checkpoint, of any number of files, written now or in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Tell = Callable[[int, float, float, list[list[Any]]], None]
TellFailed = Callable[[int, str, int | None], None]

_MAX_REASON = 300


class Saves:
    """The checkpoints of one training, one for each step after which anything is saved.

    Saving is over when the last call has returned and all futures that calls returned are done; `tell` then gets the
    step, for how long training waited and for how long it was written beside training (seconds), and path, device and
    inode of what was written. `tell_failed` gets the step, what a call raised, and its errno, unless one has saved it
    since.
    """

    def __init__(self, tell: Tell, tell_failed: TellFailed) -> None:
        self._tell = tell
        self._tell_failed = tell_failed
        self._newest: _Saving | None = None
        self._last_step: int | None = None
        # Calls within calls: what one saves may consist of files that are saved each by itself.
        self._depth = 0

    def begin(self, step: int) -> bool:
        """Something is about to be saved after `step`; returns whether it is the first."""
        if self._depth == 0 and (self._newest is None or self._newest.step != step):
            self.next_step()
            self._newest = _Saving(step, self._tell, self._tell_failed)
        self._depth += 1
        # The next batch may be fetched before all is saved.
        is_first, self._last_step = step != self._last_step, step
        return is_first

    def called(self, began_seconds: float, result: Any, path: str | None = None) -> None:
        """The call that began then (CLOCK_MONOTONIC) has returned `result`; it saved to `path`, where that is known."""
        self._depth = max(0, self._depth - 1)
        if self._newest is not None and path is not None:
            self._newest.wrote(path)
        if self._newest is not None and not self._depth:
            self._newest.called(began_seconds, getattr(result, "upload_completion", result))

    def failed(self, error: BaseException) -> None:
        """The call has raised `error`: that is no checkpoint."""
        self._depth = max(0, self._depth - 1)
        if self._newest is not None:
            self._newest.is_whole = False
            # Not the exception itself: its traceback would keep what the script holds there.
            number = error.errno if isinstance(error, OSError) else None
            text = f"{type(error).__name__}: {error}"[:_MAX_REASON]
            self._newest.failure = (text, number) if isinstance(error, Exception) else None

    def next_step(self) -> None:
        """The next step begins, or the script ends: nothing more is saved after the one before."""
        newest, self._newest, self._depth = self._newest, None, 0
        if newest is not None:
            newest.release()


class _Saving:
    """One checkpoint. Its futures are done on threads of their own."""

    def __init__(self, step: int, tell: Tell, tell_failed: TellFailed) -> None:
        self.step = step
        # By path: device and inode. Many are renamed when they are whole.
        self._saved: dict[str, tuple[int, int]] = {}
        self.is_whole = True
        # What the last call raised; a script may try again.
        self.failure: tuple[str, int | None] | None = None
        self._tell = tell
        self._tell_failed = tell_failed
        self._blocking_seconds = self._returned_seconds = self._done_seconds = 0.0
        self._lock = threading.Lock()
        # One for the training thread itself.
        self._num_open = 1

    def wrote(self, path: str) -> None:
        with suppress(OSError):
            found = Path(path).stat()
            self._saved[str(Path(path).absolute())] = (found.st_dev, found.st_ino)

    def called(self, began_seconds: float, result: Any) -> None:
        self.failure = None
        self._returned_seconds = time.monotonic()
        self._blocking_seconds += self._returned_seconds - began_seconds
        if hasattr(result, "add_done_callback"):
            with self._lock:
                self._num_open += 1
            result.add_done_callback(self._on_done)

    def _on_done(self, future: Any) -> None:
        if future.cancelled() or future.exception() is not None:
            self.is_whole = False
        self._done_seconds = time.monotonic()
        self.release()

    def release(self) -> None:
        with self._lock:
            self._num_open -= 1
            is_over = not self._num_open
        if is_over and self.is_whole:
            beside = max(0.0, self._done_seconds - self._returned_seconds)
            saved = [[path, *place] for path, place in self._saved.items()]
            self._tell(self.step, self._blocking_seconds, beside, saved)
        elif is_over and self.failure is not None:
            self._tell_failed(self.step, *self.failure)
