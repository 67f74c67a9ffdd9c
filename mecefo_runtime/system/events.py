"""Events: the one record of a run, one JSON object a line.

Every process of a run (rank, coordinator, node supervisor, injector, conductor) emits events; everything that is shown,
judged or reported is computed from them. `docs/reference/events.md` lists the kinds and their fields.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
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
        return json.dumps(
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
                "fields": dict(self.fields),
            },
            separators=(",", ":"),
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


class Emitter:
    """Stamps events with their origin and time, and passes them to a sink."""

    def __init__(
        self,
        sink: Callable[[Event], None],
        source: str,
        *,
        job: str = MAIN_JOB,
        rank: int | None = None,
        node: int | None = None,
        attempt: int = 1,
    ) -> None:
        self._sink = sink
        self._source = source
        self._job = job
        self._rank = rank
        self._node = node
        self._attempt = attempt

    def of_job(self, job: str) -> Emitter:
        """The same for another job."""
        return Emitter(self._sink, self._source, job=job, rank=self._rank, node=self._node, attempt=self._attempt)

    def of_rank(self, rank: int) -> Emitter:
        """The same, emitting for a rank."""
        return Emitter(self._sink, self._source, job=self._job, rank=rank, node=self._node, attempt=self._attempt)

    def emit(
        self, kind: str, *, step: int | None = None, monotonic_seconds: float | None = None, **fields: Any
    ) -> Event:
        """Emit one event, as of now or of `monotonic_seconds`; returns it."""
        now = time.monotonic()
        happened = now if monotonic_seconds is None else monotonic_seconds
        event = Event(
            kind=kind,
            source=self._source,
            time_seconds=time.time() - (now - happened),
            monotonic_seconds=happened,
            pid=os.getpid(),
            attempt=self._attempt,
            job=self._job,
            rank=self._rank,
            node=self._node,
            step=step,
            fields=fields,
        )
        self._sink(event)
        return event


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
