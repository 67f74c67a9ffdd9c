"""Where the time went: every second of the main job is productive or belongs to exactly one cause of badput.

The wall clock is cut at every event that matters; each piece goes to the strongest claim on it. So productive and
badput add up to the wall clock by construction, over the run and over the time that each incident answers for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from math import fsum, inf
from statistics import median

from harness.analysis.incident import MeasuredIncident
from harness.analysis.regroups import Stall
from harness.analysis.steps import CommittedStep, median_step_seconds
from harness.analysis.timeline import Timeline

BADPUT_CAUSES: Mapping[str, str] = {
    "startup": "from the start of the job to its first step",
    "injection": "ranks held by the injector: the tool's own doing",
    "detection": "from the injection of a fault to its detection, or to the end of a job that never noticed",
    "regroup": "from detection to a membership that works again, and the regroups that take ranks back",
    "transfer": "moving parameters and optimizer state to where they are needed",
    "repeated_work": "work of an attempt at a step that was thrown away or not fit, and of steps done again",
    "degraded_speed": "steps with ranks missing or a fault in force: what they took beyond the pre-fault median",
    "restart": "standing still without a coordinator, under repair, or until all ranks of a job were started again",
    "checkpoint": "training that waited for a checkpoint to be copied; it is written beside the training",
    "other": "what no event explains, such as the teardown after the last step",
}
PRODUCTIVE = "productive"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the wall clock, with its cause and the incident that answers for it (None: before any)."""

    start_seconds: float
    end_seconds: float
    cause: str
    incident: int | None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True)
class Account:
    """Sums over segments: `productive_seconds` plus all of `badput_seconds` is `wall_clock_seconds`."""

    wall_clock_seconds: float
    productive_seconds: float
    badput_seconds: Mapping[str, float]

    @property
    def goodput_ratio(self) -> float | None:
        """Productive time over wall clock; None of no time at all."""
        return self.productive_seconds / self.wall_clock_seconds if self.wall_clock_seconds > 0 else None


class Strength(IntEnum):
    """Whose claim on a piece of time wins: the highest."""

    NOTHING = 0
    STARTUP = 1
    GAP = 2  # between two steps, with nothing else going on: belongs to the step that follows
    ABSENCE = 3  # no coordinator, or a repair under way: costs only what no attempt at a step fills
    ATTEMPT = 4
    CHECKPOINT = 5
    THROWN_AWAY = 6
    HOLD = 7
    DETECTION = 8
    REGROUP = 9
    TRANSFER = 10
    REGROUP_WITHOUT_COORDINATOR = 11


@dataclass(frozen=True, slots=True)
class Claim:
    """That the time from `start` to `end` (CLOCK_MONOTONIC seconds) went into `cause`; `incident` answers for it."""

    start: float
    end: float
    strength: Strength
    cause: str
    incident: int | None = None
    step: int | None = None  # index of the step whose own time this is


def account(segments: Iterable[Segment]) -> Account:
    """The sums over `segments`, with every cause named."""
    lengths: dict[str, list[float]] = {cause: [] for cause in (PRODUCTIVE, *BADPUT_CAUSES)}
    for segment in segments:
        lengths[segment.cause].append(segment.seconds)
    badput = {cause: fsum(lengths[cause]) for cause in BADPUT_CAUSES}
    everything = [seconds for parts in lengths.values() for seconds in parts]
    return Account(fsum(everything), fsum(lengths[PRODUCTIVE]), badput)


def partition(timeline: Timeline) -> tuple[Segment, ...]:
    """The wall clock of the main job, `job_started` to `job_ended`, as adjacent segments in the order of time.

    A segment belongs to the incident that its cause names, otherwise to the incident injected last before it.
    """
    start, end = timeline.started_seconds, timeline.ended_seconds
    injections = sorted((i.injected, i.incident) for i in timeline.incidents if i.injected is not None)
    claims = [Claim(start, end, Strength.NOTHING, "other"), *_claims(timeline)]
    pieces: list[tuple[Segment, int | None]] = []
    for left, right, claim in resolve(start, end, claims, [time for time, _ in injections]):
        latest = bisect_right(injections, (left, inf)) - 1
        owner = claim.incident if claim.incident is not None else injections[latest][1] if latest >= 0 else None
        pieces.append((Segment(left, right, claim.cause, owner), claim.step))
    return tuple(_charge_slow_steps(pieces, timeline))


