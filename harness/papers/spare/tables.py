"""The tables: the authors' rows beside ours, times by redundancy, and what follows from each assumption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from harness.papers.spare.claims import CLAIMS, SIZES, Claim, Scheme
from harness.papers.spare.simulated import AS_IN_THE_PAPER, VARIANTS, Row, Simulated
from harness.papers.spare.simulation import Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several seeds; `standard_error` is that of the mean, None of one seed."""

    mean: float
    least: float
    greatest: float
    standard_error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one."""
        standard_error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(mean(values), min(values), max(values), standard_error)


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A row of the authors' table, and what comes of it here; None: not simulated."""

    claim: Claim
    num_seeds: int
    time_ratio: Spread | None
    availability_ratio: Spread | None
    num_wipe_outs: float | None
    period_steps: int | None
    mean_depth: float | None

    def errors(self) -> tuple[tuple[float, float], ...]:
        """How far ours is from theirs, of the time and where they tell it of the availability: (ratio, its error)."""
        pairs = ((self.time_ratio, self.claim.time_ratio), (self.availability_ratio, self.claim.availability_ratio))
        return tuple(
            (ours.mean / theirs - 1, (ours.standard_error or 0.0) / theirs)
            for ours, theirs in pairs
            if ours is not None and theirs is not None
        )

    def error_ratios(self) -> tuple[float, ...]:
        """The same without how sure it is."""
        return tuple(ratio for ratio, _ in self.errors())


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Time to train and availability for so many copies."""

    scheme: Scheme
    num_groups: int
    redundancy: int
    time_ratio: float
    availability_ratio: float
    mean_depth: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What changes when one thing is assumed otherwise, at the paper's best redundancies of one N.

    Ratios of the time without failures; None: not simulated, or it never ends. `gain_ratio` is by how much SPARe takes
    less time than replication.
    """

    assumed: str
    num_groups: int
    spare_ratio: float | None
    replication_ratio: float | None
    spare_is_over: bool
    replication_is_over: bool

    @property
    def gain_ratio(self) -> float | None:
        """None where one of them never ends."""
        if self.spare_ratio is None or self.replication_ratio is None:
            return None
        return 1 - self.spare_ratio / self.replication_ratio


def claim_rows(simulated: Simulated) -> tuple[ClaimRow, ...]:
    """As in the authors' table."""
    return tuple(_claim_row(claim, simulated) for claim in CLAIMS)


def _claim_row(claim: Claim, simulated: Simulated) -> ClaimRow:
    outcomes = simulated.of(Row(claim.scheme, claim.num_groups, claim.redundancy))
    if not outcomes:
        return ClaimRow(claim, 0, None, None, None, None, None)
    return ClaimRow(
        claim,
        len(outcomes),
        Spread.of([one.time_ratio for one in outcomes]),
        Spread.of([one.availability_ratio for one in outcomes]),
        mean(one.num_wipe_outs for one in outcomes),
        outcomes[0].period_steps,
        mean(one.mean_depth for one in outcomes),
    )


def curve(simulated: Simulated) -> tuple[CurvePoint, ...]:
    """Every redundancy under the paper's assumptions, in ascending order."""
    return tuple(
        CurvePoint(
            row.scheme,
            row.num_groups,
            row.redundancy,
            mean(one.time_ratio for one in outcomes),
            mean(one.availability_ratio for one in outcomes),
            mean(one.mean_depth for one in outcomes),
        )
        for row, outcomes in sorted(simulated.outcomes)
        if row.assumed == AS_IN_THE_PAPER and outcomes and all(one.is_over for one in outcomes)
    )


def best_point(points: Sequence[CurvePoint], scheme: Scheme, num_groups: int) -> CurvePoint | None:
    """The redundancy that takes the least time."""
    mine = [point for point in points if (point.scheme, point.num_groups) == (scheme, num_groups)]
    return min(mine, key=lambda point: point.time_ratio, default=None)


def sensitivities(simulated: Simulated) -> tuple[Sensitivity, ...]:
    """For every N the paper's assumptions first, then each other one."""
    return tuple(_sensitivities(simulated))


def _sensitivities(simulated: Simulated) -> Iterator[Sensitivity]:
    for assumed in (AS_IN_THE_PAPER, *VARIANTS):
        for num_groups in SIZES:
            told = [claim for claim in CLAIMS if claim.num_groups == num_groups and claim.availability_ratio]
            rows = {claim.scheme: Row(claim.scheme, num_groups, claim.redundancy) for claim in told}
            outcomes = {scheme: simulated.of(replace(row, assumed=assumed)) for scheme, row in rows.items()}
            yield Sensitivity(
                assumed,
                num_groups,
                _time_ratio(outcomes["spare"]),
                _time_ratio(outcomes["replication"]),
                all(one.is_over for one in outcomes["spare"]),
                all(one.is_over for one in outcomes["replication"]),
            )


def _time_ratio(outcomes: Sequence[Outcome]) -> float | None:
    if not outcomes or not all(one.is_over for one in outcomes):
        return None
    return mean(one.time_ratio for one in outcomes)
