"""Layouts for tests: what a planner makes of who is alive, with costs of the default job's shapes."""

from __future__ import annotations

from collections.abc import Collection

from mecefo_runtime import planners
from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.prediction.predicted_costs import predict_costs

COSTS = predict_costs(PRESETS["llama-tiny"], 64, 2, ApproximationConfig())


def layout_of(strategy: str, cluster: Cluster, alive: Collection[int]) -> Layout:
    """The layout of `strategy` for the ranks in `alive`."""
    return planners.find(strategy)(Situation(cluster, frozenset(alive), COSTS))
