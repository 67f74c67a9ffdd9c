"""The history of a run for the charts: the stretches of the wall clock and the phases of each incident.

All of it comes from `timeline` and `accounting`, so that pictures and figures agree. Times are seconds since the job
started.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from harness.analysis import accounting, throughput
from harness.analysis.incident import RESTORED_RATIO, MeasuredIncident
from harness.analysis.state import build
from harness.analysis.steps import median_work_per_second
from harness.analysis.timeline import Timeline
from harness.report.wording import LAUNCH_PHASES, RECOVERY_PHASES
from mecefo_runtime.system.events import Event

_STANDSTILLS = ("detection", "regroup", "transfer", "repeated_work", "restart", "injection")
_PARTS: Mapping[str, str] = {**RECOVERY_PHASES, "restart": "job restarted"}
"""The stretches of a recovery, in order; each ends where the next begins, so they add up to it."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A milestone of an incident, `seconds` after its fault."""

    kind: str
    words: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Way:
    """The course of an incident: its milestones, and the stretches (key, words, seconds) of its recovery."""

    milestones: tuple[Milestone, ...]
    parts: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault that was active on some ranks."""

    incident: int
    fault: str
    ranks: tuple[int, ...]
    since_seconds: float
    until_seconds: float


@dataclass(frozen=True, slots=True)
class History:
    """`segments` (from, to, cause) fill [0, `end_seconds`]; `stopped` are times in which the job stalled.

    `before` is the median speed before the first fault, `noise_ratio` what `harness.analysis.throughput` says.
    """

    end_seconds: float = 0.0
    segments: tuple[tuple[float, float, str], ...] = ()
    stopped: tuple[tuple[float, float], ...] = ()
    affected: tuple[ActiveFault, ...] = ()
    ways: Mapping[int, Way] = field(default_factory=dict)
    before: float | None = None
    noise_ratio: float | None = None

    @property
    def active(self) -> tuple[tuple[float, float], ...]:
        """The times in which a fault was active or its ranks were missing, overlapping ones joined."""
        return _joined((affected.since_seconds, affected.until_seconds) for affected in self.affected)


def read(events: Iterable[Event]) -> History:
    """The history of a run, from its log."""
    times = build(events)
    begin, end = times.started_seconds, times.ended_seconds
    segments = tuple(
        (piece.start_seconds - begin, piece.end_seconds - begin, piece.cause) for piece in accounting.partition(times)
    )
    affected = tuple(
        ActiveFault(one.incident, one.fault, one.ranks, one.injected - begin, _until(one, end) - begin)
        for one in times.judged
        if one.injected is not None and one.verified is not None
    )
    return History(
        end_seconds=end - begin,
        segments=segments,
        stopped=_joined((since, until) for since, until, cause in segments if cause in _STANDSTILLS),
        affected=affected,
        ways={one.incident: _way(one, one.goes_on, _restarted(one, times)) for one in times.judged},
        before=median_work_per_second(times.before),
        noise_ratio=throughput.measure(times).throughput_noise_ratio,
    )


def shares(
    segments: Sequence[tuple[float, float, str]], end_seconds: float, num_bins: int
) -> dict[str, tuple[float, ...]]:
    """The share of each cause in each of `num_bins` equal stretches of [0, `end_seconds`]; they add up to 1 in each."""
    if end_seconds <= 0 or num_bins < 1:
        return {}
    width = end_seconds / num_bins
    sums: dict[str, list[float]] = {}
    for since, until, cause in segments:
        own = sums.get(cause) or sums.setdefault(cause, [0.0] * num_bins)
        for index in range(max(0, int(since / width)), min(num_bins, int(until / width) + 1)):
            own[index] += max(0.0, min(until, (index + 1) * width) - max(since, index * width))
    return {cause: tuple(seconds / width for seconds in own) for cause, own in sums.items()}


def _until(incident: MeasuredIncident, end: float) -> float:
    """When the fault was over and its ranks were back; the end of the job when that never came."""
    if incident.rejoined is not None and incident.repair_started is not None:
        return incident.rejoined
    if incident.rejoined is not None:
        return max(incident.rejoined, incident.lifted or incident.rejoined)
    # Whoever the job has given up does not come back because the fault is over.
    if incident.lifted is None or (incident.detected is not None and incident.lifted == incident.repair_started):
        return end
    return incident.lifted


def _restarted(incident: MeasuredIncident, times: Timeline) -> float | None:
    """When the launcher of a command had started its ranks again, if that is how the job came through."""
    if incident.injected is None or incident.committed is None:
        return None
    first = bisect_right(times.attempts, incident.injected, key=lambda attempt: attempt.started_seconds)
    at = times.attempts[first].started_seconds if first < len(times.attempts) else inf
    return at if at <= incident.committed else None


def _way(incident: MeasuredIncident, goes_on: bool, restarted: float | None) -> Way:
    if incident.injected is None:
        return Way((), ())
    step = f"step {incident.committed_step} committed, the first begun after the fault"
    reached = [
        ("injected", "notice given" if incident.gives_notice else "fault injected", incident.injected),
        ("verified", "effect verified", incident.verified),
        (
            "detected",
            "ranks released by the job" if incident.gives_notice else "failure detected by the job",
            incident.detected,
        ),
        ("isolated", "in-flight step aborted by all survivors", incident.isolated),
        ("regrouped", "process groups rebuilt, state in place", incident.regrouped),
        ("restarted", "ranks restarted by the launcher", restarted),
        # If the job trained on and did not recover, this is not a recovery.
        ("continued" if incident.violations else "committed", step, incident.committed),
        ("restored", f"speed back to {RESTORED_RATIO:.0%} of full speed", incident.restored),
        ("repair_started", "repair started (as configured)", incident.repair_started),
        ("lifted", "fault over", incident.lifted if goes_on else None),
        ("rejoined", "lost ranks rejoined", incident.rejoined),
    ]
    if incident.progressed != incident.committed:
        reached.append(("progressed", "first new step committed", incident.progressed))
    milestones = [Milestone(kind, words, at - incident.injected) for kind, words, at in reached if at is not None]
    return Way(tuple(sorted(milestones, key=lambda milestone: milestone.seconds)), tuple(_parts(incident, restarted)))


def _parts(incident: MeasuredIncident, restarted: float | None) -> Iterable[tuple[str, str, float]]:
    """The recovery cut where something was reached; what was not, or not in order, is not cut off."""
    if incident.struck is None or incident.committed is None or incident.violations:
        return
    if "launch" in incident.launch_phases:
        known = incident.launch_phases
        yield from ((key, words, known[key]) for key, words in LAUNCH_PHASES.items() if key in known)
        return
    reached = (
        ("detection", None if incident.gives_notice else incident.detected),
        ("isolate", incident.isolated),
        ("regroup", incident.regrouped),
        ("restart", restarted),
        ("first_step", incident.committed),
    )
    cuts: list[tuple[str, float]] = [("", incident.struck)]
    for key, at in reached:
        if at is not None and cuts[-1][1] <= at <= incident.committed:
            cuts.append((key, at))
    for (_, since), (key, until) in pairwise(cuts):
        moved = min(incident.transfer_seconds, until - since) if key == "regroup" else 0.0
        yield key, _PARTS[key], until - since - moved
        if moved > 0:
            yield "transfer", _PARTS["transfer"], moved


def _joined(stretches: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    joined: list[tuple[float, float]] = []
    for since, until in sorted(stretches):
        if joined and since <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], until))
        elif until > since:
            joined.append((since, until))
    return tuple(joined)
