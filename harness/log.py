"""Reads the event log of a run, whole or cut off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from mecefo_runtime.events import Event


class LogError(Exception):
    """There is no event log to read: the file is missing, unreadable, or holds no event."""


def read_events(path: Path) -> tuple[list[Event], int]:
    """The events of a log, in the order of the file, and the number of lines that are no events.

    A run that was cut off leaves half a last line, a full disk may leave holes: such lines are counted, not fatal.

    Raises:
        LogError: there is no file, it cannot be read, or no line of it is an event.
    """
    events: list[Event] = []
    num_unreadable = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.strip():
                    continue
                event = parse_line(line)
                if event is None:
                    num_unreadable += 1
                else:
                    events.append(event)
    except FileNotFoundError as error:
        raise LogError(f"{path}: no such event log") from error
    except OSError as error:
        raise LogError(f"{path}: the event log cannot be read: {error.strerror or error}") from error
    if not events:
        raise LogError(f"{path}: no events in it ({num_unreadable} unreadable lines); the run ended before it began")
    return events, num_unreadable


def parse_line(line: bytes) -> Event | None:
    """The event of one line; None when it is not one, or when its figures would poison what is computed from it."""
    try:
        event = Event.from_json(line)
    except (ValueError, OverflowError, RecursionError):
        return None
    is_sound = (
        isinstance(event.kind, str)
        and isinstance(event.job, str)
        and isinstance(event.fields, Mapping)
        and (event.step is None or isinstance(event.step, int))
        and math.isfinite(event.monotonic_seconds)
        and math.isfinite(event.time_seconds)
    )
    return event if is_sound else None
