"""Which incident a detection, and the regroup that follows it, belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.regroups import Stall
from mecefo_runtime.system.job_records import Detected
from mecefo_runtime.system.run_records import Injected


def assign_detections(
    detections: Sequence[Detected], injections: Mapping[int, Injected], recoveries: Mapping[int, float]
) -> dict[int, float]:
    """For every incident the time of the first detection at or after its injection that is its own.

    A lost rank counts for the incident that affected it last; a detection that names no affected rank (an eviction,
    say) counts for the incident injected last, unless that one has no ranks (the coordinator is no member), was
    detected already, or was over: `recoveries` are the times of those that the job recovered from.
    """
    assigned: dict[int, float] = {}
    for detected in detections:
        at = detected.monotonic_seconds
        earlier = {i: injected for i, injected in injections.items() if injected.monotonic_seconds <= at}
        latest_first = sorted(earlier, key=lambda i: earlier[i].monotonic_seconds, reverse=True)
        own = {
            next(i for i in latest_first if rank in earlier[i].ranks)
            for rank in detected.lost
            if any(rank in injected.ranks for injected in earlier.values())
        }
        if not own and latest_first and earlier[latest_first[0]].ranks:
            is_over = recoveries.get(latest_first[0], at) < at
            own = set() if is_over else {latest_first[0]}
        for i in own:
            assigned.setdefault(i, at)
    return assigned


def own_stalls(incident: int, detections: Mapping[int, float], stalls: Sequence[Stall]) -> tuple[Stall, ...]:
    """The stalls that may be of `incident`: not those that others brought about, over before it was detected.

    A rank that is slow, or whose numbers are wrong, is lost to nobody; what is affected with it may be. A link that
    comes and goes may be noticed long after a rank that died at the same moment.
    """
    detected = detections.get(incident)
    return tuple(
        stall
        for stall in stalls
        if (detected is not None and detected <= stall.ended_seconds)
        or not any(stall.began_seconds <= at <= stall.ended_seconds for at in detections.values())
    )
