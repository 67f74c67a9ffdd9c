"""The one place where pids and times of other processes are translated to those of this host and clock.

A process of a run may be in another PID namespace (a container), in another time namespace, or on another host. Pids of
this host are translated, and pids of another host are marked with it. Times are mapped to the clock of this process
once, before the event is written and before anything acts on it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from harness.control.pid_namespaces import HostPids
from mecefo_runtime.system.clocks import (
    MOMENT_SUFFIX,
    NUM_SAMPLES,
    ClockMapping,
    ClockSample,
    is_same_kernel,
    this_clock,
)
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import PID_FIELDS, Event, Origin
from mecefo_runtime.system.host import ForeignPid, Host
from mecefo_runtime.system.json_values import whole
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.run_records import ClockSampled
from mecefo_runtime.system.strangers import read_line
from mecefo_runtime.system.wire import CLOCK_ASKED, CLOCK_KNOWN, Message

_SAMPLE_TIMEOUT_SECONDS = 10.0
_MAX_CLOCK_CHARACTERS = 256
_MAX_NUMBER = 1 << 31
# One every two seconds: of each time those near it count.
_KEPT_SAMPLES = 8
_TOLD_SECONDS = 60.0
# Longer than any machine has been running.
_MAX_SECONDS = 2.5e10


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connected, as a kernel reports it: that of this host, or of another one whose agent passes it on.

    `pid` is its pid on this host, None where the kernel does not report it. `process` is known of another host's alone,
    with the `clock` of that host. `node` is the node that its host is, where nodes are hosts.
    """

    pid: int | None = None
    uid: int = 0
    process: ProcessId | None = None
    clock: str = ""
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of one connection.

    `host` is None for this host, and `clock` is "" for the clock of this process; `mappings` has the mapping of each
    other clock.
    """

    host_pids: HostPids
    caller: Caller
    host: Host | None = None
    clock: str = ""
    mappings: Mapping[str, ClockMapping] = field(default_factory=dict)

    @property
    def pid(self) -> int | None:
        """Its pid on this host, None where the kernel does not report it."""
        return self.caller.pid

    @property
    def mapping(self) -> ClockMapping | None:
        """The newest mapping of its clock; None: it is the clock of this process."""
        return self.mappings[self.clock] if self.clock else None

    def process(self, hello: Message) -> ProcessId:
        """The connected process, as its hello identifies it.

        Raises:
            ProcessLookupError: it is gone.
            ValueError, KeyError: the numbers in `hello` are none.
        """
        if self.caller.process is not None:
            return self.caller.process
        if self.host is not None:
            return ProcessId(whole(hello["pid"], _MAX_NUMBER), whole(hello["start_ticks"]), self.host)
        return ProcessId.of(whole(hello["pid"], _MAX_NUMBER) if self.pid is None else self.pid)

    def event(self, event: Event) -> Event:
        """An event that it sent, with pids and times of this host."""
        if self.host is None and self.pid is not None:
            event = self.host_pids.of_event(event, self.pid)
        if self.caller.node is not None and event.node is not None:
            event = replace(event, node=self.caller.node)
        mapping = self.mapping
        if mapping is not None:
            return self._mapped(event, mapping)
        return event if self.host is None else self._marked(event, Origin(self.host, this_clock(), 0.0, {}))

    def message(self, message: Message) -> Message:
        """A message of its agent, with times of this clock."""
        if self.mapping is None:
            return message
        mapped: Message = self.mapping.moments(message)
        return mapped

    def _mapped(self, event: Event, mapping: ClockMapping) -> Event:
        times = {"monotonic": event.monotonic_seconds} | {
            name: value
            for name, value in event.fields.items()
            if name.endswith(MOMENT_SUFFIX) and type(value) in (int, float)
        }
        moments = {name: mapping.moment(seconds) for name, seconds in times.items()}
        uncertainty_seconds = max(moment.uncertainty_seconds for moment in moments.values())
        raw = {name: moment.raw_seconds for name, moment in moments.items()}
        fields = {name: moments.get(name, value) for name, value in event.fields.items()}
        mapped = replace(event, monotonic_seconds=moments["monotonic"], fields=fields)
        return self._marked(mapped, Origin(self.host, mapping.clock, uncertainty_seconds, raw))

    def _marked(self, event: Event, origin: Origin) -> Event:
        told = {name: origin.field(name, value) for name, value in event.fields.items()}
        return replace(
            event,
            monotonic_seconds=origin.moment("monotonic", event.monotonic_seconds),
            pid=event.pid if self.host is None else ForeignPid(event.pid, self.host),
            fields=self._with_ticks_of_here(told),
            origin=origin,
        )

    def _with_ticks_of_here(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start times as this process reads them: in another time namespace they have another origin."""
        if self.host is not None or "start_ticks" not in fields:
            return fields
        pid = next((int(fields[name]) for name in PID_FIELDS if isinstance(fields.get(name), int)), 0)
        with suppress(ProcessLookupError):
            return {**fields, "start_ticks": ProcessId.of(pid).start_ticks}
        return fields


