"""Does time dilation keep the machine's load out of the figures? `python -m benchmarks.dilation [--json] [--quick]`.

One and the same fault-free job, with dilation and without, on an idle machine and beside a busy loop on one of its
cores. Its speed is the median step's after warm-up, from the event log. What matters is busy / idle: with dilation it
should be as near to 1 as a repetition of the idle run is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import click

from benchmarks._busy_core import BusyCore
from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, failure_of, finish, progress, run_folder, run_once
from benchmarks._spread import Spread, spread, table
from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping

Dilation = Literal["auto", "off"]
DILATIONS: Mapping[Dilation, str] = {"auto": "dilated", "off": "not dilated"}
# As many as the smallest CI machine has: with one core per rank there is nothing to dilate.
NUM_CORES = 2
# Many short runs rather than few long ones: what a core gets done in a second of CPU time drifts within a minute.
NUM_ROUNDS, NUM_STEPS = 10, 25
QUICK_NUM_ROUNDS, QUICK_NUM_STEPS = 1, 12


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the four ways to run the job."""

    dilation: Dilation
    is_busy: bool

    def __str__(self) -> str:
        return f"{DILATIONS[self.dilation]}, {'one core busy' if self.is_busy else 'idle'}"


CONDITIONS = tuple(Condition(dilation, is_busy) for dilation in DILATIONS for is_busy in (False, True))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. `others_cores` is how many cores others used meanwhile, the busy loop left out.

    `busy_loop_ratio` is what the busy loop got of its core, None on an idle machine. `tokens_per_second` and
    `compute_cpu_seconds` (of all ranks) are None where the run has a `failure`.
    """

    round_number: int
    condition: Condition
    dilation_ratio: float | None
    tokens_per_second: float | None
    compute_cpu_seconds: float | None
    others_cores: float
    busy_loop_ratio: float | None
    failure: str | None


def plan_rounds(num_rounds: int) -> list[tuple[Condition, ...]]:
    """The order of the runs: every other round backwards, so that a drift of the machine favours no condition."""
    return [CONDITIONS if number % 2 == 0 else CONDITIONS[::-1] for number in range(num_rounds)]


def job_of(dilation: Dilation, num_steps: int) -> Experiment:
    """The job: the default one without faults, on the CPU, whose time dilation pads."""
    job = {"steps": num_steps, "dilation": dilation, "device": "cpu"}
    return from_mapping({"name": f"dilation-{dilation}", "job": job, "twin": False})


def measure(condition: Condition, round_number: int, num_steps: int, cores: Sequence[int], out: Path) -> Measurement:
    """Run the job once under `condition`."""
    experiment = job_of(condition.dilation, num_steps)
    busy = BusyCore(cores[0]) if condition.is_busy else None
    with OtherLoad(cores) as others, busy or nullcontext():
        summary = run_once(experiment, out)
    failure = failure_of(summary)
    return Measurement(
        round_number=round_number,
        condition=condition,
        dilation_ratio=summary.dilation_ratio,
        tokens_per_second=None if failure else summary.throughput_tokens_per_second.before,
        compute_cpu_seconds=None if failure else summary.compute_cpu_seconds,
        others_cores=others.num_cores,
        busy_loop_ratio=None if busy is None else busy.cpu_ratio,
        failure=failure,
    )


def speeds(measurements: Sequence[Measurement], condition: Condition) -> dict[int, float]:
    """Tokens per second by round; a run that failed has none."""
    return {
        measurement.round_number: measurement.tokens_per_second
        for measurement in sorted(measurements, key=lambda measurement: measurement.round_number)
        if measurement.condition == condition and measurement.tokens_per_second is not None
    }


def busy_over_idle(measurements: Sequence[Measurement], dilation: Dilation) -> Spread:
    """Speed beside the busy loop over that on the idle machine, of every round."""
    idle, busy = (speeds(measurements, Condition(dilation, is_busy)) for is_busy in (False, True))
    return spread(busy[number] / idle[number] for number in idle if number in busy)


def busy_over_idle_per_cpu_second(measurements: Sequence[Measurement], dilation: Dilation) -> Spread:
    """As `busy_over_idle`, with what the same work cost in CPU time divided out.

    That cost drifts from run to run, with or without the loop; dilation multiplies it and cannot remove it.
    """

    def paces(is_busy: bool) -> dict[int, float]:
        return {
            m.round_number: m.tokens_per_second * m.compute_cpu_seconds
            for m in measurements
            if m.condition == Condition(dilation, is_busy)
            and m.tokens_per_second is not None
            and m.compute_cpu_seconds is not None
        }

    idle, busy = paces(False), paces(True)
    return spread(busy[number] / idle[number] for number in idle if number in busy)


def idle_over_idle(measurements: Sequence[Measurement], dilation: Dilation) -> Spread:
    """Speed on the idle machine over that in the round before: the noise of a ratio of two runs."""
    idle = speeds(measurements, Condition(dilation, False))
    return spread(later / earlier for earlier, later in pairwise(idle.values()))


def report(measurements: Sequence[Measurement], machine: Machine, num_steps: int) -> str:
    """The result as text."""
    rows = []
    for condition in CONDITIONS:
        own = [measurement for measurement in measurements if measurement.condition == condition]
        loop = spread(m.busy_loop_ratio for m in own if m.busy_loop_ratio is not None)
        others = spread(measurement.others_cores for measurement in own)
        rows.append(
            (
                str(condition),
                *spread(speeds(measurements, condition).values()).to_text(lambda value: f"{value:,.0f}"),
                f"{loop.median:.0%}" if loop.values else "-",
                f"{max(others.values):.2f} cores" if others.values else "-",
            )
        )
    ratios = [
        (f"{kind}, {name}", *ratio(measurements, dilation).to_text(lambda value: f"{value:.3f}"))
        for dilation, name in DILATIONS.items()
        for kind, ratio in (
            ("busy / idle", busy_over_idle),
            ("busy / idle, per CPU second", busy_over_idle_per_cpu_second),
            ("idle / idle before", idle_over_idle),
        )
    ]
    dilation_ratio = next((m.dilation_ratio for m in measurements if m.condition.dilation == "auto"), None)
    failures = [f"round {m.round_number}, {m.condition}: FAILED: {m.failure}" for m in measurements if m.failure]
    return "\n".join(
        [
            f"machine: {machine}",
            f"job: the default one without faults, {num_steps} steps; dilated means x{dilation_ratio}",
            "",
            table(
                ("tokens/s (median step)", "median", "min", "max", "n", "loop got of its core", "others used at most"),
                rows,
            ),
            "",
            table(("ratio of two runs", "median", "min", "max", "n"), ratios),
            *(["", *failures] if failures else []),
        ]
    )


def to_document(measurements: Sequence[Measurement], machine: Machine, num_steps: int) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "dilation",
        "machine": machine.to_dict(),
        "job": job_of("auto", num_steps).job.model_dump(mode="json", exclude={"dilation"}),
        "runs": [asdict(measurement) for measurement in measurements],
        "tokens_per_second": {
            str(condition): spread(speeds(measurements, condition).values()).to_dict() for condition in CONDITIONS
        },
        "ratios": {
            name: {
                "busy_over_idle": busy_over_idle(measurements, dilation).to_dict(),
                "busy_over_idle_per_cpu_second": busy_over_idle_per_cpu_second(measurements, dilation).to_dict(),
                "idle_over_idle": idle_over_idle(measurements, dilation).to_dict(),
            }
            for dilation, name in DILATIONS.items()
        },
    }


@click.command(help=__doc__)
@benchmark_options
def main(as_json: bool, quick: bool, out: Path | None) -> None:
    """Entry point."""
    num_rounds, num_steps = (QUICK_NUM_ROUNDS, QUICK_NUM_STEPS) if quick else (NUM_ROUNDS, NUM_STEPS)
    measurements: list[Measurement] = []
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        for number, conditions in enumerate(plan_rounds(num_rounds), start=1):
            for condition in conditions:
                found = measure(condition, number, num_steps, cores, folder)
                measurements.append(found)
                speed = f"FAILED: {found.failure}" if found.failure else f"{found.tokens_per_second:,.0f} tokens/s"
                progress(f"round {number} of {num_rounds}, {condition}: {speed}")
    finish(
        to_document(measurements, machine, num_steps),
        report(measurements, machine, num_steps),
        as_json=as_json,
        has_failures=any(measurement.failure for measurement in measurements),
    )


if __name__ == "__main__":
    main()
