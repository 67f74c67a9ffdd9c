"""Badput that several incidents may have caused: they were at work together, and one of them answers for it.

No measurement tells which of two active faults slowed a step. So the time is charged whole, to the incident injected
last, and what of it is in doubt is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, inf

from harness.analysis.accounting import Segment, partition
from harness.analysis.timeline import Timeline

_IN_DOUBT = frozenset({"regroup", "transfer", "repeated_work", "degraded_speed", "restart"})
"""Causes that do not name their incident, and are there because of one."""


@dataclass(frozen=True, slots=True)
class SharedBadput:
    """So many seconds of the badput that `incident` answers for came while `others`, injected before, were at work."""

    incident: int
    others: tuple[int, ...]
    seconds: float


def shared_badput(timeline: Timeline) -> tuple[SharedBadput, ...]:
    """By incident, in the order of injection; without those that were alone."""
    times = sorted(_times(timeline), key=lambda one: one[1:])
    together: dict[int, list[tuple[int, float]]] = {}
    active: list[tuple[int, float]] = []
    for number, since, until in times:
        active = [one for one in active if one[1] > since]
        if active:
            together[number] = active.copy()
        active.append((number, until))
    if not together:
        return ()
    own: dict[int, list[Segment]] = {}
    for segment in partition(timeline):
        if segment.incident in together and segment.cause in _IN_DOUBT:
            own.setdefault(segment.incident, []).append(segment)
    found = (_shared(number, others, own.get(number, ())) for number, others in together.items())
    return tuple(one for one in found if one.seconds > 0.0)


def _shared(number: int, others: Sequence[tuple[int, float]], segments: Sequence[Segment]) -> SharedBadput:
    last = max(until for _, until in others)
    seconds = fsum(max(0.0, min(one.end_seconds, last) - one.start_seconds) for one in segments)
    first = min((one.start_seconds for one in segments), default=inf)
    return SharedBadput(number, tuple(sorted(other for other, until in others if until > first)), seconds)


def _times(timeline: Timeline) -> Iterable[tuple[int, float, float]]:
    """(incident, from, to) in which each verified incident was at work."""
    for incident in timeline.incidents:
        if incident.injected is not None and incident.verified is not None:
            yield incident.incident, incident.injected, incident.over
