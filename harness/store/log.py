"""Reads the event log of a run, whole or cut off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from chaos.errors import EnvironmentFailure, shown
from chaos.user_files import bounded_lines, open_regular
from harness.analysis.collection import without_collection
from harness.analysis.state import EventLog
from harness.store.sentences import with_code
from mecefo_runtime.system.events import Event

# Of what stands in the fields of events that no run writes.
BREAKDOWNS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


_PROGRESS_LINES = 10_000


class LogError(EnvironmentFailure):
    """There is no event log to read: the file is missing, unreadable, or holds no event."""

    @classmethod
    def cannot_read(cls, path: Path, error: OSError) -> LogError:
        """The operating system refuses it."""
        return cls(f"{path}: the event log cannot be read: {error.strerror or error}")

    @classmethod
    def no_events(cls, path: Path, num_unreadable: int) -> LogError:
        """No line of it is an event."""
        return cls(f"{path}: no events in it ({num_unreadable} unreadable lines); the run ended before it began")


class Log(NamedTuple):
    """The events of a log in the order of the file, and the numbers (from 1) of lines that are none.

    A run that was cut off `ends_in_a_line`: half a last line, which is not among the `unreadable`.
    """

    events: EventLog
    unreadable: tuple[int, ...] = ()
    ends_in_a_line: bool = False


def read_events(path: Path, progress: Callable[[int, int], None] = lambda done, of: None) -> Log:
    """The events of a log; lines that are none are told, not fatal. `progress` takes the bytes read, and of how many.

    Raises:
        LogError: there is no file, it cannot be read, or no line of it is an event.
    """
    try:
        with open_regular(path) as file:
            log = _kept(file, progress)
    except FileNotFoundError as error:
        raise LogError(f"{path}: no such event log") from error
    except OSError as error:
        raise LogError.cannot_read(path, error) from error
    if not log.events:
        raise LogError.no_events(path, len(log.unreadable) + log.ends_in_a_line)
    return log


# The log that was read last, and what is in its file: of a run it is asked for by whoever judges, shows or compares it.
_last: tuple[bytes, Log] | None = None


def _kept(file: BufferedReader, progress: Callable[[int, int], None]) -> Log:
    """The log in `file`, with all that was made of it, if it is the one that was read last."""
    global _last
    digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).digest()
    if _last is not None and _last[0] == digest:
        return _last[1]
    # Not two of them at once.
    _last = None
    file.seek(0)
    with without_collection():
        log = _read(file, progress)
    _last = digest, log
    return log


def _read(file: BufferedReader, progress: Callable[[int, int], None]) -> Log:
    events = EventLog()
    num_bytes = os.fstat(file.fileno()).st_size
    unreadable: list[int] = []
    is_half = False
    for number, line in enumerate(bounded_lines(file), 1):
        if number % _PROGRESS_LINES == 0:
            progress(file.tell(), num_bytes)
        if line is not None and not line.strip():
            continue
        event = None if line is None else parse_line(line)
        if event is not None:
            events.take(event)
        elif line is None or line.endswith(b"\n"):
            unreadable.append(number)
        else:
            is_half = True
    return Log(events, tuple(unreadable), is_half)


def parse_line(line: bytes) -> Event | None:
    """The event of one line; None when it is not one, or when its head would poison what is computed from it."""
    try:
        return with_code(Event.from_json(line))
    except ValueError:
        return None


@contextmanager
def legible(folder: Path) -> Iterator[None]:
    """While something is computed from the log of the run in `folder`, whose events may be none that a run writes.

    Raises:
        LogError: it broke down of them.
    """
    try:
        yield
    except BREAKDOWNS as error:
        raise LogError(
            f"the events of {folder} are not such as a run writes: its log is damaged, or of another version "
            f"({type(error).__name__}: {shown(str(error))})"
        ) from error
