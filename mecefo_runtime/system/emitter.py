"""Emits records as events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from mecefo_runtime.system.clocks import Moment, this_clock
from mecefo_runtime.system.events import MAIN_JOB, Event, Origin
from mecefo_runtime.system.host import ForeignPid, Host
from mecefo_runtime.system.record import Record


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
        host: Host | None = None,
    ) -> None:
        self._host = host
        self._sink = sink
        self._source = source
        self._job = job
        self._rank = rank
        self._node = node
        self._attempt = attempt

    def with_sink(self, sink: Callable[[Event], None]) -> Emitter:
        """The same, with another receiver."""
        return Emitter(
            sink, self._source, job=self._job, rank=self._rank, node=self._node, attempt=self._attempt, host=self._host
        )

    def of_job(self, job: str) -> Emitter:
        """The same for another job."""
        return self._with(job=job)

    def of_rank(self, rank: int) -> Emitter:
        """The same, emitting for a rank."""
        return self._with(rank=rank)

    def of_host(self, host: Host) -> Emitter:
        """The same, of processes of another host: the pids in what it emits are valid there."""
        return self if host.is_here else self._with(host=host)

    def _with(self, *, job: str | None = None, rank: int | None = None, host: Host | None = None) -> Emitter:
        return Emitter(
            self._sink,
            self._source,
            job=self._job if job is None else job,
            rank=self._rank if rank is None else rank,
            node=self._node,
            attempt=self._attempt,
            host=self._host if host is None else host,
        )

    def emit(self, record: Record, *, step: int | None = None, monotonic_seconds: float | None = None) -> Event:
        """Emit `record` as an event of `step`, as of now or of `monotonic_seconds`; returns the event."""
        now = time.monotonic()
        happened = now if monotonic_seconds is None else monotonic_seconds
        seconds, fields = time.time() - (now - happened), record.to_fields()
        # This process has no pid on another host.
        pid = os.getpid() if self._host is None else ForeignPid(0, self._host)
        emitter = pid, self._attempt, self._job, self._rank, self._node
        origin = None
        # Rare, and checked for every event: `in` and `map` run in C.
        if type(happened) is Moment or Moment in map(type, fields.values()):
            origin = Origin.of_repeated({"monotonic": happened, **fields})
        if self._host is not None:
            origin = Origin(self._host, this_clock(), 0.0, {}) if origin is None else replace(origin, host=self._host)
            fields = {name: origin.field(name, value) for name, value in fields.items()}
        event = Event(record.KIND, self._source, seconds, happened, *emitter, step, fields, origin)
        self._sink(event)
        return event
