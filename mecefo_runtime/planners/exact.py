"""Takeover without approximation: the neighbour runs the lost stage too, with exact gradients, and is slower for it."""

from __future__ import annotations

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._takeover import plan_takeover


def plan(situation: Situation) -> Layout:
    """See `Planner`; losses equal the fault-free run's up to the order of floating-point sums."""
    return plan_takeover(situation.cluster, situation.alive, degrade=False)
