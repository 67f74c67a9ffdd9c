"""Reads the event log of a run, whole or cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from chaos.errors import EnvironmentFailure, shown
from chaos.user_files import bounded_lines, open_regular
from mecefo_runtime.system.events import Event

# Of what stands in the fields of events that no run writes.
BREAKDOWNS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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

    events: list[Event]
    unreadable: tuple[int, ...] = ()
    ends_in_a_line: bool = False


def read_events(path: Path) -> Log:
    """The events of a log; lines that are none are told, not fatal.

    Raises:
        LogError: there is no file, it cannot be read, or no line of it is an event.
    """
    events: list[Event] = []
    unreadable: list[int] = []
    is_half = False
    try:
        with open_regular(path) as file:
            for number, line in enumerate(bounded_lines(file), 1):
                if line is not None and not line.strip():
                    continue
                event = None if line is None else parse_line(line)
                if event is not None:
                    events.append(event)
                elif line is None or line.endswith(b"\n"):
                    unreadable.append(number)
                else:
                    is_half = True
    except FileNotFoundError as error:
        raise LogError(f"{path}: no such event log") from error
    except OSError as error:
        raise LogError.cannot_read(path, error) from error
    if not events:
        raise LogError.no_events(path, len(unreadable) + is_half)
    return Log(events, tuple(unreadable), is_half)


def parse_line(line: bytes) -> Event | None:
    """The event of one line; None when it is not one, or when its head would poison what is computed from it."""
    try:
        return Event.from_json(line)
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