class Peers:
    """Identifies the processes that connect, and samples the clocks of those that do not share this clock."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._host_pids = HostPids()
        self._mappings: dict[str, ClockMapping] = {}
        # When the log was told of a clock last.
        self._told_seconds: dict[str, float] = {}

    async def meet(
        self, hello: Message, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Peer:
        """The other end of a connection whose first message is `hello`.

        Raises:
            OSError, ValueError, KeyError: its clock or host is malformed, or it does not answer.
        """
        other = None if caller.process is None else caller.process.host
        if "clock" not in hello:
            return self._peer(caller, other, caller.clock)
        clock, host = hello["clock"], Host.from_json(hello["host"])
        if not isinstance(clock, str) or len(clock) > _MAX_CLOCK_CHARACTERS:
            raise ValueError("a clock is a text")
        if clock == caller.clock and clock in self._mappings:
            # Its agent has sampled it, and does so again and again. Who reports a clock waits for a word.
            writer.write(CLOCK_KNOWN)
            return self._peer(caller, other, clock)
        is_here = is_same_kernel(clock, this_clock()) and host.boot == this_clock().partition(" ")[0]
        samples = []
        # A process that reports a clock waits for the questions, also if the clock is this one.
        async with asyncio.timeout(_SAMPLE_TIMEOUT_SECONDS):
            for _ in range(NUM_SAMPLES):
                sent = time.monotonic()
                writer.write(CLOCK_ASKED)
                answer = await read_line(reader)
                samples.append(ClockSample(sent, _seconds(answer), time.monotonic()))
        writer.write(CLOCK_KNOWN)
        if other is None and not is_here:
            other = host
        if clock != this_clock():
            self.learn(ClockMapping.of(clock, samples), other)
        return self._peer(caller, other, clock)

    def _peer(self, caller: Caller, host: Host | None, clock: str) -> Peer:
        return Peer(self._host_pids, caller, host, "" if clock == this_clock() else clock, self._mappings)

    def learn(self, newest: ClockMapping, host: Host | None, *, is_regular: bool = False) -> None:
        """A clock was sampled. Of one that cannot drift the first samples count: differences of its times are exact.

        Of one that is sampled regularly, the log is told once a minute.
        """
        known = self._mappings.get(newest.clock)
        if known is not None and not known.drift_ratio:
            return
        # Of each time those samples count that were made near it.
        earlier = () if known is None else known.samples
        best_of = (min(newest.samples, key=lambda sample: sample.uncertainty_seconds),)
        samples = newest.samples if known is None else (earlier + best_of)[-_KEPT_SAMPLES:]
        self._mappings[newest.clock] = replace(newest, samples=samples)
        now = time.monotonic()
        if is_regular and now - self._told_seconds.get(newest.clock, -math.inf) < _TOLD_SECONDS:
            return
        self._told_seconds[newest.clock] = now
        best = min(newest.samples, key=lambda sample: sample.uncertainty_seconds)
        self._emitter.emit(
            ClockSampled(
                other_clock=newest.clock,
                other_host=None if host is None else tuple(host.to_json()),
                offset_seconds=round(best.offset_seconds, 9),
                uncertainty_seconds=round(best.uncertainty_seconds, 9),
                drift_ratio=newest.drift_ratio,
                num_samples=len(newest.samples),
            )
        )

    def mapping(self, clock: str) -> ClockMapping | None:
        """The newest mapping of a clock; None: it is the clock of this process, or was never sampled."""
        return self._mappings.get(clock)


def _seconds(answer: bytes) -> float:
    """The time in an answer.

    Raises:
        ValueError: it is not a number, or out of range.
    """
    seconds = float(answer)
    if not abs(seconds) < _MAX_SECONDS:
        raise ValueError("a time is expected")
    return seconds
