"""Results of emulated runs that nobody made: for whoever judges, merges or shows them."""

from __future__ import annotations

from mecefo_chaos.studies.papers.mecefo.emulated import EmulatedRun
from mecefo_chaos.studies.papers.mecefo.fault_free import FaultFree, Speed
from mecefo_chaos.studies.papers.mecefo.forecasts import Forecasts
from mecefo_chaos.studies.papers.mecefo.results import Result, Results, paired
from mecefo_chaos.studies.papers.mecefo.setting import Cell
from mecefo_chaos.studies.papers.mecefo.undilated import Drop, Undilated

FREE_SECONDS = 4.0
FAULT_FREE = FaultFree("2026-01-03", "a command", "another machine", (Speed("a job", 1.234, 1.2, 1.3, 4),))
UNDILATED = Undilated("2026-01-02", "a machine", (Drop("exact", 0.123, 0.1, 0.14, 3),))


def run_of(
    cell: Cell,
    seed: int | None,
    settled_drop: float = 0.001,
    event_seconds: float = 1.0,
    overrun_ratio: float = 0.0,
    unrest_ratio: float = 0.0,
) -> EmulatedRun:
    """A run of that drop, as predicted, or without a seed a failure-free one."""
    run = EmulatedRun(cell, seed, 1.0, 42, FREE_SECONDS, FREE_SECONDS, overrun_ratio=overrun_ratio)
    if seed is None:
        return run
    seconds = FREE_SECONDS / (1 - settled_drop)
    return EmulatedRun(
        cell,
        seed,
        1.0,
        42,
        FREE_SECONDS,
        FREE_SECONDS,
        num_settled_steps=20,
        settled_step_seconds=seconds,
        plain_step_seconds=seconds * (1 + unrest_ratio),
        predicted_step_seconds=seconds,
        mean_down=4.0,
        num_events=14,
        regroup_real_seconds=event_seconds / 2,
        other_seconds=event_seconds / 2,
        overrun_ratio=overrun_ratio,
        worst_overrun_seconds=0.01,
    )


def result_of(run: EmulatedRun) -> Result:
    """`run`, with where and when."""
    return Result(run, "2026-11-23", "cores 2", "runs/x/20261123T000000Z")


def results_of(*runs: EmulatedRun) -> Results:
    """By what they are the results of."""
    return paired(map(result_of, runs))


def cell_of(shape: str = "4x8", size: str = "7b", num_microbatches: int = 8, method: str = "mecefo-speed") -> Cell:
    """One of those that gates look at, unless something else is said."""
    return Cell(size, "high", shape, num_microbatches, method)


NO_FORECASTS = Forecasts((), ())
