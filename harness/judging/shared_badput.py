"""Badput that several incidents may have caused: they were at work together, and one of them answers for it.

No measurement tells which of two active faults slowed a step. So the time is charged whole, to the incident injected
last, and what of it is in doubt is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, inf

from harness.analysis.accounting import Segment, partition
from harness.analysis.timeline import Timeline

_IN_DOUBT = frozenset({"regroup", "transfer", "repeated_work", "degraded_speed", "restart"})
"""Causes that do not name their incident, and are there because of one."""


@dataclass(frozen=True, slots=True)
class SharedBadput:
    """So many seconds of the badput that `incident` answers for came while others, injected before, were at work.

    `times` are those of all incidents, by when they were injected, of which `num_before` came before this one; its own
    badput in doubt began at `first_seconds`.
    """

    incident: int
    seconds: float
    times: Sequence[tuple[int, float, float]]
    num_before: int
    first_seconds: float

    @property
    def others(self) -> tuple[int, ...]:
        """Those incidents. They are looked for when they are told: of many that are at work together few are."""
        since = self.times[self.num_before][1]
        earliest = max(since, self.first_seconds)
        return tuple(sorted(other for other, _, until in self.times[: self.num_before] if until > earliest))


def shared_badput(timeline: Timeline) -> tuple[SharedBadput, ...]:
    """By incident, in the order of injection; without those that were alone."""
    times = sorted(_times(timeline), key=lambda one: one[1:])
    # Until when one of those before was at work.
    longest = list(accumulate((until for _, _, until in times), max, initial=-inf))
    together = {number: place for place, (number, since, _) in enumerate(times) if longest[place] > since}
    if not together:
        return ()
    own: dict[int, list[Segment]] = {}
    for segment in partition(timeline):
        if segment.incident in together and segment.cause in _IN_DOUBT:
            own.setdefault(segment.incident, []).append(segment)
    found: list[SharedBadput] = []
    for number, place in together.items():
        segments = own.get(number, ())
        seconds = fsum(max(0.0, min(one.end_seconds, longest[place]) - one.start_seconds) for one in segments)
        if seconds > 0.0:
            first = min(one.start_seconds for one in segments)
            found.append(SharedBadput(number, seconds, times, place, first))
    return tuple(found)


def _times(timeline: Timeline) -> Iterable[tuple[int, float, float]]:
    """(incident, from, to) in which each verified incident was at work."""
    for incident in timeline.incidents:
        if incident.injected is not None and incident.verified is not None:
            yield incident.incident, incident.injected, incident.over
