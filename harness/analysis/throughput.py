"""Throughput before, during and after the faults of a run, and the drop."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import median

from harness.analysis.figures import Figures
from harness.analysis.regroups import joined_times
from harness.analysis.steps import (
    WARM_UP_STEPS,
    WORK_UNITS,
    CommittedStep,
    Steps,
    committed_seconds,
    median_step_seconds,
    median_work_per_second,
    num_committed,
)
from harness.analysis.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Speeds:
    """Work per second before, during and after the faults."""

    before: float | None = None
    during: float | None = None
    after: float | None = None


@dataclass(frozen=True, kw_only=True)
class ThroughputFigures(Figures):
    """Work per second (`throughput_unit`: tokens, samples or steps), and its drops as ratios of `before`.

    `before`: the median over the steps before the first injection (see `harness.analysis.steps.baseline`).
    `during`: the mean from injection to repair (to the end of the run where nothing is repaired), over all verified
    incidents: the work of the steps that committed, of those in flight at either end by their share.
    `after`: the median over the steps that began after the last repair, and after the last lost rank was back, up to a
    loss that no fault explains, if that leaves any to speak of. None where the unit is steps, the number of ranks
    changed, and it is not known of how many samples the steps of each attempt are.
    `throughput_drop_ratio` is 1 - during/before.
    `outage_seconds`: how long no step was committed under faults: the time from an injection, or from the commit after
    it, to the next commit, where that is longer than `OUTAGE_STEPS` usual steps. A drop of a restart is 100% by its
    definition; so `throughput_drop_while_training_ratio` is of the median step that the job took after the outage: up
    to the repair, without a repair up to the next fault or the end, without those that warm up.
    `throughput_noise_ratio`: how far the means of two neighbouring stretches without a fault are apart, as the median
    over all such pairs before the first fault; a stretch has as many steps as committed under the fault. A drop no
    larger than this is within the noise.
    `throughput_drop_whole_run_ratio`: as `throughput_drop_ratio`, with the mean over the whole run after its first
    step; None if the job did not complete.
    `paid_capacity_ratio`: that mean over the speed before the fault that as many nodes would have as were paid for,
    spare ones included, if all of them trained.
    `step_seconds`: the median duration of the steps of `before`.
    """

    throughput_unit: str = "tokens"
    throughput_per_second: Speeds = Speeds()
    throughput_tokens_per_second: Speeds = Speeds()
    throughput_drop_ratio: float | None
    throughput_drop_while_training_ratio: float | None
    outage_seconds: float | None
    throughput_noise_ratio: float | None
    throughput_drop_whole_run_ratio: float | None
    paid_capacity_ratio: float | None
    num_steps_before: int | None
    num_steps_after: int | None
    step_seconds: float | None


OUTAGE_STEPS = 2.0
"""Without a commit for longer than this many usual steps, a job under a fault is taken to stand still."""


def measure(timeline: Timeline) -> ThroughputFigures:
    """`measured`, which is done once."""
    return timeline.once("throughput", lambda: measured(timeline))


def measured(timeline: Timeline) -> ThroughputFigures:
    """The throughput figures of a run."""
    steps = timeline.steps.first
    before = median_work_per_second(timeline.before)
    windows = windows_under_fault(timeline)
    during = _during(timeline, windows)
    after = steps_after(timeline, windows[-1][1]) if windows else []
    whole_run = None
    if len(steps) > 1 and windows and timeline.outcome == "completed" and not timeline.steps_may_differ:
        whole_run_seconds = steps[-1].committed_seconds - steps[0].committed_seconds
        whole_run = sum(step.work for step in steps[1:]) / whole_run_seconds if whole_run_seconds > 0 else None
    # Steps of another number of ranks may be of another number of samples.
    after_speed = None if timeline.steps_may_differ else median_work_per_second(after)
    unit, speeds = timeline.steps.unit, Speeds(before, during, after_speed)
    return ThroughputFigures(
        throughput_unit=unit,
        throughput_per_second=speeds,
        throughput_tokens_per_second=speeds if unit == WORK_UNITS[0] else Speeds(),
        throughput_drop_ratio=_drop(during, before),
        throughput_drop_while_training_ratio=None
        if timeline.steps_may_differ
        else _drop(_while_training(timeline), before),
        outage_seconds=_outage(timeline, windows),
        throughput_noise_ratio=_noise(timeline, num_within(timeline.steps, windows)),
        throughput_drop_whole_run_ratio=_drop(whole_run, before),
        paid_capacity_ratio=_paid(whole_run, before, timeline),
        num_steps_before=len(timeline.before),
        num_steps_after=len(after),
        step_seconds=median_step_seconds(timeline.before),
    )


def drop_ratio(timeline: Timeline) -> float | None:
    """`throughput_drop_ratio` alone, for repeated queries of a run in progress."""
    return _drop(_during(timeline, windows_under_fault(timeline)), median_work_per_second(timeline.before))


def _outage(timeline: Timeline, windows: Sequence[tuple[float, float]]) -> float | None:
    """See `outage_seconds`; None without a verified fault, or where no usual step is known."""
    usual = median_step_seconds(timeline.before)
    if not windows or usual is None:
        return None
    every = timeline.steps.every
    seconds = 0.0
    for start, end in windows:
        own = every[num_committed(every, start) : num_committed(every, end)]
        # Up to its end nothing came, or the fault was over with the last commit.
        times = [start, *(step.committed_seconds for step in own), end]
        seconds += sum(later - earlier for earlier, later in pairwise(times) if later - earlier > OUTAGE_STEPS * usual)
    return seconds


def _while_training(timeline: Timeline) -> float | None:
    """The median speed of the steps that began after training continued under a fault, or after it; None: no step."""
    every = timeline.steps.every
    warm_ups = joined_times((start, end) for start, end, _ in timeline.warm_ups)
    warm_from = [start for start, _ in warm_ups]

    def is_warm(step: CommittedStep) -> bool:
        index = bisect_right(warm_from, step.began_seconds) - 1
        return index < 0 or step.began_seconds >= warm_ups[index][1]

    taken: list[CommittedStep] = []
    for since, until in _trained_again(timeline):
        own = every[num_committed(every, since) : num_committed(every, until)]
        taken += [step for step in own if step.previous_seconds >= since and is_warm(step)]
    return median_work_per_second(taken)


def _trained_again(timeline: Timeline) -> list[tuple[float, float]]:
    """(from, to) of the training after verified faults: to the repair, without one to the next fault."""
    struck = sorted(one.injected for one in timeline.incidents if one.injected is not None)
    others = sorted(loss.since for loss in timeline.unplanned)
    found: list[tuple[float, float]] = []
    for one in timeline.incidents:
        if one.verified is None or one.committed is None:
            continue
        # Of what is over in an instant nothing is left when training continues.
        lasts = (one.goes_on or one.is_loss) and one.lifted is not None and one.lifted > one.committed
        ends = [one.lifted if lasts and one.lifted is not None else inf]
        for times in (struck, others):
            following = bisect_right(times, one.committed)
            ends += times[following : following + 1]
        found.append((one.committed, min(ends)))
    return joined_times(found)


def _during(timeline: Timeline, windows: Sequence[tuple[float, float]]) -> float | None:
    seconds = sum(end - start for start, end in windows)
    if seconds <= 0 or (not timeline.is_over and not num_within(timeline.steps, windows)):
        # Stopped, or cut off, before there was a step under the fault: that is no standstill.
        return None
    return _work_within(timeline.steps, windows) / seconds


def windows_under_fault(timeline: Timeline) -> list[tuple[float, float]]:
    """The times from injection to repair, overlapping ones joined."""
    return timeline.once("windows under fault", lambda: _windows_under_fault(timeline))


def _windows_under_fault(timeline: Timeline) -> list[tuple[float, float]]:
    steps = timeline.steps.first
    last_commit = steps[-1].committed_seconds if steps else timeline.ended_seconds
    # The teardown of a job that completed is no training time; one that died stood still until its end.
    end_of_training = last_commit if timeline.is_complete else timeline.ended_seconds
    windows: list[tuple[float, float]] = []
    losses = sorted(loss.since for loss in timeline.unplanned)
    for incident in sorted(timeline.incidents, key=lambda incident: incident.injected or 0.0):
        if incident.injected is None or incident.verified is None:
            continue
        start = incident.injected
        end = end_of_training if incident.lifted is None else min(incident.lifted, end_of_training)
        # What comes after a loss of another cause is no longer the fault's alone.
        later = bisect_right(losses, start)
        end = min(end, losses[later]) if later < len(losses) else end
        if windows and start <= windows[-1][1]:
            windows[-1] = (windows[-1][0], max(windows[-1][1], end))
        elif start < end:
            windows.append((start, end))
    return windows


def _work_within(steps: Steps, windows: Sequence[tuple[float, float]]) -> float:
    """Work of the steps that committed in `windows`; of those in flight at a start or an end the share within.

    A step's work is spread evenly from the commit before it to its own. Where its attempt began later, after the start
    of a window, it is spread from that start: what was thrown away before it brought nothing.
    """
    work = 0.0
    starts, ends = [start for start, _ in windows], [end for _, end in windows]
    wholes = steps.of_blocks("work", lambda block: sum(step.work for step in block))
    for (first, end), whole in zip(steps.blocks, wholes, strict=True):
        # All steps of a block begin after the last commit before it.
        since = steps.first[first - 1].committed_seconds if first else -inf
        until = steps.first[end - 1].committed_seconds
        own = range(bisect_right(ends, since), bisect_left(starts, until))
        within = tuple((max(starts[index], since), min(ends[index], until)) for index in own)
        if within == ((since, until),):
            work += whole
        elif within:
            name = "work within", first, end
            known, found = steps.memo.get(name, ((), 0.0))
            if known != within:
                found = _work_of_each_within(steps.first[first:end], within)
                steps.memo[name] = within, found
            work += found
    return work


def _work_of_each_within(steps: Sequence[CommittedStep], windows: Sequence[tuple[float, float]]) -> float:
    starts, ends = [start for start, _ in windows], [end for _, end in windows]
    work = 0.0
    for step in steps:
        last = bisect_right(starts, step.began_seconds) - 1
        began = step.previous_seconds if last < 0 else max(step.previous_seconds, starts[last])
        for index in range(bisect_right(ends, began), len(starts)):
            if starts[index] >= step.committed_seconds:
                break
            within = min(step.committed_seconds, ends[index]) - max(began, starts[index])
            if within > 0.0:
                work += step.work * within / (step.committed_seconds - began)
    return work


def num_within(steps: Steps, windows: Sequence[tuple[float, float]]) -> int:
    """How many steps committed in one of `windows`; see `is_within`."""
    times = [
        (bisect_left(steps.first, start, key=committed_seconds), num_committed(steps.first, end))
        for start, end in windows
    ]
    return sum(until - since for since, until in times)


def is_within(step: CommittedStep, windows: Sequence[tuple[float, float]]) -> bool:
    """Whether `step` committed in one of `windows`, which are in order and do not overlap.

    At its end, too: what ends it may be that very commit, of the last step or of the one that shows the recovery.
    """
    last = bisect_right(windows, (step.committed_seconds, inf)) - 1
    return last >= 0 and step.committed_seconds <= windows[last][1]


def _noise(timeline: Timeline, num_steps: int) -> float | None:
    """See `throughput_noise_ratio`; None without two stretches of `num_steps` before the first fault."""
    until = timeline.first_injected
    before = [step for step in timeline.steps.first if until is not None and step.committed_seconds <= until]
    before = before[WARM_UP_STEPS:]
    if num_steps == 0 or len(before) < 2 * num_steps:
        return None
    stretches = [before[i : i + num_steps] for i in range(len(before) % num_steps, len(before), num_steps)]
    means = [
        sum(step.work for step in stretch) / (stretch[-1].committed_seconds - stretch[0].previous_seconds)
        for stretch in stretches
    ]
    return median(abs(1.0 - later / earlier) for earlier, later in pairwise(means))


def steps_after(timeline: Timeline, since: float, steps: Sequence[CommittedStep] | None = None) -> list[CommittedStep]:
    """The steps that began after `since`, and after the last lost rank was back; of the first passes, or of `steps`."""
    steps = timeline.steps.first if steps is None else steps
    back = max((i.rejoined for i in timeline.incidents if i.rejoined is not None), default=since)
    after = [step for step in steps if step.began_seconds >= max(since, back)]
    lost = min((loss.since for loss in timeline.unplanned if loss.since > max(since, back)), default=inf)
    alone = [step for step in after if step.committed_seconds <= lost]
    return alone if len(alone) >= WARM_UP_STEPS else after


def _paid(whole_run: float | None, before: float | None, timeline: Timeline) -> float | None:
    if whole_run is None or not before or not timeline.num_ranks or not timeline.num_paid_ranks:
        return None
    return whole_run / before * timeline.num_ranks / timeline.num_paid_ranks


def _drop(throughput: float | None, before: float | None) -> float | None:
    return None if throughput is None or not before else 1.0 - throughput / before
