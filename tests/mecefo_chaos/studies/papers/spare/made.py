"""Simulations that nobody made: for whoever judges or shows them."""

from __future__ import annotations

from mecefo_chaos.studies.papers.origin import Origin
from mecefo_chaos.studies.papers.spare.claims import CLAIMS
from mecefo_chaos.studies.papers.spare.closed_forms import endured, mean_depth
from mecefo_chaos.studies.papers.spare.simulated import Row, Simulated, wanted_rows
from mecefo_chaos.studies.papers.spare.simulation import Outcome

ORIGIN = Origin("2026-01-02", "a machine", "a command")
_CLAIMED = {(claim.scheme, claim.num_groups, claim.redundancy): claim for claim in CLAIMS}
_BEST = {(claim.scheme, claim.num_groups): claim for claim in CLAIMS if claim.availability_ratio is not None}


def outcome_of(row: Row, factor: float = 1.0) -> Outcome:
    """As the authors' table has it times `factor`; other redundancies take a little longer than the best.

    The mean depth is the closed form's.
    """
    best = _BEST[row.scheme, row.num_groups]
    claim = _CLAIMED.get((row.scheme, row.num_groups, row.redundancy))
    away = abs(row.redundancy - best.redundancy)
    ratio = claim.time_ratio if claim is not None else best.time_ratio * (1 + 0.005 * away)
    is_over = row.assumed != "recovery=global_restart"
    if row.assumed == "recovery=absorb":
        ratio *= 0.95 if row.scheme == "spare" else 0.8
    availability = claim.availability_ratio if claim is not None and claim.availability_ratio is not None else 0.9
    depth = mean_depth(row.num_groups, endured(row.num_groups, row.redundancy))
    return Outcome(ratio * factor if is_over else 100.0, availability, is_over, 16, 3000, 30, 900, 10_300, depth)


def simulated_of(num_seeds: int = 3, factor: float = 1.0) -> Simulated:
    """Of every row so many seeds."""
    return Simulated(ORIGIN, tuple((row, (outcome_of(row, factor),) * num_seeds) for row in wanted_rows()))
