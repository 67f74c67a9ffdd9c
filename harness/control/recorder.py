"""Writes events.jsonl: every event is completely in the file before anything acts on it."""

from __future__ import annotations

from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.host.inherited import why
from mecefo_runtime.system.events import Event

ELSEWHERE = "choose another place with --out"


class Recorder:
    """The event log of one run, open for appending, one unbuffered write a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_events = 0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise EnvironmentFailure(f"cannot write the event log {path}: {why(error, ELSEWHERE)}") from error

    @property
    def num_events(self) -> int:
        """How many it has written."""
        return self._num_events

    def write(self, event: Event) -> None:
        """Append one event.

        Raises:
            EnvironmentFailure: it could not be written (a full disk, a limit); a run without its log is worth nothing,
            so it must end.
        """
        left = event.to_json().encode() + b"\n"
        try:
            # What did not fit is written once more: that is what says whether the disk is full or the file too large.
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise EnvironmentFailure(f"cannot write the event log {self._path}: {why(error, ELSEWHERE)}") from error
        self._num_events += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()
