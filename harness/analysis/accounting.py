"""Goodput accounting: every second of the main job is productive or belongs to exactly one cause of badput.

The wall clock is cut at every relevant event; each piece goes to the strongest claim on it. So productive and badput
add up to the wall clock by construction, over the run and over the time that each incident answers for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from math import fsum, inf, prod

from harness.analysis.attribution import COORDINATOR, UnplannedLoss
from harness.analysis.contained import charge
from harness.analysis.incident import MeasuredIncident
from harness.analysis.regroups import Stall, joined_times, overlaps
from harness.analysis.steps import CommittedStep, median_step_seconds, num_committed, showing_recovery
from harness.analysis.timeline import Timeline

BADPUT_CAUSES: Mapping[str, str] = {
    "startup": "from the start of the job to its first step, of an external job to its first steady one",
    "injection": "ranks held by the injector: overhead of chaos itself",
    "detection": "from the injection of a fault to its detection, or to the end of the job if it was never detected; "
    "of an external job until a rank ended that the fault had not ended: the others wait for it in a collective",
    "regroup": "from detection until process groups work again, and the regroups in which ranks rejoin",
    "transfer": "transfer of parameters and optimizer state to where they are needed",
    "repeated_work": "discarded or rejected attempts at a step, and recomputed steps",
    "degraded_speed": "steps with ranks missing or a fault active: their time beyond the pre-fault median",
    "restart": "stalled without a coordinator, during a repair, or until all ranks were restarted",
    "unplanned": "a loss that no fault explains: until training continued, and the extra time of later steps",
    "checkpoint": "training that waited for a checkpoint to be copied; it is written beside the training",
    "shutdown": "from the last step of the job to its end",
    "other": "what no event explains",
}
PRODUCTIVE = "productive"
UNPLANNED = "unplanned"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the wall clock, with its cause and the incident that answers for it (None: before any)."""

    start_seconds: float
    end_seconds: float
    cause: str
    incident: int | None

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True)
class Account:
    """Sums over segments: `productive_seconds` plus all of `badput_seconds` is `wall_clock_seconds`."""

    wall_clock_seconds: float
    productive_seconds: float
    badput_seconds: Mapping[str, float]

    @property
    def goodput_ratio(self) -> float | None:
        """Productive time over wall clock; None when no time passed."""
        return self.productive_seconds / self.wall_clock_seconds if self.wall_clock_seconds > 0 else None


class Strength(IntEnum):
    """The strength of a claim on a piece of time: the highest wins."""

    NOTHING = 0
    STARTUP = 1
    GAP = 2  # between two steps, with nothing else going on: belongs to the step that follows
    ABSENCE = 3  # no coordinator, or a repair under way: costs only what no attempt at a step fills
    ATTEMPT = 4
    WARM_UP = 5  # the first steps of an external job: compilation, caches
    CHECKPOINT = 6
    THROWN_AWAY = 7
    HOLD = 8
    DETECTION = 9
    REGROUP = 10
    TRANSFER = 11
    REGROUP_WITHOUT_COORDINATOR = 12
    UNPLANNED = 13


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
    """`partitioned`, which is done once."""
    return timeline.once("time accounting", lambda: partitioned(timeline))


def partitioned(timeline: Timeline) -> tuple[Segment, ...]:
    """The wall clock of the main job, `job_started` to `job_ended`, as adjacent segments in the order of time.

    A segment belongs to the incident that its cause names, otherwise to the incident injected last before it; what is
    unplanned to none.
    """
    injections = sorted((i.injected, i.incident) for i in timeline.incidents if i.injected is not None)
    injected = [time for time, _ in injections]
    segments: list[Segment] = []
    for stretch in _stretches(timeline, timeline.ended_seconds):
        pieces: list[tuple[Segment, int | None]] = []
        for left, right, claim in stretch.resolve(injected):
            latest = bisect_right(injections, (left, inf)) - 1
            owner = claim.incident if claim.incident is not None else injections[latest][1] if latest >= 0 else None
            owner = None if claim.cause == UNPLANNED else owner
            pieces.append((Segment(left, right, claim.cause, owner), claim.step))
        segments += _charge_slow_steps(pieces, timeline)
    return tuple(segments)


