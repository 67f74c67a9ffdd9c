"""Neighbour-do-both, our variant: the neighbour takes over the lost stage and runs all of its layers approximated.

The job's settings choose the approximation; gate and up are recomputed, the down projection is not. The paper's
variant is `mecefo_paper`.
"""

from __future__ import annotations

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._takeover import plan_takeover

APPROXIMATES = "always"


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    return plan_takeover(situation.cluster, situation.alive, degrade=True)
