"""Neighbour-do-both, ours: the neighbour takes the lost stage whole and runs all of its layers approximated.

What is approximated how is the job's to say; gate and up are computed again, the down projection is not. What the paper
does stands in `mecefo_paper`.
"""

from __future__ import annotations

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._takeover import plan_takeover


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    return plan_takeover(situation.cluster, situation.alive, degrade=True)