def account_until(timeline: Timeline, until_seconds: float) -> Account:
    """`account` of `partition` up to that time; for a run in progress only new events cost time."""
    sums: dict[str, list[float]] = {cause: [] for cause in (PRODUCTIVE, *BADPUT_CAUSES)}
    memo = timeline.steps.memo
    for stretch in _stretches(timeline, until_seconds):
        name, key = ("account", stretch.first, stretch.end), stretch.key()
        known, found = memo.get(name, (None, {}))
        if known != key:
            pieces = [(Segment(left, right, one.cause, None), one.step) for left, right, one in stretch.resolve(())]
            total = account(_charge_slow_steps(pieces, timeline))
            found = {PRODUCTIVE: total.productive_seconds, **total.badput_seconds}
            memo[name] = key, found
        for cause, seconds in found.items():
            sums[cause].append(seconds)
    badput = {cause: fsum(sums[cause]) for cause in BADPUT_CAUSES}
    productive = fsum(sums[PRODUCTIVE])
    return Account(fsum([productive, *badput.values()]), productive, badput)


def step_cause(step: CommittedStep) -> str:
    """The cause to which the time of a newly committed step is counted: a skipped step is not productive."""
    return "repeated_work" if step.is_left_out else PRODUCTIVE


def resolve(
    start: float, end: float, claims: Iterable[Claim], cuts: Iterable[float] = ()
) -> Iterable[tuple[float, float, Claim]]:
    """The time from `start` to `end` as adjacent pieces (from, to, claim), each with the strongest claim on it.

    One of the claims has to hold for all of that time. Pieces are also cut at `cuts`.
    """
    waiting = sorted(claims, key=lambda claim: claim.start, reverse=True)
    charge(len(waiting))
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


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The wall clock of a block of steps (see `Steps`), with all that others than its own steps claim of it."""

    timeline: Timeline
    first: int
    end: int
    left: float
    right: float
    epochs: frozenset[int]
    others: Sequence[Claim]
    absences: Sequence[tuple[float, float]]

    def resolve(self, cuts: Sequence[float]) -> Iterable[tuple[float, float, Claim]]:
        """Its pieces (from, to, claim), in order."""
        own = cuts[bisect_right(cuts, self.left) : bisect_right(cuts, self.right)]
        return resolve(self.left, self.right, [*self.others, *self._of_steps()], own)

    def key(self) -> Hashable:
        """What its sums depend on, but for its steps."""
        timeline = self.timeline
        others = tuple(
            (max(claim.start, self.left), min(claim.end, self.right), claim.strength, claim.cause)
            for claim in self.others
        )
        slow = timeline.why_degraded(self.epochs, self.left, self.right)
        return (
            self.left,
            self.right,
            others,
            tuple((since, until, _absence_cause(timeline, since)) for since, until in self.absences),
            timeline.usual_gap_seconds if self.absences else None,
            tuple(self._regrouped()),
            slow,
            median_step_seconds(timeline.before) if slow else None,
        )

    def _regrouped(self) -> Sequence[float]:
        times = self.timeline.regrouped
        return times[bisect_left(times, self.left) : bisect_right(times, self.right)]

    def _of_steps(self) -> Iterable[Claim]:
        regrouped, usual_gap = self._regrouped(), self.timeline.usual_gap_seconds
        steps = self.timeline.steps.first[self.first : self.end]
        long_gaps = [(step.previous_seconds + usual_gap, step.began_seconds) for step in steps]
        for start, end in overlaps(long_gaps, self.absences):
            yield Claim(start, end, Strength.ABSENCE, _absence_cause(self.timeline, start))
        for index, step in enumerate(steps, self.first):
            cause, own = step_cause(step), None if step.is_left_out else index
            yield Claim(step.began_seconds, step.committed_seconds, Strength.ATTEMPT, cause, step=own)
            following = bisect_right(regrouped, step.previous_seconds)
            if following == len(regrouped) or regrouped[following] > step.began_seconds:
                yield Claim(step.previous_seconds, step.began_seconds, Strength.GAP, cause, step=own)


def _stretches(timeline: Timeline, until_seconds: float) -> Iterable[_Stretch]:
    """The wall clock until then, block by block of the job's steps; what is after the last one belongs to the last."""
    start, end, steps = timeline.started_seconds, min(until_seconds, timeline.ended_seconds), timeline.steps.first
    claims = sorted((Claim(start, end, Strength.NOTHING, "other"), *_claims(timeline)), key=lambda claim: claim.start)
    absences = joined_times(_absences(timeline))
    active: list[Claim] = []
    num_taken = 0
    blocks = list(timeline.steps.blocks) or [(0, 0)]
    epochs_of = list(timeline.steps.of_blocks("epochs", lambda block: frozenset(step.epoch for step in block)))
    for number, (first, behind) in enumerate(blocks):
        epochs = epochs_of[number] if epochs_of else frozenset[int]()
        left = max(start, steps[first - 1].committed_seconds) if first else start
        right = end if number + 1 == len(blocks) else min(end, steps[behind - 1].committed_seconds)
        since, num_taken = num_taken, bisect_left(claims, right, key=lambda claim: claim.start)
        active = [claim for claim in (*active, *claims[since:num_taken]) if claim.end > left]
        charge(len(active))
        if left < right:
            # They do not overlap, so that their ends are in order, too.
            first_away = bisect_right(absences, left, key=lambda absence: absence[1])
            last_away = bisect_left(absences, right, key=lambda absence: absence[0])
            away = [(max(since, left), min(until, right)) for since, until in absences[first_away:last_away]]
            yield _Stretch(timeline, first, behind, left, right, epochs, tuple(active), away)


