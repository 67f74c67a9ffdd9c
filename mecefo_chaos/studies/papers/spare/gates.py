"""The gates, which decide the exit code: that the closed forms hold, and that the authors' table comes out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from mecefo_chaos.studies.papers.rules import MIN_RUNS, Measured, every, mean_and_worst_at_most, passed_of, within
from mecefo_chaos.studies.papers.spare.claims import DEPTH_ERROR_RATIO, ENDURANCE_ERROR_RATIO, Scheme
from mecefo_chaos.studies.papers.spare.endurance import Endurance
from mecefo_chaos.studies.papers.spare.tables import ClaimRow
from mecefo_chaos.studies.papers.verdicts import Gate, Verdict
from mecefo_chaos.studies.papers.views import NOT_KNOWN, measured_text

# This check's own, since the paper gives none. The one of replication is wider because its rows come out less exactly.
MAX_ERROR_RATIOS: dict[Scheme, float] = {"spare": 0.02, "replication": 0.05}


def gates_of(cases: Sequence[Endurance], rows: Sequence[ClaimRow]) -> tuple[Gate, ...]:
    """All of them."""
    return (
        _closed(
            "the closed form of failures endured against orders drawn by chance",
            {_words(case): case.error_ratio for case in cases},
            ENDURANCE_ERROR_RATIO,
        ),
        _closed(
            "the closed form of the mean depth against the controller's in such orders",
            {_words(case): case.depth_error_ratio for case in cases},
            DEPTH_ERROR_RATIO,
        ),
        *(_of_table(scheme, limit, rows) for scheme, limit in MAX_ERROR_RATIOS.items()),
    )


def _words(case: Endurance) -> str:
    return f"N={case.num_groups} r={case.redundancy}"


def _closed(name: str, errors: dict[str, float], limit: float) -> Gate:
    sizes = list(map(abs, errors.values()))
    worst = max(errors, key=lambda cell: abs(errors[cell]), default="")
    num_beyond = sum(size > limit for size in sizes)
    return Gate(
        f"{name}: absolute error",
        passed_of(mean_and_worst_at_most(sizes, limit)),
        f"mean {fmean(sizes):.2%}, worst {abs(errors[worst]):.2%} at {worst}" if sizes else NOT_KNOWN,
        f"{limit:.2%}, as a mean and as the worst: our summaries do not say which it is",
        len(sizes),
        f"{num_beyond} of {len(sizes)} pairs of N and r are beyond it",
    )


def row_verdict(row: ClaimRow) -> Verdict:
    """Whether every seed of a row is within the limit, of the time and where the authors have one the availability."""
    limit = MAX_ERROR_RATIOS[row.claim.scheme]
    return every(within(error, -limit, limit) for error in row.errors().values())


def _of_table(scheme: Scheme, limit: float, rows: Sequence[ClaimRow]) -> Gate:
    mine = [row for row in rows if row.claim.scheme == scheme]
    fewest = min((row.num_seeds for row in mine), default=0)
    errors = [(row, name, error) for row in mine for name, error in row.errors().items() if error is not None]
    not_within = [
        f"{name} of {row.claim.words}: {measured_text(error, '+.1%')}"
        for row, name, error in errors
        if within(error, -limit, limit) != "reproduced"
    ]
    few = f"{fewest} of {MIN_RUNS} seeds: --simulate {MIN_RUNS} makes them" if fewest < MIN_RUNS else ""
    return Gate(
        f"simulated {scheme}: times to train and availabilities against the authors' table",
        passed_of(every(row_verdict(row) for row in mine)),
        f"{len(errors) - len(not_within)} of {len(errors)} figures within the limit in every seed",
        f"{limit:.0%}",
        fewest,
        few or (f"not within: {'; '.join(not_within)}" if not_within else _farthest(errors)),
    )


def _farthest(errors: Sequence[tuple[ClaimRow, str, Measured]]) -> str:
    row, name, error = max(errors, key=lambda one: max(abs(one[2].least), abs(one[2].greatest)))
    return f"farthest: {name} of {row.claim.words}, {measured_text(error, '+.1%')}"
