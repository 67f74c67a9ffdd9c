"""What a run lost: steps, samples, and how far its losses are from the fault-free baseline's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from harness.analysis.figures import Figures
from harness.analysis.steps import CommittedStep
from harness.analysis.timeline import Timeline
from mecefo_runtime.model.data import checksum, samples_of_step
from mecefo_runtime.system.job_records import RankFinished

LOSS_STEPS = 10
"""Final losses are means over this many last steps."""


@dataclass(frozen=True, kw_only=True)
class LossFigures(Figures):
    """Cross-entropy in nats per token. None: no such step, no baseline, or a loss that is not a finite number.

    Of a job that resumed from an earlier step the history counts that it kept (see `harness.analysis.history`).
    `final_loss` and `baseline_loss` are means over the same last `num_loss_steps` steps, those that both jobs committed
    (without a baseline: the main job's last). `loss_deviation_ratio` is |final - baseline| / baseline;
    `loss_curve_max_deviation_ratio` the largest such ratio of any single step. `first_non_finite_loss_step` is the
    first step of the main job whose loss is NaN or infinite, in work that was thrown away, too.
    """

    final_loss: float | None
    baseline_loss: float | None
    loss_deviation_ratio: float | None
    loss_curve_max_deviation_ratio: float | None
    num_loss_steps: int | None
    first_non_finite_loss_step: int | None


def losses_of(timeline: Timeline) -> LossFigures:
    """The losses of a run, compared with the baseline's where it is known which step belongs to which."""
    every = timeline.steps.every
    if timeline.steps_are_counted:
        return compare_losses(timeline.kept, timeline.fault_free, every)
    # The step of the baseline that belongs to a step is not known; which steps were the last ones is.
    newest = [step for step in every if step.epoch == every[-1].epoch]
    return compare_losses(newest, (), every)


def compare_losses(
    main: Sequence[CommittedStep], baseline: Sequence[CommittedStep], every: Iterable[CommittedStep] | None = None
) -> LossFigures:
    """The main job's losses and how far they are from the baseline's; `every` are also those that it did not keep."""
    ours = {step.step: step.loss for step in main if step.loss is not None}
    theirs = {step.step: step.loss for step in baseline if step.loss is not None}
    both = sorted(ours.keys() & theirs.keys())
    last = (both if theirs else sorted(ours))[-LOSS_STEPS:]
    final = _finite(fmean(ours[step] for step in last)) if last else None
    baseline_loss = _finite(fmean(theirs[step] for step in last)) if last and theirs else None
    deviations = [_deviation(ours[step], theirs[step]) for step in both]
    return LossFigures(
        final_loss=final,
        baseline_loss=baseline_loss,
        loss_deviation_ratio=None if final is None or baseline_loss is None else _deviation(final, baseline_loss),
        loss_curve_max_deviation_ratio=_largest(deviations),
        num_loss_steps=len(last),
        first_non_finite_loss_step=first_non_finite(main if every is None else every),
    )


def first_non_finite(steps: Iterable[CommittedStep]) -> int | None:
    """The first step whose loss is NaN or infinite."""
    return min((step.step for step in steps if step.loss is not None and not isfinite(step.loss)), default=None)


def count_steps_lost(timeline: Timeline) -> int | None:
    """Planned steps that a completed run never committed, and committed steps that were undone and done again.

    Of a run that did not complete only the latter are known to be lost. A command's own end is where it was to end.
    None: the steps of a job that went on cannot be told from those before, since nobody keeps their count.
    """
    if not timeline.steps_are_counted:
        return None
    missing = 0
    if timeline.outcome == "completed":
        planned = timeline.steps_planned if timeline.traits.has_planned_steps else None
        last, first = max(planned or 0, timeline.last_step), timeline.first_step
        missing = last + 1 - first - sum(step.step >= first for step in timeline.steps.first)
    return max(0, missing) + len(timeline.steps.redone)


def count_samples_lost(timeline: Timeline) -> int | None:
    """Samples that committed steps missed or used twice, as their counts and checksums show; 0 when all is well.

    A step whose count is right and whose checksum is not used at least one wrong sample, and counts one. None when no
    step tells its samples.
    """
    counted = [step for step in timeline.steps.first if step.samples is not None]
    if timeline.samples_per_step is None or not counted:
        return None
    per_step = timeline.samples_per_step
    return sum(samples_lost_of(step.step, step.samples, step.samples_checksum, per_step) for step in counted)


def compute_seconds(finished: Iterable[RankFinished]) -> tuple[float, float] | None:
    """(CPU seconds, wall seconds) of all compute of the ranks that finished; None when none told."""
    told = [
        (record.compute_cpu_seconds or 0.0, record.compute_wall_seconds)
        for record in finished
        if record.compute_wall_seconds is not None
    ]
    return (sum(cpu for cpu, _ in told), sum(wall for _, wall in told)) if told else None


def dilation_overrun_ratio(
    finished: Iterable[RankFinished], dilation_ratio: float | None, *, is_emulated: bool = False
) -> float | None:
    """How much longer the ranks' compute took than it was to take, rated or dilated; near 0 when the dilation held.

    More means that the machine was too busy: its contention then shows in the throughput. None without dilation, or
    when no rank told.
    """
    told = [record for record in finished if record.compute_wall_seconds is not None]
    if dilation_ratio is None or (dilation_ratio <= 1 and not is_emulated):
        return None
    slots = sum(
        dilation_ratio * (record.compute_cpu_seconds or 0.0)
        if record.compute_slot_seconds is None
        else record.compute_slot_seconds
        for record in told
    )
    # Ranks that are late make it up, and begin a segment later than their device did.
    return max(0.0, sum(record.compute_wall_seconds or 0.0 for record in told) / slots - 1) if slots else None


def overruns(finished: Iterable[RankFinished]) -> tuple[float, float] | None:
    """(Share of the compute segments that overran their slot, seconds of the worst); None when no rank reported it."""
    told = [record for record in finished if record.num_segments]
    if not told:
        return None
    num_overruns = sum(record.num_overruns or 0 for record in told)
    worst_seconds = max(record.worst_overrun_seconds or 0.0 for record in told)
    return num_overruns / sum(record.num_segments or 0 for record in told), worst_seconds


def samples_lost_of(step: int, samples: int | None, samples_checksum: int | None, samples_per_step: int) -> int:
    """Samples that one committed step missed or used twice; see `count_samples_lost`."""
    if samples != samples_per_step:
        return abs((samples or 0) - samples_per_step)
    expected = checksum(samples_of_step(step, samples_per_step))
    return 0 if samples_checksum is None or int(samples_checksum) == expected else 1


def _deviation(loss: float, baseline_loss: float) -> float | None:
    return _finite(abs(loss - baseline_loss) / baseline_loss) if baseline_loss else None


def _largest(deviations: Sequence[float | None]) -> float | None:
    """The largest, None when one of them is not a number: it may be the largest."""
    known = [deviation for deviation in deviations if deviation is not None]
    return max(known) if known and len(known) == len(deviations) else None


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
