"""What does fault tolerance cost while nothing fails? `python -m benchmarks.fault_free [--json] [--quick]`.

Plain PyTorch training and ours, of the same model on the same samples in the same layout, in turns on the same cores,
without dilation and without faults: step time, CPU time, memory. And what an agent costs that waits for a fault which
never comes. That the two compute the same is checked: otherwise nothing is reported.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder
from benchmarks._spread import Spread, spread, table
from benchmarks.plain.agent import AgentCost, measure_agent
from benchmarks.plain.phases import PHASES, Window
from benchmarks.plain.runs import ForkServer, Run, RunFailed, run_ours, run_plain
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.system.json_values import to_json

NUM_CORES = 2
NUM_ROUNDS, QUICK_NUM_ROUNDS = 6, 1
WARMUP_STEPS = 5
QUICK_NUM_STEPS = 4
# Phases are measured in runs of their own, since measuring them is not free; not as many are needed.
PHASE_RUN_EVERY = 3

MIN_SPEED_RATIO = 0.98
MAX_MEMORY_RATIO = 1.02
MAX_AGENT_RATIO = 0.005

# Later steps amplify what the first ones rounded differently.
EQUAL_STEPS = 5
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-5, 1e-4

PLAIN, OURS, ARMED, PHASED = "plain", "ours", "ours, armed", "ours, phases timed"
# 6 M parameters: a step is mostly computing, not Python.
LARGER_MODEL = ModelConfig(256, 688, 8, 4, 4, 256)


class NotEqual(RuntimeError):
    """Plain training and ours do not compute the same: to compare their speed would mean nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A job to measure with, and how many steps of it; `with_agent` measures the armed agent too."""

    name: str
    job: JobConfig
    num_steps: int
    with_agent: bool = False


# On the CPU, where plain training is: also where there are GPUs.
DEFAULT_JOB = JobConfig(device="cpu")
LARGER_JOB = replace(DEFAULT_JOB, model=LARGER_MODEL, nodes=2, data_parallel=2)
SHAPES = (
    Shape("default job, 4 x 2", DEFAULT_JOB, 60, with_agent=True),
    Shape("6M parameters, 2 x 2", LARGER_JOB, 20),
    Shape("6M parameters, 2 x 1", replace(LARGER_JOB, gpus_per_node=1, pipeline=1), 20),
    Shape("6M parameters, 1 x 2", replace(LARGER_JOB, gpus_per_node=1, data_parallel=1), 20),
)
QUICK_SHAPES = (SHAPES[0],)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of `shape`; `run` is None where it has a `failure`."""

    shape: str
    round_number: int
    condition: str
    run: Run | None
    failure: str | None = None


def plan_rounds(shape: Shape, num_rounds: int) -> list[tuple[str, ...]]:
    """The order of the runs: every other round backwards, so that a drift of the machine favours no condition."""
    conditions = (PLAIN, OURS, ARMED) if shape.with_agent else (PLAIN, OURS)
    rounds = [conditions if number % 2 == 0 else conditions[::-1] for number in range(num_rounds)]
    return [
        (*conditions, PHASED) if number % PHASE_RUN_EVERY == 0 else conditions
        for number, conditions in enumerate(rounds)
    ]


def check_equal(plain: Run, ours: Run) -> None:
    """Whether both had the same losses and gradient norms in their first steps, to rounding.

    Raises:
        NotEqual: they had not.
    """
    for what, a, b, tolerance in (
        ("loss", plain.losses, ours.losses, LOSS_TOLERANCE),
        ("gradient norm", plain.gradient_norms, ours.gradient_norms, NORM_TOLERANCE),
    ):
        if len(a) != len(b):
            raise NotEqual(f"plain training has {len(a)} steps, ours {len(b)}")
        for step, (theirs, own) in enumerate(zip(a[:EQUAL_STEPS], b[:EQUAL_STEPS], strict=True), start=1):
            if not math.isclose(theirs, own, rel_tol=tolerance):
                raise NotEqual(f"step {step}: the {what} of plain training is {theirs:.8g}, of ours {own:.8g}")


def ratios(
    measurements: Sequence[Measurement], shape: str, over: str, under: str, of: Callable[[Run], float]
) -> Spread:
    """The figure `of` the runs of condition `over`, over that of those of `under` in the same rounds."""
    upper, lower = (_by_round(measurements, shape, condition) for condition in (over, under))
    return spread(of(upper[number]) / of(lower[number]) for number in upper if number in lower)


def _by_round(measurements: Sequence[Measurement], shape: str, condition: str) -> dict[int, Run]:
    return {
        m.round_number: m.run
        for m in sorted(measurements, key=lambda m: m.round_number)
        if (m.shape, m.condition) == (shape, condition) and m.run is not None
    }


def _step_seconds(run: Run) -> float:
    return run.median_step_seconds


def _cpu_seconds(run: Run) -> float:
    return run.cpu_seconds_per_step


def _all_cpu_seconds(run: Run) -> float:
    return run.rank_cpu_seconds + run.other_cpu_seconds


