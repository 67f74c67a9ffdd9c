"""Which figures of a run a comparison shows, and which of them decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from harness.judging.metrics import METRICS
from harness.judging.summary import DEPRECATED_KEYS, Summary

_ValueT = TypeVar("_ValueT")

HEADLINE: Mapping[str, str] = {
    "throughput_drop_ratio": "throughput drop during the fault",
    "throughput_drop_whole_run_ratio": "throughput drop over the whole run",
    "paid_capacity_ratio": "share of the paid capacity that trained",
    "recovery_seconds": "recovery: fault to next committed step",
    "recovery_steps": "the same in usual steps of the same run",
    "progress_seconds": "recovery: fault to next new step",
    "steps_lost": "steps lost or recomputed",
    "goodput_ratio": "goodput: productive share of the time",
    "loss_deviation_ratio": "loss deviation from the fault-free baseline",
    "approximated_layers": "layers approximated at most, over all replicas",
}
"""What a comparison of strategies shows, in this order, with what to call it."""

DECIDING: tuple[str, ...] = (
    *(name for name in HEADLINE if METRICS[name].better is not None),
    "detection_seconds",
    "throughput_before_tokens_per_second",
    "samples_lost",
    "diverged_units",
    "unrecovered_incidents",
)
"""The figures that decide whether a run got worse than its reference, unless others are asked for."""

NOISE = "throughput_noise_ratio"
"""The figure that says how much the speed varies within a run."""


def figures_of(summary: Summary) -> dict[str, float | None]:
    """All figures of a summary, by name, and by their earlier names."""
    return with_earlier_names({name: metric.largest(summary) for name, metric in METRICS.items()})


def with_earlier_names(figures: Mapping[str, _ValueT]) -> dict[str, _ValueT]:
    """`figures` with each that was renamed under its earlier name, too: scripts read that."""
    return {**figures, **{old: figures[new] for old, new in DEPRECATED_KEYS.items() if new in figures}}
