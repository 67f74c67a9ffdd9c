"""Ratings of an earlier run for the next one, so that the two differ by the method alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.backends.base import AnyConfig
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.device_model import rescaled


def with_ratings(job: AnyConfig, ratings: Mapping[str, Any] | None) -> AnyConfig:
    """`job` with the `ratings` of another run's summary, where they fit it; else as it is, and its ranks measure.

    An emulated device has its own, and the time scale of the other run, unless another one was asked for.
    """
    if not isinstance(job, JobConfig) or not job.is_rated or ratings is None:
        return job
    if ratings.get("rated_as") != job.rated_as:
        return job
    if job.emulation is not None:
        scale = ratings.get("time_scale")
        if not job.emulation.is_scale_chosen or not isinstance(scale, int | float) or not scale > 0:
            return job
        return rescaled(job, scale / job.emulation.time_scale)
    if job.ratings is not None:
        return job
    try:
        costs = Costs.from_dict(ratings["costs"])
    except (KeyError, TypeError, ValueError):
        # Of another version, or edited by hand.
        return job
    return replace(job, ratings=replace(costs, memory_bytes=job.rank_memory_bytes))
