"""No takeover: after a loss every rank ends, and all of them start again from the snapshots in the nodes' memory.

As `checkpoint`, but new processes load their state from the snapshot processes, which outlive the ranks, or from the
parity between these (REFT, arXiv 2310.12670); from a checkpoint only where the memory is gone, too.
"""

from __future__ import annotations

from mecefo_runtime.planners.checkpoint import plan as plan

STOPS_ON_LOSS = True
GOES_BACK_TO = "snapshots"
