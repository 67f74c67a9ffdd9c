"""MeCeFO as published: the neighbour runs both stages, with all of the paper's techniques in all of its layers.

Of arXiv 2510.16415, section 3: no attention in the backward pass, the whole feed-forward part computed again there, and
right singular vectors for gate, up and down. Microbatches are shared equally, and state moves before training
continues. A layer that no replica runs exactly keeps its attention weights as they are: the paper does not say what
then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._takeover import plan_takeover

APPROXIMATES = "always"
FIXED_SETTINGS: Mapping[str, Any] = {
    "approximation": {"down_projection": "right", "average_rest": False},
    "degraded_share_limit": 1.0,
    "takeover": "direct",
}


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    return plan_takeover(situation.cluster, situation.alive, degrade=True, recompute_fully=True)