def _charge_slow_steps(pieces: Iterable[tuple[Segment, int | None]], timeline: Timeline) -> Iterable[Segment]:
    """Split the time of each degraded step: what a pre-fault step takes is productive, the rest is degraded speed."""
    reference, steps = median_step_seconds(timeline.before), timeline.steps.first
    left_over: dict[int, float] = {}
    for segment, step in pieces:
        if step is None or reference is None or not timeline.is_degraded(steps[step]):
            yield segment
            continue
        lacks = timeline.lacks_unplanned(steps[step])
        slow, owner = (UNPLANNED, None) if lacks else ("degraded_speed", segment.incident)
        allowed = left_over.get(step, reference)
        left_over[step] = max(0.0, allowed - segment.seconds)
        turn = segment.start_seconds + allowed
        if allowed <= 0.0 or turn >= segment.end_seconds:
            whole = (segment.cause, segment.incident) if allowed > 0.0 else (slow, owner)
            yield Segment(segment.start_seconds, segment.end_seconds, *whole)
        else:
            yield Segment(segment.start_seconds, turn, segment.cause, segment.incident)
            yield Segment(turn, segment.end_seconds, slow, owner)


def _claims(timeline: Timeline) -> Iterable[Claim]:
    """All claims but those of the steps that were committed for the first time."""
    began = timeline.steps.of_blocks("began", lambda block: min(step.began_seconds for step in block))
    yield Claim(timeline.started_seconds, min(began, default=timeline.ended_seconds), Strength.STARTUP, "startup")
    for start, end, number in timeline.warm_ups:
        yield Claim(start, end, Strength.WARM_UP, "startup" if number == 1 else "restart")
    for step in timeline.steps.redone:
        yield Claim(step.previous_seconds, step.committed_seconds, Strength.THROWN_AWAY, "repeated_work")
    for incident in timeline.incidents:
        yield from _incident_claims(incident, timeline)
    for stall in timeline.stalls:
        yield from _stall_claims(stall, timeline)
    for loss in timeline.unplanned:
        yield from _unplanned_claims(loss, timeline)
    for at in timeline.rejected:
        yield from _thrown_away(timeline, at, None)
    if timeline.outcome is not None:
        last = [steps[-1].committed_seconds for steps in (timeline.steps.first, timeline.steps.redone) if steps]
        if last:
            yield Claim(min(max(last), timeline.ended_seconds), timeline.ended_seconds, Strength.STARTUP, "shutdown")
    every = timeline.steps.every if timeline.restarts else ()
    for start, end in timeline.restarts:
        yield Claim(start, end, Strength.ABSENCE, "restart")
        yield from _end_of_attempt(timeline, start, end, every)
    for start, end in timeline.checkpoints:
        yield Claim(start, end, Strength.CHECKPOINT, "checkpoint")
    for start, end in overlaps(timeline.coordinator_downs, _stalled(timeline)):
        yield Claim(start, end, Strength.REGROUP_WITHOUT_COORDINATOR, _absence_cause(timeline, start))


