"""No takeover: after a loss every rank ends, and all of them start again from the newest checkpoint.

What a plain job does under a launcher such as torchrun with torch.distributed.checkpoint: it trains at full size or not
at all. The coordinator asks for a layout only when all ranks are there.
"""

from __future__ import annotations

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._takeover import plan_takeover

STOPS_ON_LOSS = True
GOES_BACK_TO = "checkpoint"


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    return plan_takeover(situation.cluster, situation.alive, degrade=False)
