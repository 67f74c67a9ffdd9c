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

from mecefo_runtime.system.clocks import Moment
from mecefo_runtime.system.host import ForeignPid, Host
from mecefo_runtime.system.json_values import loads

# Until the year 9999 (`datetime.MAXYEAR`).
_MAX_SECONDS = 2.5e11
# Of processes, and of starts.
_MAX_NUMBER = 1 << 31
_MAX_STEP = 1 << 53
_MAX_PLACES = 1 << 24
PID_FIELDS = frozenset({"started_pid", "exited_pid", "parent_pid"})
"""Fields of events that hold the pid of another process of the emitter's host."""
MAIN_JOB = "main"
BASELINE_JOB = "twin"
# `json.dumps` makes an encoder with each call, and looks for circles, of which there are none.
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Origin:
    """The host and clock of an event whose emitter does not share the clock by which the run is recorded.

    `host` is the host of its pids, None for the host of the run. `raw` has the times as the emitter's `clock` read
    them, by name: `monotonic`, and fields. The error of their mapped values is at most `uncertainty_seconds`.
    """

    host: Host | None
    clock: str
    uncertainty_seconds: float
    raw: Mapping[str, float]

    @classmethod
    def of_repeated(cls, values: Mapping[str, Any]) -> Origin:
        """The origin of an event of the run's host some of whose times were mapped from another clock."""
        moments = {name: value for name, value in values.items() if type(value) is Moment}
        clock = next(iter(moments.values())).clock
        uncertainty_seconds = max(moment.uncertainty_seconds for moment in moments.values())
        raw = {name: moment.raw_seconds for name, moment in moments.items() if moment.clock == clock}
        return cls(None, clock, uncertainty_seconds, raw)

    def to_json(self) -> dict[str, Any]:
        """The keys that it adds to the line of its event."""
        host = {} if self.host is None else {"host": self.host.to_json()}
        return {**host, "clock": self.clock, "uncertainty": self.uncertainty_seconds, "raw": dict(self.raw)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Origin:
        """Read them.

        Raises:
            KeyError, ValueError: a key is missing or malformed.
        """
        clock, uncertainty, times = raw["clock"], raw["uncertainty"], raw["raw"]
        numbers = [uncertainty, *(times.values() if isinstance(times, dict) else (None,))]
        if type(clock) is not str or not all(type(one) in (int, float) and abs(one) < _MAX_SECONDS for one in numbers):
            raise ValueError("its clock is malformed")
        host = None if raw.get("host") is None else Host.from_json(raw["host"])
        return cls(host, clock, float(uncertainty), {name: float(one) for name, one in times.items()})

    def moment(self, name: str, seconds: float) -> float:
        """The time of that name, with its uncertainty."""
        raw = self.raw.get(name)
        return seconds if raw is None else Moment(seconds, raw, self.uncertainty_seconds, self.clock)

    def field(self, name: str, value: Any) -> Any:
        """A field of its event: a time with its uncertainty, a pid with its host, any other value as it is."""
        if name in self.raw and type(value) in (int, float):
            return self.moment(name, value)
        is_foreign_pid = self.host is not None and name in PID_FIELDS and type(value) is int
        return ForeignPid(value, self.host) if is_foreign_pid and self.host is not None else value


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    `time_seconds` is Unix time, for people; `monotonic_seconds` is CLOCK_MONOTONIC of the host that records the run:
    durations are differences of it. `origin` is None for all who share that clock. `attempt` counts the starts of the
    emitting rank or node, from 1: together with `pid` it separates the last events of a dying process from the first
    ones of its successor.
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
    origin: Origin | None = None

    @property
    def host(self) -> Host | None:
        """The host of its pids; None: the host of the run."""
        return None if self.origin is None else self.origin.host

    def to_json(self) -> str:
        """The event as one line of JSON, without the newline."""
        line = {
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
        if self.origin is not None:
            line |= self.origin.to_json()
        return _ENCODE(line)

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
            origin = Origin.from_json(raw) if "clock" in raw else None
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
        moment = float(monotonic)
        if origin is not None:
            moment = origin.moment("monotonic", moment)
            fields = {name: origin.field(name, value) for name, value in fields.items()}
            if origin.host is not None:
                pid = ForeignPid(pid, origin.host)
        return cls(kind, source, float(seconds), moment, pid, attempt, job, rank, node, step, fields, origin)


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
