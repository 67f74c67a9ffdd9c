"""Events: the one record of a run, one JSON object a line.

Every process of a run (rank, coordinator, node supervisor, injector, conductor) emits events; everything that is shown,
judged or reported is computed from them. `docs/reference/events.md` lists the kinds and their fields.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from mecefo_runtime.system.strict_json import loads

# Until the year 9999 (`datetime.MAXYEAR`).
_MAX_SECONDS = 2.5e11
# Of processes, and of starts.
_MAX_NUMBER = 1 << 31
_MAX_STEP = 1 << 53
_MAX_PLACES = 1 << 24
MAIN_JOB = "main"
TWIN_JOB = "twin"
# `json.dumps` makes an encoder with each call, and looks for circles, of which there are none.
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    `time_seconds` is Unix time, for people; `monotonic_seconds` is CLOCK_MONOTONIC, which all processes of one host
    share: durations are differences of it. `attempt` counts the starts of the emitting rank or node, from 1: together
    with `pid` it separates the last events of a dying process from the first ones of its successor.
    """

    kind: str
    source: str
    time_seconds: float
    monotonic_seconds: float
    pid: int
    attempt: int = 1
    job: str = MAIN_JOB
    rank: int | None = None
    node: int | None = None
    step: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The event as one line of JSON, without the newline."""
        return _ENCODE(
            {
                "time": round(self.time_seconds, 6),
                "monotonic": round(self.monotonic_seconds, 6),
                "job": self.job,
                "source": self.source,
                "rank": self.rank,
                "node": self.node,
                "pid": self.pid,
                "attempt": self.attempt,
                "step": self.step,
                "kind": self.kind,
                "fields": self.fields if type(self.fields) is dict else dict(self.fields),
            }
        )

    @classmethod
    def from_json(cls, line: str | bytes) -> Event:
        """Read one line, which anybody may have written.

        Raises:
            ValueError: the line is not a complete event (a run that was cut off ends in one of those), or its head is
                not such as a run writes. What its fields are, the record of its kind tells.
        """
        try:
            raw = loads(line)
            seconds, monotonic, pid, attempt = raw["time"], raw["monotonic"], raw["pid"], raw["attempt"]
            kind, source, job, fields = raw["kind"], raw["source"], raw["job"], raw["fields"]
            rank, node, step = raw["rank"], raw["node"], raw["step"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an event: {error}") from error
        # Of each of a million lines, so in one go. True and False are no numbers here.
        is_sound = (
            (type(kind) is type(source) is type(job) is str and type(fields) is dict)
            and (type(seconds) is float or type(seconds) is int)
            and (type(monotonic) is float or type(monotonic) is int)
            and -_MAX_SECONDS < seconds < _MAX_SECONDS
            and -_MAX_SECONDS < monotonic < _MAX_SECONDS
            and (type(pid) is type(attempt) is int and abs(pid) < _MAX_NUMBER and abs(attempt) < _MAX_NUMBER)
            and (rank is None or (type(rank) is int and abs(rank) < _MAX_PLACES))
            and (node is None or (type(node) is int and abs(node) < _MAX_PLACES))
            and (step is None or (type(step) is int and abs(step) < _MAX_STEP))
        )
        if not is_sound:
            raise ValueError("not an event: its head is none that a run writes")
        # There are few of them, and each is in very many events.
        kind, source, job = intern(kind), intern(source), intern(job)
        return cls(kind, source, float(seconds), float(monotonic), pid, attempt, job, rank, node, step, fields)


class SocketSink:
    """Sends events as lines over a connected stream socket; losing the collector never stops a training process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write the line into the kernel's buffer, where it outlives this process."""
        line = event.to_json().encode() + b"\n"
        try:
            with self._lock:
                self._connection.sendall(line)
        except OSError:
            # The collector is gone, and with it whoever would read this. Training is worth more than its record.
            return
