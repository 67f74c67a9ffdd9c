"""Does a run repeat its own figures? `python -m benchmarks.repeatability [--json] [--quick]`.

1. One experiment, the loss of a node and its return, again and again, every other time beside a busy loop on one core:
   how far throughput drop and median step time are apart, from least to greatest. With rated pacing and the ratings of
   the first run for all, as `--repeat`, `compare`, `replay` and `--baseline` do; and with measured pacing.
2. The same experiment under three strategies, a seed after the other: whether `mecefo` (--quality speed), `ndb` and
   `exact` come in this order, which is that of what they compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from benchmarks._busy_core import BusyCore
from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, failure_of, finish, progress, run_folder, run_once
from benchmarks._spread import Spread, spread, table
from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping

# As many as the smallest CI machine has: with one core per rank there is nothing to dilate.
NUM_CORES = 2
NUM_RUNS, NUM_SEEDS = 10, 10
QUICK_NUM_RUNS, QUICK_NUM_SEEDS = 2, 1
STEPS = {"fault": 40, "repair": 40, "all": 100}
QUICK_STEPS = {"fault": 12, "repair": 8, "all": 30}
STRATEGIES = ("mecefo", "ndb", "exact")

# What is to hold of rated pacing with shared ratings.
MAX_DROP_RANGE_POINTS = 1.0
MAX_STEP_RANGE_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Way:
    """One way of measuring one experiment."""

    name: str
    pacing: str
    shares_ratings: bool


WAYS = (Way("rated", "rated", True), Way("measured", "measured", False))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run, of `way` or of a strategy with a `seed`. Of a run that has a `failure` the figures are None.

    `others_cores` is how many cores others used meanwhile, the busy loop left out; `overrun_ratio` the share of compute
    segments that took longer than they were to.
    """

    name: str
    seed: int
    is_busy: bool
    drop_ratio: float | None
    step_seconds: float | None
    overrun_ratio: float | None
    others_cores: float
    failure: str | None


def experiment_of(pacing: str, strategy: str, seed: int, steps: Mapping[str, int]) -> Experiment:
    """A node is lost and comes back; on the CPU, whose compute is paced."""
    job: dict[str, Any] = {"steps": steps["all"], "strategy": strategy, "pacing": pacing, "device": "cpu"}
    if strategy == "mecefo":
        job["quality"] = "speed"
    fault = {"kind": "kill-node", "at": {"step": steps["fault"]}, "repair": f"{steps['repair']}steps"}
    return from_mapping({"name": "repeatability", "seed": seed, "job": job, "faults": [fault], "twin": False})


class Bench:
    """Runs one experiment after the other on `cores`; what they come to is in `measurements`."""

    def __init__(self, cores: Sequence[int], out: Path, steps: Mapping[str, int]) -> None:
        self._cores = cores
        self._out = out
        self._steps = steps
        self.measurements: list[Measurement] = []

    def run(
        self, name: str, pacing: str, strategy: str, seed: int, ratings: Mapping[str, Any] | None, *, is_busy: bool
    ) -> Mapping[str, Any] | None:
        """One run; returns its ratings."""
        experiment = experiment_of(pacing, strategy, seed, self._steps)
        with OtherLoad(self._cores) as others, BusyCore(self._cores[0]) if is_busy else nullcontext():
            summary = run_once(experiment, self._out, ratings)
        failure = failure_of(summary)
        found = Measurement(
            name=name,
            seed=seed,
            is_busy=is_busy,
            drop_ratio=None if failure else summary.throughput_drop_ratio,
            step_seconds=None if failure else summary.step_seconds,
            overrun_ratio=summary.overrun_segments_ratio,
            others_cores=others.num_cores,
            failure=failure,
        )
        self.measurements.append(found)
        drop = "FAILED" if found.drop_ratio is None else f"drop {found.drop_ratio:.2%}, step {found.step_seconds:.4f} s"
        progress(f"{name}, seed {seed}, {'one core busy' if is_busy else 'idle'}: {failure or drop}")
        return summary.ratings

    def repeat(self, num_runs: int) -> None:
        """All ways in turn, so that a drift of the machine favours none."""
        shared: Mapping[str, Any] | None = None
        for number in range(num_runs):
            for way in WAYS:
                ratings = shared if way.shares_ratings else None
                told = self.run(way.name, way.pacing, "mecefo", 0, ratings, is_busy=number % 2 == 1)
                shared = told if way.shares_ratings and shared is None else shared

    def compare(self, num_seeds: int) -> None:
        """The strategies in turn, with the ratings of the first of each seed."""
        for seed in range(num_seeds):
            ratings: Mapping[str, Any] | None = None
            for strategy in STRATEGIES:
                ratings = self.run(strategy, "rated", strategy, seed, ratings, is_busy=False) or ratings


def drops(measurements: Sequence[Measurement], name: str) -> Spread:
    """Throughput drops of the runs of that name."""
    return spread(m.drop_ratio for m in measurements if m.name == name and m.drop_ratio is not None)


def steps_seconds(measurements: Sequence[Measurement], name: str) -> Spread:
    """Median step times before the fault of the runs of that name."""
    return spread(m.step_seconds for m in measurements if m.name == name and m.step_seconds is not None)


