"""Real jobs with a snapshot after every step, and without any, in turns: what a step takes more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._runs import failure_of, progress, run_once
from benchmarks._spread import Spread, spread
from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping

# A job's settings, and its steps.
IDLE = "default job, dilated: the copy fits into idle time"
BUSY = "default job, not dilated: every core is busy"
JOBS: Mapping[str, Mapping[str, Any]] = {
    IDLE: {"steps": 60},
    BUSY: {"steps": 300, "dilation": "off"},
}
WITHOUT, XOR, PQ = "none", "xor", "pq"
CONDITIONS = (WITHOUT, XOR, PQ)


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of `job`, with snapshots of such a protection or without any; `step_seconds` is its median step."""

    job: str
    condition: str
    round_number: int
    step_seconds: float | None
    failure: str | None


def experiment_of(job: str, condition: str, num_steps: int | None = None) -> Experiment:
    """A job that nothing happens to."""
    settings: dict[str, Any] = {"device": "cpu", **JOBS[job]}
    if num_steps is not None:
        settings["steps"] = num_steps
    if condition != WITHOUT:
        settings["snapshots"] = {"every": 1, "protection": condition}
    return from_mapping({"name": "snapshots", "job": settings, "faults": [], "twin": False})


def measure_jobs(num_rounds: int, out: Path, num_steps: int | None = None) -> list[JobRun]:
    """Every job under every condition, so many times, every other round backwards; with the first one's ratings."""
    found = []
    for job in JOBS:
        ratings: Mapping[str, Any] | None = None
        for number in range(num_rounds):
            for condition in CONDITIONS if number % 2 == 0 else CONDITIONS[::-1]:
                summary = run_once(experiment_of(job, condition, num_steps), out, ratings)
                ratings = ratings or summary.ratings
                failure = failure_of(summary)
                found.append(JobRun(job, condition, number, None if failure else summary.step_seconds, failure))
                told = failure or f"{summary.step_seconds or 0.0:.4f} s a step"
                progress(f"{job}, round {number + 1} of {num_rounds}, {condition}: {told}")
    return found


def step_ratios(runs: Sequence[JobRun], job: str, condition: str) -> Spread:
    """The step time with snapshots over that without, of the same round."""
    by_round = {
        (run.round_number, run.condition): run.step_seconds
        for run in runs
        if run.job == job and run.step_seconds is not None
    }
    pairs = [(by_round.get((number, condition)), by_round.get((number, WITHOUT))) for number, _ in by_round]
    return spread(one / other for one, other in dict.fromkeys(pairs) if one is not None and other is not None)
