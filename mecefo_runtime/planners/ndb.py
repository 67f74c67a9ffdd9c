"""Neighbour-do-both to the letter: the neighbour takes the lost stage whole and runs all of its layers approximated."""

from __future__ import annotations

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._takeover import plan_takeover


def plan(situation: Situation) -> Layout:
    """See `Planner`; the paper's policy (arXiv 2510.16415, section 3)."""
    return plan_takeover(situation.cluster, situation.alive, degrade=True)
