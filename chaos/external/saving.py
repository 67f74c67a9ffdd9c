"""What a script saves after a step: one checkpoint, of any number of files, written now or in the background."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_REASON = 300
_MAX_CAUSES = 16
# How Rust's standard library ends the text of an error of a system call (safetensors).
_RUST_ERRNO = re.compile(r"\(os error (\d+)\)")


@dataclass(frozen=True, slots=True)
class SaveFailure:
    """Why a call did not save; `errno` is that of the failed system call and `path` the destination, where known."""

    reason: str
    errno: int | None = None
    path: str | None = None

    @classmethod
    def of(cls, error: BaseException, path: str | None) -> SaveFailure:
        """From the exception that the call raised, or that its future ended with."""
        causes = list(_causes(error))
        described = [_text(cause) for cause in causes if not _failures_of(cause)] or [_text(error)]
        number, source = next(
            ((number, index) for index, cause in enumerate(causes) if (number := _errno_of(cause)) is not None),
            (None, 0),
        )
        reason = described[0]
        if number is not None and (of_number := _text(causes[source])) != reason:
            reason = f"{reason[: _MAX_REASON // 2]} (caused by {of_number})"
        return cls(reason[:_MAX_REASON], number, path)


Written = Callable[[int, float, float, list[list[Any]]], None]
Failed = Callable[[int, SaveFailure], None]


class Saves:
    """The checkpoints of one training, one for each step after which anything is saved.

    Saving is over when the last call has returned and all futures that calls returned are done. Then `written` gets
    the step, for how long training waited and for how long it was written in the background (seconds), and path,
    device, inode and size of what was written. Where a call or a future failed, and no later call after the same step
    saved the same file, `failed` gets the step and the first failure instead.
    """

    def __init__(self, written: Written, failed: Failed) -> None:
        self._written = written
        self._failed = failed
        self._newest: _Saving | None = None
        self._in_flight: list[_Saving] = []
        # Calls within calls: what one saves may consist of files that are saved each by itself.
        self._depth = 0

    @property
    def are_in_flight(self) -> bool:
        """Whether something is still being written while the training continues."""
        return any(saving.is_in_flight for saving in self._in_flight)

    @property
    def is_within(self) -> bool:
        """Whether a call that saves is under way."""
        return self._depth > 0

    def renamed(self, source: str, target: str, within: str | None) -> int | None:
        """A file or folder was renamed: the step whose checkpoint it is, or a part of it; None where it is none.

        `within` is what the call under way saves to.
        """
        if self._newest is None:
            return None
        is_inside = self._depth > 0 and within is not None and _is_at_or_in(source, within)
        return self._newest.step if self._newest.renamed(source, target) or is_inside else None

    def begin(self, step: int) -> None:
        """Something is about to be saved after `step`."""
        if self._depth == 0 and (self._newest is None or self._newest.step != step):
            self.next_step()
            self._newest = _Saving(step, self._written, self._failed)
        self._depth += 1

    def called(self, began_seconds: float, result: Any, path: str | None = None) -> None:
        """The call that began then (CLOCK_MONOTONIC) has returned `result`; it saved to `path`, where that is known."""
        self._depth = max(0, self._depth - 1)
        if self._newest is not None and path is not None:
            self._newest.wrote(path)
        if self._newest is not None and not self._depth:
            self._newest.called(began_seconds, getattr(result, "upload_completion", result), path)
            self._in_flight = [one for one in (*self._in_flight, self._newest) if one.is_in_flight]

    def failed(self, error: BaseException, path: str | None = None) -> None:
        """The call that was to save to `path` has raised `error`; the outer one of nested calls decides."""
        self._depth = max(0, self._depth - 1)
        if self._newest is not None and not self._depth:
            self._newest.raised(error, path)

    def next_step(self) -> None:
        """The next step begins, or the script ends: nothing more is saved after the one before."""
        newest, self._newest, self._depth = self._newest, None, 0
        if newest is not None:
            newest.release()


class _Saving:
    """One checkpoint. Its futures are done on threads of their own."""

    def __init__(self, step: int, written: Written, failed: Failed) -> None:
        self.step = step
        # By path: device, inode and size. Many are renamed when they are whole.
        self._saved: dict[str, tuple[int, int, int | None]] = {}
        self._was_interrupted = False
        # By path, in the order of the calls; a script may try again.
        self._failures: dict[str | None, SaveFailure] = {}
        self._written = written
        self._failed = failed
        self._blocking_seconds = self._returned_seconds = self._done_seconds = 0.0
        self._lock = threading.Lock()
        # One for the training thread itself.
        self._num_open = 1
        self._num_futures = 0

    @property
    def is_in_flight(self) -> bool:
        """Whether a future of it is not done."""
        return self._num_futures > 0

    def renamed(self, source: str, target: str) -> bool:
        """Whether that was something of it; from now on it has the new name."""
        moved = {path: target + path[len(source) :] for path in self._saved if _is_at_or_in(path, source)}
        for path, now in moved.items():
            self._saved[now] = self._saved.pop(path)
        return bool(moved)

    def wrote(self, path: str) -> None:
        with suppress(OSError):
            status = Path(path).stat()
            own = str(Path(path).absolute())
            # Files that nested calls wrote into the folder are part of it.
            self._saved = {other: place for other, place in self._saved.items() if not other.startswith(own + os.sep)}
            self._saved[own] = (
                status.st_dev,
                status.st_ino,
                status.st_size if stat.S_ISREG(status.st_mode) else None,
            )

    def called(self, began_seconds: float, result: Any, path: str | None) -> None:
        self._returned_seconds = time.monotonic()
        self._blocking_seconds += self._returned_seconds - began_seconds
        if not hasattr(result, "add_done_callback"):
            self._make_good(path)
            return
        with self._lock:
            self._num_open += 1
            self._num_futures += 1
        result.add_done_callback(lambda future: self._on_done(future, path))

    def raised(self, error: BaseException, path: str | None) -> None:
        # `torch.distributed.checkpoint` raises an exception that is derived from BaseException.
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            self._was_interrupted = True
            return
        # Not the exception itself: its traceback would keep what the script holds there.
        failure = SaveFailure.of(error, path)
        with self._lock:
            self._failures.setdefault(path, failure)

    def _make_good(self, path: str | None) -> None:
        """The file was saved: an earlier failure of it, also in another folder, counts no longer."""
        with self._lock:
            for failed in list(self._failures):
                if failed == path or (failed and path and Path(failed).name == Path(path).name):
                    del self._failures[failed]

    def _on_done(self, future: Any, path: str | None) -> None:
        if future.cancelled():
            self._was_interrupted = True
        elif (error := future.exception()) is not None:
            self.raised(error, path)
        else:
            self._make_good(path)
        self._done_seconds = time.monotonic()
        with self._lock:
            self._num_futures -= 1
        self.release()

    def release(self) -> None:
        with self._lock:
            self._num_open -= 1
            is_over, failures = not self._num_open, list(self._failures.values())
        if is_over and failures:
            self._failed(self.step, failures[0])
        elif is_over and not self._was_interrupted:
            beside = max(0.0, self._done_seconds - self._returned_seconds)
            saved = [[path, *place] for path, place in self._saved.items()]
            self._written(self.step, self._blocking_seconds, beside, saved)


def _is_at_or_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON]


def _failures_of(error: BaseException) -> list[BaseException]:
    """The exceptions of the ranks that `torch.distributed.checkpoint` reports as one, by (exception, traceback)."""
    failures = getattr(error, "failures", None)
    pairs = failures.values() if isinstance(failures, Mapping) else ()
    return [pair[0] for pair in pairs if isinstance(pair, tuple) and pair and isinstance(pair[0], BaseException)]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, and all that it contains or that led to it."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending and len(seen) < _MAX_CAUSES:
        cause = pending.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        pending += [*_failures_of(cause), cause.__cause__, cause.__context__]


def _errno_of(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    match = _RUST_ERRNO.search(str(error))
    return None if match is None else int(match[1])
