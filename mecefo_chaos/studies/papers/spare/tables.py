"""The tables: the authors' rows and ours, times by redundancy, and what each assumption changes and how it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.spare.claims import CLAIMS, SIZES, Claim, Scheme
from mecefo_chaos.studies.papers.spare.simulated import DEFAULT_READING, VARIANTS, Row, Simulated
from mecefo_chaos.studies.papers.spare.simulation import Outcome


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A row of the authors' table, and what comes of it here over the seeds; None: not simulated.

    `time_error` and `availability_error` are of 1, against the authors' figure, of each seed.
    """

    claim: Claim
    num_seeds: int
    time_ratio: Measured | None
    availability_ratio: Measured | None
    time_error: Measured | None
    availability_error: Measured | None
    num_wipe_outs: Measured | None
    num_patches: Measured | None
    period_steps: int | None
    mean_depth: float | None

    def errors(self) -> dict[str, Measured | None]:
        """The errors of what the authors have a figure for."""
        found = {"time to train": self.time_error}
        return found if self.claim.availability_ratio is None else {**found, "availability": self.availability_error}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Time to train, availability and depth of a step with `redundancy` copies, of every seed."""

    scheme: Scheme
    num_groups: int
    redundancy: int
    times: tuple[float, ...]
    availabilities: tuple[float, ...]
    depths: tuple[float, ...]

    @property
    def time_ratio(self) -> float:
        """The median time to train."""
        return median(self.times)

    @property
    def availability_ratio(self) -> float:
        """The median availability."""
        return median(self.availabilities)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What changes when one thing is assumed otherwise, at the paper's best redundancies of one N.

    Times of every seed, in ratios of the time without failures; empty: not simulated, or it never ends.
    """

    assumed: str
    num_groups: int
    spare_times: tuple[float, ...]
    replication_times: tuple[float, ...]
    spare_is_over: bool
    replication_is_over: bool

    @property
    def gain(self) -> Measured | None:
        """How much less time SPARe takes than replication, of the same seed; None where one of them never ends."""
        pairs = zip(self.spare_times, self.replication_times, strict=False)
        return Measured.of(1 - ours / theirs for ours, theirs in pairs)

    @property
    def gain_ratio(self) -> float | None:
        """The median of the gain."""
        return None if self.gain is None else self.gain.median


@dataclass(frozen=True, slots=True)
class Fit:
    """How far the simulation under one reading is from the authors' rows that have an availability.

    Absolute errors of the medians: of the times, and of the availabilities, each with the worst row.
    """

    assumed: str
    mean_time_error: float
    worst_time_error: float
    worst_time_row: str
    mean_availability_error: float
    worst_availability_error: float
    worst_availability_row: str
    num_rows: int

    @property
    def mean_error(self) -> float:
        """The mean over all of these figures."""
        return (self.mean_time_error + self.mean_availability_error) / 2


def claim_rows(simulated: Simulated) -> tuple[ClaimRow, ...]:
    """As in the authors' table."""
    return tuple(_claim_row(claim, simulated) for claim in CLAIMS)


def _claim_row(claim: Claim, simulated: Simulated) -> ClaimRow:
    outcomes = simulated.of(Row(claim.scheme, claim.num_groups, claim.redundancy))
    times, availabilities = [one.time_ratio for one in outcomes], [one.availability_ratio for one in outcomes]
    return ClaimRow(
        claim=claim,
        num_seeds=len(outcomes),
        time_ratio=Measured.of(times),
        availability_ratio=Measured.of(availabilities),
        time_error=_errors(times, claim.time_ratio),
        availability_error=_errors(availabilities, claim.availability_ratio),
        num_wipe_outs=Measured.of(one.num_wipe_outs for one in outcomes),
        num_patches=Measured.of(one.num_patches for one in outcomes),
        period_steps=outcomes[0].period_steps if outcomes else None,
        mean_depth=median(one.mean_depth for one in outcomes) if outcomes else None,
    )


def _errors(ours: Sequence[float], theirs: float | None) -> Measured | None:
    return None if theirs is None else Measured.of(one / theirs - 1 for one in ours)


def curve(simulated: Simulated) -> tuple[CurvePoint, ...]:
    """Every redundancy under the default reading, in ascending order."""
    return tuple(
        CurvePoint(
            row.scheme,
            row.num_groups,
            row.redundancy,
            tuple(one.time_ratio for one in outcomes),
            tuple(one.availability_ratio for one in outcomes),
            tuple(one.mean_depth for one in outcomes),
        )
        for row, outcomes in sorted(simulated.outcomes)
        if row.assumed == DEFAULT_READING and outcomes and all(one.is_over for one in outcomes)
    )


def best_point(points: Sequence[CurvePoint], scheme: Scheme, num_groups: int) -> CurvePoint | None:
    """The redundancy that takes the least time."""
    mine = [point for point in points if (point.scheme, point.num_groups) == (scheme, num_groups)]
    return min(mine, key=lambda point: point.time_ratio, default=None)


def sensitivities(simulated: Simulated) -> tuple[Sensitivity, ...]:
    """For every N the default reading first, then each other one."""
    return tuple(_sensitivities(simulated))


def _sensitivities(simulated: Simulated) -> Iterator[Sensitivity]:
    for assumed in (DEFAULT_READING, *VARIANTS):
        for num_groups in SIZES:
            told = [claim for claim in CLAIMS if claim.num_groups == num_groups and claim.availability_ratio]
            rows = {claim.scheme: Row(claim.scheme, num_groups, claim.redundancy) for claim in told}
            outcomes = {scheme: simulated.of(replace(row, assumed=assumed)) for scheme, row in rows.items()}
            yield Sensitivity(
                assumed,
                num_groups,
                _times(outcomes["spare"]),
                _times(outcomes["replication"]),
                all(one.is_over for one in outcomes["spare"]),
                all(one.is_over for one in outcomes["replication"]),
            )


def _times(outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    return tuple(one.time_ratio for one in outcomes) if all(one.is_over for one in outcomes) else ()


def fits(simulated: Simulated) -> tuple[Fit, ...]:
    """Every reading under which all of these rows were simulated and finish, the nearest first."""
    found = [_fit(assumed, simulated) for assumed in (DEFAULT_READING, *VARIANTS)]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.mean_error))


def _fit(assumed: str, simulated: Simulated) -> Fit | None:
    times: dict[str, float] = {}
    availabilities: dict[str, float] = {}
    for claim in CLAIMS:
        if claim.availability_ratio is None:
            continue
        outcomes = simulated.of(Row(claim.scheme, claim.num_groups, claim.redundancy, assumed))
        if not outcomes or not all(one.is_over for one in outcomes):
            return None
        times[claim.words] = median(one.time_ratio for one in outcomes) / claim.time_ratio - 1
        availabilities[claim.words] = median(one.availability_ratio for one in outcomes) / claim.availability_ratio - 1
    worst_time, worst_availability = (max(of, key=lambda row: abs(of[row])) for of in (times, availabilities))
    return Fit(
        assumed,
        fmean(map(abs, times.values())),
        times[worst_time],
        worst_time,
        fmean(map(abs, availabilities.values())),
        availabilities[worst_availability],
        worst_availability,
        len(times),
    )