def _growth_bytes(run: Run) -> float:
    return run.growth_bytes


def _peak_bytes(run: Run) -> float:
    return run.peak_bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the result: a figure of the runs of `over`, over that of the runs of `under`."""

    name: str
    over: str
    under: str
    of: Callable[[Run], float]
    at_least: float | None = None
    at_most: float | None = None


COMPARISONS = (
    # Times turned over: what counts is speed.
    Comparison("speed, ours / plain", PLAIN, OURS, _step_seconds, at_least=MIN_SPEED_RATIO),
    Comparison("CPU seconds of ranks, ours / plain", OURS, PLAIN, _cpu_seconds, at_most=1 / MIN_SPEED_RATIO),
    Comparison("CPU seconds of all processes, ours / plain", OURS, PLAIN, _all_cpu_seconds),
    Comparison("memory of training, ours / plain", OURS, PLAIN, _growth_bytes, at_most=MAX_MEMORY_RATIO),
    Comparison("peak RSS with libraries, ours / plain", OURS, PLAIN, _peak_bytes, at_most=MAX_MEMORY_RATIO),
    Comparison("step time, armed / not armed", ARMED, OURS, _step_seconds),
    Comparison("CPU seconds of ranks, armed / not armed", ARMED, OURS, _cpu_seconds),
)


def compare(measurements: Sequence[Measurement], shape: Shape) -> dict[str, Spread]:
    """Every comparison that `shape` has, by name."""
    return {
        c.name: ratios(measurements, shape.name, c.over, c.under, c.of)
        for c in COMPARISONS
        if shape.with_agent or ARMED not in (c.over, c.under)
    }


def phase_table(measurements: Sequence[Measurement], shape: Shape) -> str:
    """Wall and CPU milliseconds of every phase in the mean step, summed over ranks: plain beside ours."""
    rows = []
    sides = {side: _by_round(measurements, shape.name, condition) for side, condition in _PHASE_SIDES.items()}
    for phase in PHASES:
        cells = []
        for kind in (0, 1):
            for runs in sides.values():
                found = spread(run.phases[phase][kind] * 1000 for run in runs.values() if run.phases is not None)
                cells.append(f"{found.median:.1f}" if found.values else "-")
        rows.append((phase, *cells))
    return table(("phase (ms, all ranks, mean step)", "wall plain", "wall ours", "CPU plain", "CPU ours"), rows)


_PHASE_SIDES: Mapping[str, str] = {"plain": PLAIN, "ours": PHASED}


def verdicts(measurements: Sequence[Measurement], shape: Shape) -> list[str]:
    """Which aims the medians meet."""
    found = compare(measurements, shape)
    lines = []
    for c in COMPARISONS:
        values = found.get(c.name)
        if values is None or not values.values or (c.at_least is None and c.at_most is None):
            continue
        is_met = values.median >= c.at_least if c.at_least is not None else values.median <= (c.at_most or 0.0)
        aim = f"at least {c.at_least:.2f}" if c.at_least is not None else f"at most {c.at_most:.2f}"
        lines.append(f"aim: {c.name} {aim}: {'met' if is_met else 'MISSED'} ({values.median:.3f})")
    return lines


def agent_ratio(measurements: Sequence[Measurement], shape: Shape, cost: AgentCost) -> float | None:
    """What the armed agent's announcements take of the median step, None where no step was measured."""
    runs = _by_round(measurements, shape.name, OURS).values()
    steps = spread(run.median_step_seconds for run in runs)
    return cost.seconds_per_step / steps.median if steps.values else None


def report(
    measurements: Sequence[Measurement], shapes: Sequence[Shape], cost: AgentCost, machine: Machine, others_cores: float
) -> str:
    """The result as text."""
    lines = [f"machine: {machine}; others used {others_cores:.2f} cores on average meanwhile"]
    for shape in shapes:
        job = shape.job
        lines += ["", f"{shape.name}: {job.tokens_per_step} tokens a step, {shape.num_steps} steps a run"]
        rows = []
        for condition in (PLAIN, OURS, *([ARMED] if shape.with_agent else [])):
            runs = _by_round(measurements, shape.name, condition).values()
            speeds = spread(job.tokens_per_step / run.median_step_seconds for run in runs)
            cpu = spread(run.cpu_seconds_per_step * 1000 for run in runs)
            growth = spread(run.growth_bytes / 2**20 for run in runs)
            cells = (f"{s.median:,.0f}" if s.values else "-" for s in (cpu, growth))
            rows.append((condition, *speeds.to_text(lambda value: f"{value:,.0f}"), *cells))
        header = ("tokens/s (median step)", "median", "min", "max", "n", "CPU ms a step", "MiB")
        found = [
            (name, *values.to_text(lambda value: f"{value:.3f}"))
            for name, values in compare(measurements, shape).items()
        ]
        lines += [table(header, rows), "", table(("ratio within a round", "median", "min", "max", "n"), found), ""]
        lines += [phase_table(measurements, shape), "", *verdicts(measurements, shape)]
        share = agent_ratio(measurements, shape, cost) if shape.with_agent else None
        if share is not None:
            lines.append(
                f"aim: an armed agent's announcements take at most {MAX_AGENT_RATIO:.1%} of a step: "
                f"{'met' if share <= MAX_AGENT_RATIO else 'MISSED'} ({share:.4%}: {cost})"
            )
    lines += ["", _MEMORY_NOTE]
    failures = [f"{m.shape}, round {m.round_number}, {m.condition}: FAILED: {m.failure}" for m in measurements]
    failures = [line for line, m in zip(failures, measurements, strict=True) if m.failure]
    return "\n".join([*lines, *(["", *failures] if failures else [])])


