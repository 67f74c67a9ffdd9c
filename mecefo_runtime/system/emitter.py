"""Emits records as events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from mecefo_runtime.system.clocks import Moment
from mecefo_runtime.system.events import MAIN_JOB, Event, Origin
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

    def emit(self, record: Record, *, step: int | None = None, monotonic_seconds: float | None = None) -> Event:
        """Emit `record` as an event of `step`, as of now or of `monotonic_seconds`; returns the event."""
        now = time.monotonic()
        happened = now if monotonic_seconds is None else monotonic_seconds
        seconds, fields = time.time() - (now - happened), record.to_fields()
        emitter = os.getpid(), self._attempt, self._job, self._rank, self._node
        origin = None
        # Rare, and checked for every event: `in` and `map` run in C.
        if type(happened) is Moment or Moment in map(type, fields.values()):
            origin = Origin.of_repeated({"monotonic": happened, **fields})
        event = Event(record.KIND, self._source, seconds, happened, *emitter, step, fields, origin)
        self._sink(event)
        return event