def drop_range_points(measurements: Sequence[Measurement], name: str) -> float | None:
    """From the least to the greatest drop, in percentage points."""
    values = drops(measurements, name).values
    return 100 * (max(values) - min(values)) if values else None


def step_range_ratio(measurements: Sequence[Measurement], name: str) -> float | None:
    """From the least to the greatest step time, over the median."""
    found = steps_seconds(measurements, name)
    return (max(found.values) - min(found.values)) / found.median if found.values else None


def seeds_in_order(measurements: Sequence[Measurement]) -> tuple[int, int]:
    """(Seeds of which the strategies came in the order in which they are named, seeds)."""
    by_seed: dict[int, dict[str, float]] = {}
    for m in measurements:
        if m.name in STRATEGIES:
            of_seed = by_seed.setdefault(m.seed, {})
            if m.drop_ratio is not None:
                of_seed[m.name] = m.drop_ratio
    num_ordered = sum(
        len(found) == len(STRATEGIES) and all(found[one] < found[other] for one, other in pairwise(STRATEGIES))
        for found in by_seed.values()
    )
    return num_ordered, len(by_seed)


def report(measurements: Sequence[Measurement], machine: Machine, steps: Mapping[str, int]) -> str:
    """The result as text."""
    rows = []
    for name in (*(way.name for way in WAYS), *STRATEGIES):
        own = [m for m in measurements if m.name == name]
        if not own:
            continue
        points, ratio = drop_range_points(own, name), step_range_ratio(own, name)
        overruns = [m.overrun_ratio for m in own if m.overrun_ratio is not None]
        rows.append(
            (
                name,
                *drops(own, name).to_text(lambda value: f"{value:.1%}"),
                "-" if points is None else f"{points:.2f} points",
                "-" if ratio is None else f"{ratio:.2%}",
                f"{max(overruns):.1%}" if overruns else "-",
                f"{max((m.others_cores for m in own), default=0.0):.2f} cores",
            )
        )
    points, ratio = (figure(measurements, WAYS[0].name) for figure in (drop_range_points, step_range_ratio))
    num_ordered, num_seeds = seeds_in_order(measurements)
    aims: list[tuple[str, bool]] = []
    if points is not None and ratio is not None:
        aims.append((f"throughput drop within {MAX_DROP_RANGE_POINTS:g} point", points <= MAX_DROP_RANGE_POINTS))
        aims.append((f"median step time within {MAX_STEP_RANGE_RATIO:.0%}", ratio <= MAX_STEP_RANGE_RATIO))
    if num_seeds:
        aims.append((f"mecefo < ndb < exact in {num_ordered} of {num_seeds} seeds", num_ordered == num_seeds))
    header = ("throughput drop", "median", "min", "max", "n", "range", "step time, range", "late segments", "others")
    return "\n".join(
        [
            f"machine: {machine}",
            f"job: the default one, {steps['all']} steps, kill-node at step {steps['fault']}, "
            f"repair after {steps['repair']}; every other run of rated and measured beside a busy loop",
            "",
            table(header, rows),
            "",
            *(f"{'met' if is_met else 'MISSED'}: {aim}" for aim, is_met in aims),
            *(f"{m.name}, seed {m.seed}: FAILED: {m.failure}" for m in measurements if m.failure),
        ]
    )


def to_document(measurements: Sequence[Measurement], machine: Machine, steps: Mapping[str, int]) -> dict[str, Any]:
    """The result as plain JSON values."""
    num_ordered, num_seeds = seeds_in_order(measurements)
    return {
        "benchmark": "repeatability",
        "machine": machine.to_dict(),
        "steps": dict(steps),
        "runs": [asdict(m) for m in measurements],
        "figures": {
            name: {
                "drop_ratio": drops(measurements, name).to_dict(),
                "drop_range_points": drop_range_points(measurements, name),
                "step_seconds": steps_seconds(measurements, name).to_dict(),
                "step_range_ratio": step_range_ratio(measurements, name),
            }
            for name in (*(way.name for way in WAYS), *STRATEGIES)
        },
        "seeds_in_order": num_ordered,
        "num_seeds": num_seeds,
    }


@click.command(help=__doc__)
@benchmark_options
@click.option("--part", type=click.Choice(["both", "runs", "seeds"]), default="both", help="Only the first, or second.")
def main(as_json: bool, quick: bool, out: Path | None, part: str) -> None:
    """Entry point."""
    num_runs, num_seeds = (QUICK_NUM_RUNS, QUICK_NUM_SEEDS) if quick else (NUM_RUNS, NUM_SEEDS)
    steps = QUICK_STEPS if quick else STEPS
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        bench = Bench(cores, folder, steps)
        if part != "seeds":
            bench.repeat(num_runs)
        if part != "runs":
            bench.compare(num_seeds)
    found = bench.measurements
    finish(
        to_document(found, machine, steps),
        report(found, machine, steps),
        as_json=as_json,
        has_failures=any(m.failure for m in found),
    )


if __name__ == "__main__":
    main()
