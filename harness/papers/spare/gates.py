"""The gates, which decide the exit code: that the closed forms hold, and that the authors' table comes out."""

from __future__ import annotations

from collections.abc import Sequence

from harness.papers.spare.claims import DEPTH_ERROR_RATIO, ENDURANCE_ERROR_RATIO, Scheme
from harness.papers.spare.endurance import Errors
from harness.papers.spare.tables import ClaimRow
from harness.papers.verdicts import Gate

MIN_SEEDS = 3
# By so many of its own standard errors a mean of few seeds has to be beyond a limit, to be beyond it.
_SURE_ERRORS = 2.0
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
    far = [
        (abs(ratio), error, f"N={row.claim.num_groups} r={row.claim.redundancy}")
        for row in mine
        for ratio, error in row.errors()
    ]
    off, error, where = max(far, default=(0.0, 0.0, "none"))
    passed: bool | None = off <= limit
    reason = f"farthest is {where}, with a standard error of {error:.1%}"
    if fewest < MIN_SEEDS:
        passed, reason = None, f"{fewest} of {MIN_SEEDS} seeds: --simulate {MIN_SEEDS} makes them"
    elif not passed and all(ratio - _SURE_ERRORS * error <= limit for ratio, error, _ in far):
        passed, reason = None, f"{reason}: whether it is beyond the limit, more seeds tell"
    return Gate(
        f"simulated {scheme}: times to train and availabilities against the authors' table",
        passed,
        f"at most {off:.1%} apart",
        f"{limit:.0%}",
        len(far),
        reason,
    )
