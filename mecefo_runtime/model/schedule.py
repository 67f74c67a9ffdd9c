"""The learning rate over a run: linear warm-up, then cosine decay (as MeCeFO trains, arXiv 2510.16415, section 5)."""

from __future__ import annotations

from math import cos, pi

from mecefo_runtime.job.config import JobConfig


def learning_rate(step: int, job: JobConfig) -> float:
    """The learning rate of `step` (from 1)."""
    if step <= job.warmup_steps:
        return job.learning_rate * step / job.warmup_steps
    progress = (step - job.warmup_steps) / max(1, job.steps - job.warmup_steps)
    floor = job.min_learning_rate_ratio
    return job.learning_rate * (floor + (1 - floor) * (1 + cos(pi * min(1.0, progress))) / 2)