def step_cause(step: CommittedStep) -> str:
    """What the time of a step that is committed for the first time went into: one that was left out taught nothing."""
    return "repeated_work" if step.is_left_out else PRODUCTIVE


def resolve(
    start: float, end: float, claims: Iterable[Claim], cuts: Iterable[float] = ()
) -> Iterable[tuple[float, float, Claim]]:
    """The time from `start` to `end` as adjacent pieces (from, to, claim), each with the strongest claim on it.

    One of the claims has to hold for all of that time. Pieces are also cut at `cuts`.
    """
    waiting = sorted(claims, key=lambda claim: claim.start, reverse=True)
    times = [*(time for claim in waiting for time in (claim.start, claim.end)), *cuts]
    # The strongest on top, of several the one that ends first, of several the one that began first.
    active: list[tuple[int, float, int, Claim]] = []
    for left, right in pairwise(sorted({time for time in times if start < time < end} | {start, end})):
        while waiting and waiting[-1].start <= left:
            claim = waiting.pop()
            heappush(active, (-claim.strength, claim.end, -len(waiting), claim))
        while active[0][1] <= left:
            heappop(active)
        yield left, right, active[0][-1]


def _charge_slow_steps(pieces: Iterable[tuple[Segment, int | None]], timeline: Timeline) -> Iterable[Segment]:
    """Split the time of each degraded step: what a pre-fault step takes is productive, the rest is degraded speed."""
    reference = median_step_seconds(timeline.baseline)
    slow = {index for index, step in enumerate(timeline.steps.first) if timeline.is_degraded(step)}
    left_over: dict[int, float] = {}
    for segment, step in pieces:
        if step is None or step not in slow or reference is None:
            yield segment
            continue
        allowed = left_over.get(step, reference)
        left_over[step] = max(0.0, allowed - segment.seconds)
        turn = segment.start_seconds + allowed
        if allowed <= 0.0 or turn >= segment.end_seconds:
            cause = segment.cause if allowed > 0.0 else "degraded_speed"
            yield Segment(segment.start_seconds, segment.end_seconds, cause, segment.incident)
        else:
            yield Segment(segment.start_seconds, turn, segment.cause, segment.incident)
            yield Segment(turn, segment.end_seconds, "degraded_speed", segment.incident)


def _claims(timeline: Timeline) -> Iterable[Claim]:
    steps = timeline.steps.first
    first_began = min((step.began_seconds for step in steps), default=timeline.ended_seconds)
    yield Claim(timeline.started_seconds, first_began, Strength.STARTUP, "startup")
    yield from _step_claims(timeline)
    for incident in timeline.incidents:
        yield from _incident_claims(incident, timeline)
    for stall in timeline.stalls:
        yield from _stall_claims(stall, steps)
    for at in timeline.rejected:
        yield from _thrown_away(steps, at, None)
    for start, end in timeline.restarts:
        yield Claim(start, end, Strength.ABSENCE, "restart")
        # A step in flight died with its attempt.
        yield from _thrown_away(timeline.steps.every, start, None)
    for start, end in timeline.checkpoints:
        yield Claim(start, end, Strength.CHECKPOINT, "checkpoint")
    for start, end in _overlaps(timeline.coordinator_downs, _stalled(timeline)):
        yield Claim(start, end, Strength.REGROUP_WITHOUT_COORDINATOR, "restart")


def _step_claims(timeline: Timeline) -> Iterable[Claim]:
    usual_gap = median([step.began_seconds - step.previous_seconds for step in timeline.baseline] or [0.0])
    absences = list(timeline.coordinator_downs)
    for incident in timeline.incidents:
        if incident.repair_started is not None:
            back = timeline.ended_seconds if incident.rejoined is None else incident.rejoined
            absences.append((incident.repair_started, back))
    long_gaps = [(step.previous_seconds + usual_gap, step.began_seconds) for step in timeline.steps.first]
    for start, end in _overlaps(long_gaps, absences):
        yield Claim(start, end, Strength.ABSENCE, "restart")
    regrouped = sorted(stall.ended_seconds for stall in timeline.stalls)
    for index, step in enumerate(timeline.steps.first):
        cause, own = step_cause(step), None if step.is_left_out else index
        yield Claim(step.began_seconds, step.committed_seconds, Strength.ATTEMPT, cause, step=own)
        following = bisect_right(regrouped, step.previous_seconds)
        if following == len(regrouped) or regrouped[following] > step.began_seconds:
            yield Claim(step.previous_seconds, step.began_seconds, Strength.GAP, cause, step=own)
    for step in timeline.steps.redone:
        yield Claim(step.previous_seconds, step.committed_seconds, Strength.THROWN_AWAY, "repeated_work")


