"""The gates, which decide the exit code: that the closed forms hold, and that the authors' table comes out."""

from __future__ import annotations

from collections.abc import Sequence

from harness.papers.spare.claims import DEPTH_ERROR_RATIO, ENDURANCE_ERROR_RATIO, Scheme
from harness.papers.spare.endurance import Errors
from harness.papers.spare.tables import ClaimRow
from harness.papers.verdicts import Gate

MIN_SEEDS = 3
MAX_ERROR_RATIOS: dict[Scheme, float] = {"spare": 0.02, "replication": 0.05}


def gates_of(errors: Sequence[Errors], rows: Sequence[ClaimRow]) -> tuple[Gate, ...]:
    """All of them."""
    return (*_closed(errors), *(_of_table(scheme, limit, rows) for scheme, limit in MAX_ERROR_RATIOS.items()))


def _closed(errors: Sequence[Errors]) -> tuple[Gate, Gate]:
    num_cases = sum(one.num_cases for one in errors)
    endured = sum(one.endured_ratio * one.num_cases for one in errors) / num_cases
    depth = sum(one.depth_ratio * one.num_cases for one in errors) / num_cases
    by_size = ", ".join(f"N={one.num_groups}: {one.endured_ratio:.2%}" for one in errors)
    by_size_depth = ", ".join(f"N={one.num_groups}: {one.depth_ratio:.2%}" for one in errors)
    return (
        Gate(
            "the closed form of failures endured against orders drawn by chance: mean absolute error",
            endured <= ENDURANCE_ERROR_RATIO,
            f"{endured:.2%}",
            f"{ENDURANCE_ERROR_RATIO:.2%}",
            num_cases,
            by_size,
        ),
        Gate(
            "the closed form of the mean depth against the controller's in such orders: mean absolute error",
            depth <= DEPTH_ERROR_RATIO,
            f"{depth:.2%}",
            f"{DEPTH_ERROR_RATIO:.2%}",
            num_cases,
            by_size_depth,
        ),
    )


def _of_table(scheme: Scheme, limit: float, rows: Sequence[ClaimRow]) -> Gate:
    mine = [row for row in rows if row.claim.scheme == scheme]
    fewest = min(row.num_seeds for row in mine)
    ratios = [ratio for row in mine for ratio in row.error_ratios()]
    worst = max(mine, key=lambda row: max((abs(ratio) for ratio in row.error_ratios()), default=0.0))
    off = max((abs(ratio) for ratio in ratios), default=0.0)
    few = "" if fewest >= MIN_SEEDS else f"{fewest} of {MIN_SEEDS} seeds: --simulate {MIN_SEEDS} makes them"
    return Gate(
        f"simulated {scheme}: times to train and availabilities against the authors' table",
        None if few else off <= limit,
        f"at most {off:.1%} apart",
        f"{limit:.0%}",
        len(ratios),
        few or f"farthest is N={worst.claim.num_groups} r={worst.claim.redundancy}",
    )
