"""Writes events.jsonl: every event is completely in the file before anything acts on it."""

from __future__ import annotations

from pathlib import Path

from chaos.errors import EnvironmentFailure
from mecefo_runtime.system.events import Event


class Recorder:
    """The event log of one run, open for appending, one unbuffered write a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_events = 0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise EnvironmentFailure(f"cannot write the event log {path}: {error.strerror}") from error

    @property
    def num_events(self) -> int:
        """How many it has written."""
        return self._num_events

    def write(self, event: Event) -> None:
        """Append one event.

        Raises:
            EnvironmentFailure: it could not be written (a full disk); a run without its log is worth nothing, so it
            must end.
        """
        line = event.to_json().encode() + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            raise EnvironmentFailure(self._violation(error.strerror)) from error
        if written != len(line):
            raise EnvironmentFailure(self._violation("the disk is full"))
        self._num_events += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _violation(self, reason: str | None) -> str:
        return f"cannot write the event log {self._path}: {reason}. Free some space or choose another place with --out"