_MEMORY_NOTE = (
    "MiB and memory of training: peak resident memory of all ranks without mapped files, less what they were forked "
    "with (the libraries, which plain ranks and ours get from the same process)"
)


def to_document(
    measurements: Sequence[Measurement], shapes: Sequence[Shape], cost: AgentCost, machine: Machine, others_cores: float
) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "fault_free",
        "machine": machine.to_dict(),
        "others_cores": others_cores,
        "announce": cost.to_dict(),
        "shapes": [
            {
                "name": shape.name,
                "job": to_json(shape.job),
                "num_steps": shape.num_steps,
                "ratios": {name: values.to_dict() for name, values in compare(measurements, shape).items()},
                "agent_ratio": agent_ratio(measurements, shape, cost) if shape.with_agent else None,
            }
            for shape in shapes
        ],
        "runs": [
            {
                "shape": m.shape,
                "round": m.round_number,
                "condition": m.condition,
                "failure": m.failure,
                **({} if m.run is None else m.run.to_dict()),
            }
            for m in measurements
        ],
    }


async def measure(
    forks: ForkServer, shape: Shape, window: Window, condition: str, round_number: int, out: Path
) -> Measurement:
    """Run `shape` once under `condition`."""
    folder = out / "-".join(re.findall(r"\w+", f"{shape.name} {round_number} {condition}"))
    folder.mkdir(parents=True, exist_ok=True)
    job = replace(shape.job, steps=window.num_job_steps)
    try:
        if condition == PLAIN:
            run = await run_plain(forks, job, window, folder)
        else:
            run = await run_ours(
                forks, job, window, folder, is_armed=condition == ARMED, with_phases=condition == PHASED
            )
    except RunFailed as failure:
        return Measurement(shape.name, round_number, condition, None, str(failure))
    return Measurement(shape.name, round_number, condition, run)


async def measure_all(
    shapes: Sequence[Shape], num_rounds: int, out: Path, measurements: list[Measurement]
) -> AgentCost:
    """Run every shape under every condition; every finished run is added to `measurements`.

    Raises:
        NotEqual: plain training and ours do not compute the same.
    """
    async with ForkServer() as forks:
        for shape in shapes:
            window = Window(WARMUP_STEPS, WARMUP_STEPS + shape.num_steps)
            for number, conditions in enumerate(plan_rounds(shape, num_rounds), start=1):
                for condition in conditions:
                    found = await measure(forks, shape, window, condition, number, out)
                    measurements.append(found)
                    progress(f"{shape.name}, round {number} of {num_rounds}, {condition}: {_in_short(found)}")
                _check_round(measurements, shape, number)
    return await measure_agent()


def _check_round(measurements: Sequence[Measurement], shape: Shape, number: int) -> None:
    plain = _by_round(measurements, shape.name, PLAIN).get(number)
    for condition in (OURS, ARMED, PHASED):
        ours = _by_round(measurements, shape.name, condition).get(number)
        if plain is not None and ours is not None:
            check_equal(plain, ours)


def _in_short(measurement: Measurement) -> str:
    run = measurement.run
    if run is None:
        return f"FAILED: {measurement.failure}"
    return f"{run.median_step_seconds * 1000:.1f} ms a step, {run.cpu_seconds_per_step * 1000:.1f} ms of CPU"


@click.command(help=__doc__)
@benchmark_options
def main(as_json: bool, quick: bool, out: Path | None) -> None:
    """Entry point."""
    num_rounds = QUICK_NUM_ROUNDS if quick else NUM_ROUNDS
    shapes = tuple(replace(shape, num_steps=QUICK_NUM_STEPS) for shape in QUICK_SHAPES) if quick else SHAPES
    measurements: list[Measurement] = []
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        try:
            with OtherLoad(cores) as others:
                cost = asyncio.run(measure_all(shapes, num_rounds, folder.absolute(), measurements))
        except NotEqual as error:
            raise click.ClickException(
                f"plain training and ours do not compute the same, nothing to report: {error}"
            ) from error
    finish(
        to_document(measurements, shapes, cost, machine, others.num_cores),
        report(measurements, shapes, cost, machine, others.num_cores),
        as_json=as_json,
        has_failures=any(measurement.failure for measurement in measurements),
    )


if __name__ == "__main__":
    main()
