"""How much of a job's compute was approximated, why no more, and what another quality would have led to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, Literal, NamedTuple

from harness.analysis.steps import CommittedStep
from mecefo_runtime.job.config import QUALITIES, Quality, quality_of
from mecefo_runtime.job.layout import Layout, Span
from mecefo_runtime.planners import TOLERANCE_RATIO, Approximates, approximates, has_quality
from mecefo_runtime.planners.mecefo import PROJECTED_LOSS_RATIO
from mecefo_runtime.system.job_records import LayoutTold, OtherQualityPlanned
from mecefo_runtime.system.json_values import from_json

Reason = Literal[
    "no_fewer_ranks",
    "exact_is_fast_enough",
    "quality_allows_none",
    "projection_saves_too_little",
    "none_is_faster",
    "no_takeover",
    "all_of_the_neighbour",
    "keeps_speed",
    "all_that_help",
    "no_exact_layout",
    "unknown",
]
"""Why a run approximated as many layers as it did.

None were approximated: `no_fewer_ranks`: no step was committed with fewer ranks; `exact_is_fast_enough`: exact layers
keep the failure-free speed; `quality_allows_none`; `projection_saves_too_little` of a layer's time, and the quality
degrades none; `none_is_faster`: the quality allows some, but the planner chose none;
`no_takeover`: no rank took over the layers of another.
Some were: `all_of_the_neighbour`: all layers of each rank that takes over others, by the strategy; `keeps_speed`: as
many as keep the failure-free speed; `all_that_help`: as many as the quality allows and as make a step shorter;
`no_exact_layout`: more than the quality allows, because no other layout fits into memory.
`unknown`: an old log.
"""


@dataclass(frozen=True, slots=True)
class OtherQuality:
    """The planner's choice with another `quality` after the same losses, as the coordinator predicted it.

    The layers are the most that one layout approximates, counted once in each replica.
    """

    quality: str
    degraded_layers: int
    projected_layers: int
    predicted_drop_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Approximation:
    """How much a strategy that may approximate did approximate, and why.

    `num_layers` counts the layers of all replicas; `approximated_layers` (`degraded_layers` and `projected_layers`) are
    the most that a layout approximated in which a step was committed. `steps` were committed with approximated layers,
    `steps_with_fewer_ranks` while fewer ranks than usual held layers. `quality`: None where the strategy has none, or
    an old log. `predicted_drop_ratio` is 1 - failure-free / predicted time of the steps with fewer ranks, by the costs
    that the planner used; `other` has the same for another quality.
    """

    num_layers: int
    approximated_layers: int
    degraded_layers: int
    projected_layers: int
    steps: int
    steps_with_fewer_ranks: int
    reason: Reason
    quality: str | float | None = None
    projected_saved_ratio: float | None = None
    predicted_drop_ratio: float | None = None
    other: OtherQuality | None = None


class _Epoch(NamedTuple):
    """A layout in which steps were committed, and what the coordinator predicted for its ranks with another quality."""

    told: LayoutTold
    layout: Layout
    num_steps: int
    other: OtherQualityPlanned | None

    @property
    def num_approximated(self) -> int:
        return self.layout.num_degraded_layers + self.layout.num_projected_layers


def measure(
    layouts: Iterable[LayoutTold],
    others: Iterable[OtherQualityPlanned],
    steps: Sequence[CommittedStep],
    job: Mapping[str, Any],
) -> Approximation | None:
    """What `job`, as the experiment has it, approximated; None of a strategy that never does, and without steps."""
    how = approximates(job.get("strategy"))
    epochs = _epochs(layouts, others, steps)
    if how == "never" or not epochs:
        return None
    most = max(epochs, key=lambda epoch: epoch.num_approximated)
    num_ranks = max(len(epoch.layout.ranks()) for epoch in epochs)
    reduced = [epoch for epoch in epochs if len(epoch.layout.ranks()) < num_ranks]
    # While state is fetched in the background a layout is provisional: no quality chose it.
    settled = [epoch for epoch in reduced if not epoch.told.num_fetched_in_background]
    quality = _quality(job) if has_quality(job.get("strategy")) else None
    saved = next((epoch.told.projected_saved_ratio for epoch in reversed(epochs)), None)
    drop = _drop_ratio([(epoch.num_steps, epoch.told) for epoch in settled])
    return Approximation(
        num_layers=max(epoch.layout.num_layers * len(epoch.layout.replicas) for epoch in epochs),
        approximated_layers=most.num_approximated,
        degraded_layers=most.layout.num_degraded_layers,
        projected_layers=most.layout.num_projected_layers,
        steps=sum(epoch.num_steps for epoch in epochs if epoch.num_approximated),
        steps_with_fewer_ranks=sum(epoch.num_steps for epoch in reduced),
        reason=_reason(how, most, reduced, drop, quality, saved),
        quality=quality,
        projected_saved_ratio=saved if quality is not None else None,
        predicted_drop_ratio=drop,
        other=_other(settled),
    )


def _epochs(
    layouts: Iterable[LayoutTold], others: Iterable[OtherQualityPlanned], steps: Sequence[CommittedStep]
) -> list[_Epoch]:
    by_epoch = {one.epoch: one for one in layouts if one.layout}
    other_of = {one.epoch: one for one in others}
    num_steps: dict[int, int] = {}
    for step in steps:
        num_steps[step.epoch] = num_steps.get(step.epoch, 0) + 1
    return [
        _Epoch(told, from_json(Layout, told.layout or {}, lenient=True), num_steps[epoch], other_of.get(epoch))
        for epoch, told in by_epoch.items()
        if epoch in num_steps
    ]


def _quality(job: Mapping[str, Any]) -> str | float | None:
    """The quality that counts: a share, where one is given, or a name."""
    share, name = job.get("degraded_share_limit"), job.get("quality")
    return float(share) if isinstance(share, int | float) else name if isinstance(name, str | float) else None


def _reason(
    how: Approximates,
    most: _Epoch,
    reduced: Sequence[_Epoch],
    drop_ratio: float | None,
    quality: str | float | None,
    saved: float | None,
) -> Reason:
    keeps_speed = drop_ratio is not None and 1 / (1 - drop_ratio) <= 1 + TOLERANCE_RATIO
    if not most.num_approximated and not reduced:
        return "no_fewer_ranks"
    if how == "always":
        return "all_of_the_neighbour" if most.num_approximated else "no_takeover"
    if quality is None or drop_ratio is None or (isinstance(quality, str) and quality not in QUALITIES):
        return "unknown"
    limits = quality_of(quality)
    if most.num_approximated:
        if most.layout.num_degraded_layers and not limits.degraded_share_limit:
            return "no_exact_layout"
        return "keeps_speed" if keeps_speed else "all_that_help"
    if keeps_speed:
        return "exact_is_fast_enough"
    return _why_none(how, reduced[-1].layout, limits, saved)


def _why_none(how: Approximates, layout: Layout, limits: Quality, saved: float | None) -> Reason:
    can_degrade = floor(limits.degraded_share_limit * layout.num_microbatches) > 0
    most_projecting = limits.projected_share_limit if how == "degrading_or_projecting" else 0.0
    can_project = floor(most_projecting * len(layout.replicas)) > 0
    if not can_degrade and can_project and saved is not None and saved <= PROJECTED_LOSS_RATIO:
        return "projection_saves_too_little"
    return "none_is_faster" if can_degrade or can_project else "quality_allows_none"


def _other(settled: Sequence[_Epoch]) -> OtherQuality | None:
    predicted = [(epoch.num_steps, epoch.other) for epoch in settled if epoch.other is not None]
    if not predicted or len(predicted) < len(settled):
        return None
    layers = [(one.degraded_layers or 0, one.projected_layers or 0) for _, one in predicted]
    degraded, projected = max(layers, key=sum)
    return OtherQuality(predicted[0][1].quality, degraded, projected, _drop_ratio(predicted))


def _drop_ratio(predicted: Sequence[tuple[int, LayoutTold | OtherQualityPlanned]]) -> float | None:
    """1 - failure-free / predicted time of all steps, given (number of steps, prediction); None if one is missing."""
    free = predicted_seconds = 0.0
    for num_steps, one in predicted:
        if one.predicted_step_seconds is None or one.failure_free_step_seconds is None:
            return None
        free += num_steps * one.failure_free_step_seconds
        predicted_seconds += num_steps * one.predicted_step_seconds
    return 1 - free / predicted_seconds if predicted_seconds > 0 else None


def degraded_share_ratio(layouts: Iterable[LayoutTold], steps: Sequence[CommittedStep]) -> float | None:
    """The share of the job's samples x layers that went through degraded layers, over all committed steps.

    None when no step was committed in an epoch whose layout is known.
    """
    return _share_ratio(layouts, steps, lambda span: len(span.degraded))


def projected_share_ratio(layouts: Iterable[LayoutTold], steps: Sequence[CommittedStep]) -> float | None:
    """The share of the job's samples x layers that went through projected layers; None as above."""
    return _share_ratio(layouts, steps, lambda span: len(span.projected))


def _share_ratio(
    layouts: Iterable[LayoutTold], steps: Sequence[CommittedStep], count: Callable[[Span], int]
) -> float | None:
    shares = {one.epoch: _share(from_json(Layout, one.layout, lenient=True), count) for one in layouts if one.layout}
    known = [shares[step.epoch] for step in steps if step.epoch in shares]
    return sum(known) / len(known) if known else None


def _share(layout: Layout, count: Callable[[Span], int]) -> float:
    counted = sum(replica.num_microbatches * count(span) for replica in layout.replicas for span in replica.spans)
    return counted / (layout.num_microbatches * layout.num_layers)
