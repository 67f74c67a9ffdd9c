"""The way in: what a policy makes of a job under failures, over several replications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import fmean

from harness.analysis.regroups import RUNGS
from mecefo_chaos.studies.forecast.bamboo import Bamboo
from mecefo_chaos.studies.forecast.failures import losses
from mecefo_chaos.studies.forecast.layouts import Layouts
from mecefo_chaos.studies.forecast.masking import MASKING
from mecefo_chaos.studies.forecast.model import (
    BAMBOO,
    CAUSES,
    Failures,
    Forecast,
    JobModel,
    Loss,
    Outcome,
    Policy,
    Recovery,
    Spread,
)
from mecefo_chaos.studies.forecast.pipeline import rate_free
from mecefo_chaos.studies.forecast.simulation import Rates, simulate

# What is tried around Young's interval.
_INTERVAL_FACTORS = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)


def rates_of(job: JobModel, policy: Policy) -> Rates:
    """The ratings of the policy's layouts. They can be shared by all forecasts of the same job and policy."""
    if policy.name == BAMBOO:
        return Bamboo(job)
    if policy.name in MASKING:
        return MASKING[policy.name](job, policy.redundancy)
    return Layouts(job, policy)


def forecast(
    job: JobModel,
    policy: Policy,
    failures: Failures,
    recovery: Recovery,
    *,
    hours: float,
    seed: int = 0,
    num_replications: int = 1,
    rates: Rates | None = None,
) -> Forecast:
    """Simulate `hours` of the job `num_replications` times, each with its own failures drawn from `seed`.

    The failures of a replication are the same for every policy.

    Raises:
        ValueError: there is nothing to simulate.
    """
    if not (hours > 0 and num_replications >= 1):
        raise ValueError(f"{num_replications} replications of {hours} hours are nothing to simulate")
    horizon_seconds = hours * 3600
    drawn = _draw(job, failures, horizon_seconds, seed, num_replications)
    return _forecast(job, policy, drawn, recovery, horizon_seconds, seed, rates or rates_of(job, policy))


def _draw(
    job: JobModel, failures: Failures, horizon_seconds: float, seed: int, num_replications: int
) -> list[Sequence[Loss]]:
    """The losses of each replication, the same for every policy."""
    return [losses(failures, job.cluster, horizon_seconds, seed + number) for number in range(num_replications)]


def _forecast(
    job: JobModel,
    policy: Policy,
    drawn: Sequence[Sequence[Loss]],
    recovery: Recovery,
    horizon_seconds: float,
    seed: int,
    rates: Rates,
) -> Forecast:
    free_seconds = rate_free(job).step_seconds
    policy_seconds = rates.free.step_seconds
    outcomes = tuple(
        simulate(
            rates,
            policy,
            recovery,
            found,
            horizon_seconds,
            free_seconds,
            job.cluster.num_ranks,
            seed + number,
            num_nodes=job.cluster.nodes,
        )
        for number, found in enumerate(drawn)
    )
    recoveries = [seconds for one in outcomes for seconds in one.recovery_seconds]
    return Forecast(
        policy=policy,
        wall_clock_seconds=horizon_seconds,
        tokens_per_step=job.tokens_per_step,
        free_step_seconds=free_seconds,
        policy_step_seconds=policy_seconds,
        settled_drop_ratio=Spread.of(_settled_drop(one, policy_seconds) for one in outcomes),
        drop_ratio=Spread.of(1 - one.num_steps * policy_seconds / one.wall_clock_seconds for one in outcomes),
        goodput_ratio=Spread.of(one.goodput_ratio for one in outcomes),
        degraded_ratio=Spread.of(one.degraded_ratio for one in outcomes),
        projected_ratio=Spread.of(one.projected_ratio for one in outcomes),
        recovery_seconds=Spread.of(recoveries) if recoveries else None,
        productive_seconds=fmean(one.productive_seconds for one in outcomes),
        lost_seconds={cause: fmean(one.lost_seconds[cause] for one in outcomes) for cause in CAUSES},
        num_losses=fmean(one.num_losses for one in outcomes),
        num_regroups=fmean(one.num_regroups for one in outcomes),
        down_ratio=fmean(one.down_ratio for one in outcomes),
        rungs={rung: fmean(one.rungs.get(rung, 0) for one in outcomes) for rung in RUNGS},
        checkpoint_interval_seconds=None if recovery.checkpoint is None else recovery.checkpoint.interval_seconds,
        outcomes=outcomes,
    )


def _settled_drop(outcome: Outcome, policy_seconds: float) -> float:
    return 1 - outcome.num_steps * policy_seconds / outcome.settled_seconds if outcome.num_steps else 1.0


def young_interval_seconds(save_seconds: float, interval_seconds: float) -> float:
    """The best time between two checkpoints where failures are rare (Young 1974): sqrt(2 t_save MTBF)."""
    return sqrt(2 * save_seconds * interval_seconds)


@dataclass(frozen=True, slots=True)
class BestInterval:
    """The best of the intervals that were tried: (seconds, median goodput) of each, ascending."""

    seconds: float
    tried: tuple[tuple[float, float], ...]


def best_checkpoint_interval(
    job: JobModel,
    policy: Policy,
    failures: Failures,
    recovery: Recovery,
    *,
    hours: float,
    seed: int = 0,
    num_replications: int = 1,
    rates: Rates | None = None,
) -> BestInterval:
    """The interval with the greatest goodput, sought around Young's, all under the same failures.

    Raises:
        ValueError: the job saves nothing, or saving costs nothing and could be done all the time.
    """
    saving = recovery.checkpoint
    if saving is None or not saving.save_seconds:
        raise ValueError("there is no best interval for a checkpoint that is not there, or costs nothing")
    horizon_seconds = hours * 3600
    drawn = _draw(job, failures, horizon_seconds, seed, num_replications)
    num_losses = fmean(map(len, drawn))
    between_seconds = horizon_seconds / max(num_losses, 1)
    young_seconds = min(young_interval_seconds(saving.save_seconds, between_seconds), horizon_seconds)
    found = rates or rates_of(job, policy)
    tried: dict[float, float] = {}

    def goodput(seconds: float) -> float:
        if seconds not in tried:
            with_interval = replace(recovery, checkpoint=replace(saving, interval_seconds=seconds))
            said = _forecast(job, policy, drawn, with_interval, horizon_seconds, seed, found)
            tried[seconds] = said.goodput_ratio.median
        return tried[seconds]

    best_seconds = max((factor * young_seconds for factor in _INTERVAL_FACTORS), key=goodput)
    for step in (1.2, 1.1):
        best_seconds = max((best_seconds / step, best_seconds, best_seconds * step), key=goodput)
    return BestInterval(best_seconds, tuple(sorted(tried.items())))


def mean_interval_seconds(failures: Failures, num_units: int) -> float:
    """Between two failures of the whole cluster, while all units live; of a trace between those that are in it."""
    if failures.trace is not None:
        times = [loss.at_seconds for loss in failures.trace]
        return max(times) / len(times) if times else inf
    return failures.interval_seconds / (num_units if failures.per_unit else 1)