def _absences(timeline: Timeline) -> Iterable[tuple[float, float]]:
    """The times without a coordinator, or in which somebody was under repair."""
    yield from timeline.coordinator_downs
    for incident in timeline.incidents:
        if incident.repair_started is not None:
            yield incident.repair_started, timeline.ended_seconds if incident.rejoined is None else incident.rejoined


def _absence_cause(timeline: Timeline, at: float) -> str:
    """What standing still at that time went into: a coordinator that was lost without a fault is nobody's restart."""
    return UNPLANNED if timeline.lacks_coordinator(at) else "restart"


def _incident_claims(incident: MeasuredIncident, timeline: Timeline) -> Iterable[Claim]:
    steps, injected = timeline.steps.first, incident.injected
    if incident.held is not None:
        until = max((time for time in (incident.released, injected) if time is not None), default=incident.held)
        # Nothing commits while a rank of it is held: a commit ends the hold, whatever the record of the release says.
        # But a rank can be held in its next step before the leader has told the commit of the last one.
        later = range(num_committed(steps, incident.held), len(steps))
        following = next((steps[i] for i in _charged(later) if steps[i].step >= (incident.step or 0)), None)
        until = until if following is None else min(until, following.committed_seconds)
        yield Claim(incident.held, until, Strength.HOLD, "injection", incident.incident)
    if injected is None or not incident.ranks:
        return
    if incident.struck is not None and incident.detected is not None:
        yield Claim(incident.struck, incident.detected, Strength.DETECTION, "detection", incident.incident)
        yield from _thrown_away(timeline, incident.struck, incident.incident)
    elif timeline.continued(incident) is False and not incident.is_left_out:
        if not timeline.traits.restarts_by_launcher:
            yield Claim(injected, timeline.ended_seconds, Strength.DETECTION, "detection", incident.incident)
        elif not timeline.restarts or timeline.restarts[-1][0] < injected:
            # Nothing was started again.
            noticed = timeline.noticed(incident, timeline.ended_seconds) or timeline.ended_seconds
            yield Claim(injected, noticed, Strength.DETECTION, "detection", incident.incident)
            yield from _thrown_away(timeline, injected, incident.incident, timeline.steps.every)


def _end_of_attempt(
    timeline: Timeline, ended: float, resumed: float, every: Sequence[CommittedStep]
) -> Iterable[Claim]:
    """What an attempt of a command took after its last step: a step in flight died with it.

    If a fault ended it, that step is lost from when it was injected. From then on the ranks that are left wait for
    those that are not, in a collective: until one of them ends the job has not detected it. Who was given notice saves
    and leaves.
    """
    incident = timeline.last_injected(ended)
    if incident is None or incident.injected is None or (incident.committed or inf) <= ended:
        yield from _thrown_away(timeline, ended, None, every)
        return
    yield from _thrown_away(timeline, incident.injected, incident.incident, every)
    if not incident.gives_notice:
        since = max(incident.injected, _last_commit(every, ended))
        noticed = timeline.noticed(incident, resumed)
        until = ended if noticed is None else max(ended, noticed)
        yield Claim(since, until, Strength.DETECTION, "detection", incident.incident)


