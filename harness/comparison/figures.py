"""The figures of a run as they are compared: which way is better, which decide, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.analysis.words import name_seconds
from harness.judging.metrics import METRICS, Metric
from harness.judging.summary import Summary

Better = Literal["lower", "higher"]

_HIGHER = {
    "throughput_before_tokens_per_second",
    "throughput_during_tokens_per_second",
    "throughput_after_tokens_per_second",
    "steps_committed",
    "diagnosis_recall_ratio",
    "diagnosis_precision_ratio",
    "goodput_ratio",
}
_LOWER = {
    "throughput_drop_ratio",
    "throughput_drop_whole_run_ratio",
    "loss_deviation_ratio",
    "loss_curve_max_deviation_ratio",
    "final_loss",
    "steps_lost",
    "steps_repeated",
    "samples_lost",
    "diverged_units",
    "unrecovered_incidents",
    "unfit_steps",
    "false_accusations",
    "wall_clock_seconds",
    "step_seconds",
}
_COUNTS = {
    "steps_committed",
    "steps_lost",
    "steps_repeated",
    "samples_lost",
    "diverged_units",
    "unrecovered_incidents",
    "layout_changes",
    "unfit_steps",
    "false_accusations",
}
# Of the same speed, and so of its noise within a run: as points, or as a share of the figure itself.
_SPEED_POINTS = {"throughput_drop_ratio", "throughput_drop_whole_run_ratio", "goodput_ratio"}
_SPEED_SHARES = {
    "throughput_before_tokens_per_second",
    "throughput_during_tokens_per_second",
    "throughput_after_tokens_per_second",
    "step_seconds",
}
# Longer than the tool's own check takes says nothing of the job.
_NEUTRAL = {"verify_seconds"}

HEADLINE: Mapping[str, str] = {
    "throughput_drop_ratio": "speed drop under the fault",
    "throughput_drop_whole_run_ratio": "speed drop over the whole run",
    "recovery_seconds": "recovery: fault to the next step",
    "progress_seconds": "recovery: fault to the next new step",
    "steps_lost": "steps lost or done again",
    "goodput_ratio": "goodput: share of the time that trained",
    "loss_deviation_ratio": "loss deviation from the fault-free twin",
}
"""What a comparison of strategies shows, in this order, with what to call it."""

DECIDING: tuple[str, ...] = (
    *HEADLINE,
    "detection_seconds",
    "throughput_before_tokens_per_second",
    "samples_lost",
    "diverged_units",
    "unrecovered_incidents",
)
"""The figures that decide whether a run got worse than its baseline, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `better` None: neither way. `is_count`: it has no noise of its own, any difference is one.

    `noise_of_speed` says how the noise of the speed within a run carries over: `points`, `share` of the figure, or None
    where nothing within a single run tells how much the figure varies.
    """

    metric: Metric
    better: Better | None
    is_count: bool
    noise_of_speed: Literal["points", "share"] | None

    @property
    def name(self) -> str:
        """As gates call it."""
        return self.metric.name

    def of(self, summary: Summary) -> float | None:
        """Its value in a run's summary, the largest of its incidents'; None when there is none or one is missing."""
        values = self.metric.values(summary)
        known = [value for value in values if value is not None]
        return max(known) if known and len(known) == len(values) else None

    def to_text(self, value: float | None) -> str:
        """`value` with its unit, `-` when unknown."""
        if value is None:
            return "-"
        if self.metric.unit == "ratio":
            return f"{value:.2%}"
        if self.metric.unit == "seconds":
            return f"-{name_seconds(-value)}" if value < 0 else name_seconds(value)
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _figure(metric: Metric) -> Figure:
    better: Better | None = None
    if metric.name in _HIGHER:
        better = "higher"
    elif metric.name in _LOWER or (
        metric.name not in _NEUTRAL and (metric.is_per_incident or metric.name.startswith("badput_"))
    ):
        better = "lower"
    noise: Literal["points", "share"] | None = None
    if metric.name in _SPEED_POINTS:
        noise = "points"
    elif metric.name in _SPEED_SHARES:
        noise = "share"
    return Figure(metric, better, metric.name in _COUNTS, noise)


FIGURES: Mapping[str, Figure] = {name: _figure(metric) for name, metric in METRICS.items()}
"""All figures of a run, by name."""
NOISE = "throughput_noise_ratio"
"""The figure that says how much the speed varies within a run."""


def figures_of(summary: Summary) -> dict[str, float | None]:
    """All figures of a summary, by name."""
    return {name: figure.of(summary) for name, figure in FIGURES.items()}