def _incident_claims(incident: MeasuredIncident, timeline: Timeline) -> Iterable[Claim]:
    steps, injected = timeline.steps.first, incident.injected
    if incident.held is not None:
        until = max((time for time in (incident.released, injected) if time is not None), default=incident.held)
        # Nothing commits while a rank of it is held: a commit ends the hold, whatever the record of the release says.
        # But a rank can be held in its next step before the leader has told the commit of the last one.
        later = range(_num_committed(steps, incident.held), len(steps))
        following = next((steps[i] for i in later if steps[i].step >= (incident.step or 0)), None)
        until = until if following is None else min(until, following.committed_seconds)
        yield Claim(incident.held, until, Strength.HOLD, "injection", incident.incident)
    if injected is None or not incident.ranks:
        return
    if incident.detected is not None:
        yield Claim(injected, incident.detected, Strength.DETECTION, "detection", incident.incident)
        yield from _thrown_away(steps, injected, incident.incident)
    elif timeline.recovered(incident) is False and not incident.is_left_out:
        yield Claim(injected, timeline.ended_seconds, Strength.DETECTION, "detection", incident.incident)


def _stall_claims(stall: Stall, steps: Sequence[CommittedStep]) -> Iterable[Claim]:
    since, until = stall.began_seconds, stall.ended_seconds
    if stall.is_loss:
        yield from _thrown_away(steps, since, None)
    elif _is_idle(steps, since):  # the ranks had stopped at a step's boundary, to let others in
        since = _last_commit(steps, since)
    yield Claim(since, until, Strength.REGROUP, "restart" if stall.is_restart else "regroup")
    yield Claim(until - stall.transfer_seconds, until, Strength.TRANSFER, "transfer")


def _thrown_away(steps: Sequence[CommittedStep], lost_at: float, incident: int | None) -> Iterable[Claim]:
    """The work since the last commit, unless the step in flight at the time of the loss committed after all."""
    if _is_idle(steps, lost_at):
        yield Claim(_last_commit(steps, lost_at), lost_at, Strength.THROWN_AWAY, "repeated_work", incident)


def _stalled(timeline: Timeline) -> Iterable[tuple[float, float]]:
    for stall in timeline.stalls:
        yield stall.began_seconds, stall.ended_seconds
    for incident in timeline.incidents:
        if incident.injected is not None and incident.detected is not None:
            yield incident.injected, incident.detected


def _overlaps(
    some: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]
) -> Iterable[tuple[float, float]]:
    """The times (from, to) that are in one of `some` and in one of `others`, in order."""
    left, right = _joined(some), _joined(others)
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            yield start, end
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1


def _joined(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, in order, what overlaps or touches joined, and without those in which no time passes."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted((start, end) for start, end in times if start < end):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _is_idle(steps: Sequence[CommittedStep], at: float) -> bool:
    """Whether no attempt was under way at that time that committed later."""
    following = _next_commit(steps, at)
    return following is None or following.began_seconds > at


def _next_commit(steps: Sequence[CommittedStep], after: float) -> CommittedStep | None:
    index = _num_committed(steps, after)
    return steps[index] if index < len(steps) else None


def _num_committed(steps: Sequence[CommittedStep], until: float) -> int:
    return bisect_right(steps, until, key=_committed_seconds)


def _last_commit(steps: Sequence[CommittedStep], until: float) -> float:
    """When the last step committed by then; that time itself when none has (it is part of the start-up)."""
    index = _num_committed(steps, until)
    return steps[index - 1].committed_seconds if index else until


def _committed_seconds(step: CommittedStep) -> float:
    return step.committed_seconds
