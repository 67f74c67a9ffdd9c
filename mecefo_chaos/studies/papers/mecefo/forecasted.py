"""The paper's experiment as the forecast sees it: what each method makes of the paper's own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from mecefo_chaos.studies.forecast.forecast import best_checkpoint_interval, forecast, rates_of
from mecefo_chaos.studies.forecast.model import Failures, Forecast, Recovery, Saving, Spread
from mecefo_chaos.studies.forecast.pipeline import replica_seconds
from mecefo_chaos.studies.forecast.simulation import Rates
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, Cell, job_of
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_runtime.planners import NoLayout, Situation, find

NUM_SEEDS = 5
# As long as the paper's 7B run.
HOURS = 40.0
# Assumed: from a loss, or a rejoin, until the changed membership works, without moving state.
REGROUP_SECONDS = 5.0
# Checkpoint-restart at its best: storage that takes the whole state in so many seconds, and a spare at once.
SAVE_SECONDS, RESTORE_SECONDS, RESTART_SECONDS = 30.0, 30.0, 120.0
_NUM_DRAWN = 200
# Seeds of the means over these draws.
NUM_AVERAGED = 5
# What is kept of a drop: the same on every machine.
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Forecasted:
    """The drop of tokens/s in one cell: of the layouts alone, and with regroups and transfers, median and spread."""

    cell: Cell
    settled: tuple[float, float, float]
    with_events: tuple[float, float, float]
    free_tokens_per_second: float
    degraded_ratio: float
    num_seeds: int

    @property
    def settled_drop(self) -> Measured:
        """The drop of the layouts alone, over the seeds."""
        return Measured(*self.settled, self.num_seeds)

    @property
    def drop(self) -> Measured:
        """The drop with regroups and transfers, over the seeds."""
        return Measured(*self.with_events, self.num_seeds)

    @property
    def tokens_per_second(self) -> float:
        """What is left under the failures."""
        return self.free_tokens_per_second * (1 - self.with_events[0])


def failures_of(cell: Cell) -> Failures:
    """The paper's process."""
    process = cell.of_process
    return Failures(interval_seconds=process.interval_hours * 3600, repair_seconds=process.repair_hours * 3600)


def recovery_of(cell: Cell) -> Recovery:
    """What a loss costs beside slower layouts; state moves by the device's links, which the planner's costs tell."""
    if cell.method != "checkpoint":
        return Recovery(regroup_seconds=REGROUP_SECONDS)
    saving = Saving(interval_seconds=600, save_seconds=SAVE_SECONDS, restore_seconds=RESTORE_SECONDS)
    return Recovery(restart_seconds=RESTART_SECONDS, replacement_seconds=0.0, checkpoint=saving)


def forecast_cell(
    cell: Cell, *, hours: float = HOURS, num_seeds: int = NUM_SEEDS, rates: Rates | None = None
) -> Forecasted:
    """What the method makes of the paper's own process; for checkpoints, at their best interval."""
    job, policy, failures = job_of(cell), METHODS[cell.method].policy, failures_of(cell)
    recovery = recovery_of(cell)
    rates = rates or rates_of(job, policy)
    told: dict[str, Any] = {"hours": hours, "num_replications": num_seeds, "rates": rates}
    if recovery.checkpoint is not None:
        best = best_checkpoint_interval(job, policy, failures, recovery, **told)
        recovery = replace(recovery, checkpoint=replace(recovery.checkpoint, interval_seconds=best.seconds))
    return _told(cell, forecast(job, policy, failures, recovery, **told), num_seeds)


def _told(cell: Cell, found: Forecast, num_seeds: int) -> Forecasted:
    settled, drop = found.settled_drop_ratio, found.drop_ratio
    return Forecasted(
        cell=cell,
        settled=_rounded(settled),
        with_events=_rounded(drop),
        free_tokens_per_second=round(found.tokens_per_step / found.policy_step_seconds, 1),
        degraded_ratio=round(found.degraded_ratio.median, _DIGITS),
        num_seeds=num_seeds,
    )


def _rounded(spread: Spread) -> tuple[float, float, float]:
    return round(spread.median, _DIGITS), round(spread.least, _DIGITS), round(spread.greatest, _DIGITS)


def averaged_drops(cell: Cell, num_seeds: int = NUM_AVERAGED, num_drawn: int = _NUM_DRAWN) -> tuple[float, ...]:
    """The drop if replicas did not wait for each other: each at its own rate, and the rates averaged; by seed.

    No synchronous training runs so. It is what a simulation of one pipeline at a time, or a rate of each replica by
    itself, would count; told as the most favourable reading of the paper's figure.
    """
    job = job_of(cell)
    cluster, planner = job.cluster, find(METHODS[cell.method].policy.name)

    def rate(dead: Sequence[int]) -> float:
        alive = frozenset(range(cluster.num_ranks)) - frozenset(dead)
        try:
            layout = planner(Situation(cluster, alive, job.costs))
        except NoLayout:
            return 0.0
        return sum(one.num_microbatches / replica_seconds(one, cluster.num_layers, job) for one in layout.replicas)

    free = rate(())

    def drop(seed: int) -> float:
        generator = np.random.default_rng(seed)
        numbers = np.minimum(generator.poisson(cell.of_process.mean_down, num_drawn), cluster.num_ranks)
        drawn = (generator.choice(cluster.num_ranks, int(number), replace=False) for number in numbers)
        return round(1 - fmean(rate([int(rank) for rank in dead]) for dead in drawn) / free, _DIGITS)

    return tuple(drop(seed) for seed in range(num_seeds))