def _charged(numbers: Iterable[int]) -> Iterable[int]:
    for number in numbers:
        charge()
        yield number


def _stall_claims(stall: Stall, timeline: Timeline) -> Iterable[Claim]:
    steps = timeline.steps.first
    since, until = stall.began_seconds, stall.ended_seconds
    if stall.is_loss:
        yield from _thrown_away(timeline, since, None)
    elif _is_idle(steps, since):  # the ranks had stopped at a step's boundary, to let others in
        since = _last_commit(steps, since)
    yield Claim(since, until, Strength.REGROUP, "restart" if stall.is_restart else "regroup")
    yield Claim(until - stall.transfer_seconds, until, Strength.TRANSFER, "transfer")


def _unplanned_claims(loss: UnplannedLoss, timeline: Timeline) -> Iterable[Claim]:
    """All that a loss without a fault took, its detection, regroup and transfers, and the regroup that took it back."""
    steps = timeline.steps.first
    if loss.lost == (COORDINATOR,):
        # Training continues without one; where it does not, nobody has a coordinator (see `_absence_cause`).
        return
    since = _last_commit(steps, loss.since) if _is_idle(steps, loss.since) else loss.since
    # Of a job that had gone back, when it was where it had been.
    progress = None if loss.recovered is None else next(showing_recovery(steps, loss.detected), None)
    until = timeline.ended_seconds if progress is None else max(progress.began_seconds, loss.resumed or 0.0)
    yield Claim(since, until, Strength.UNPLANNED, UNPLANNED)
    following = None if loss.rejoined is None else _next_commit(steps, loss.rejoined)
    if (back := loss.rejoined) is not None and (following is None or following.began_seconds >= back):
        yield Claim(_last_commit(steps, back), back, Strength.UNPLANNED, UNPLANNED)


def _thrown_away(
    timeline: Timeline, lost_at: float, incident: int | None, every: Sequence[CommittedStep] | None = None
) -> Iterable[Claim]:
    """The work since the last commit, unless the step in flight at the time of the loss committed after all.

    Where that step was completed, what was kept of the work was none in vain.
    """
    steps = timeline.steps.first if every is None else every
    if not _is_idle(steps, lost_at):
        return
    since, following = _last_commit(steps, lost_at), _next_commit(steps, lost_at)
    until = inf if following is None else following.began_seconds
    first, last = bisect_left(timeline.completions, (lost_at, -inf)), bisect_right(timeline.completions, (until, inf))
    lost_ratios = [lost for _, lost in timeline.completions[first:last]]
    kept_ratio = prod(1.0 - lost for lost in lost_ratios) if lost_ratios else 0.0
    turn = since + kept_ratio * (lost_at - since)
    yield Claim(since, turn, Strength.ATTEMPT, PRODUCTIVE, incident)
    yield Claim(turn, lost_at, Strength.THROWN_AWAY, "repeated_work", incident)


def _stalled(timeline: Timeline) -> Iterable[tuple[float, float]]:
    yield from ((stall.began_seconds, stall.ended_seconds) for stall in timeline.stalls)
    times = ((incident.struck, incident.detected) for incident in timeline.incidents)
    yield from ((since, until) for since, until in times if since is not None and until is not None)


def _is_idle(steps: Sequence[CommittedStep], at: float) -> bool:
    """Whether no attempt was under way at that time that committed later."""
    following = _next_commit(steps, at)
    return following is None or following.began_seconds > at


def _next_commit(steps: Sequence[CommittedStep], after: float) -> CommittedStep | None:
    index = num_committed(steps, after)
    return steps[index] if index < len(steps) else None


def _last_commit(steps: Sequence[CommittedStep], until: float) -> float:
    """When the last step committed by then; that time itself when none has (it is part of the start-up)."""
    index = num_committed(steps, until)
    return steps[index - 1].committed_seconds if index else until
