"""Neighbour-do-both to the letter: the neighbour takes the lost stage whole and runs all of its layers approximated."""

from __future__ import annotations

from collections.abc import Collection

from mecefo_runtime.layout import Cluster, Layout
from mecefo_runtime.planners._takeover import plan_takeover


def plan(cluster: Cluster, alive: Collection[int]) -> Layout:
    """See `Planner`; the paper's policy (arXiv 2510.16415, section 3)."""
    return plan_takeover(cluster, alive, degrade=True)
