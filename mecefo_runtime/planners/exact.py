"""Takeover without approximation: the neighbour runs the lost stage too, with exact gradients, and is slower for it."""

from __future__ import annotations

from collections.abc import Collection

from mecefo_runtime.layout import Cluster, Layout
from mecefo_runtime.planners._takeover import plan_takeover


def plan(cluster: Cluster, alive: Collection[int]) -> Layout:
    """See `Planner`; losses equal the fault-free run's up to the order of floating-point sums."""
    return plan_takeover(cluster, alive, degrade=False)
