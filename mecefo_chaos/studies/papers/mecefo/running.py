"""Emulates what is missing, one run after the other; whatever ends it, the next call goes on where it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from chaos.errors import UsageError, nearest, shown
from harness.analysis.words import name_seconds
from harness.comparison.stored import machine_words
from harness.judging.stored import judge
from harness.run.execute import execute
from harness.run.preparation import prepare
from harness.store.log import legible
from mecefo_chaos.studies.forecast.pipeline import rate
from mecefo_chaos.studies.papers.mecefo.claims import PROCESSES, SIZES
from mecefo_chaos.studies.papers.mecefo.emulated import NotEmulated, read_emulated
from mecefo_chaos.studies.papers.mecefo.emulation import NUM_STEPS, TWIN_STEPS, experiment_of
from mecefo_chaos.studies.papers.mecefo.gates import wanted_gates
from mecefo_chaos.studies.papers.mecefo.results import RUNS_FOLDER, Result, Results, write_result
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, MICROBATCHES, SHAPES, SPEED, Cell, job_of, twin_of
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import configured_layout

# On a machine that is too busy a run is made so often, each time so much slower; then its cell goes without.
_NUM_TRIES, _SLOWER = 2, 2.0
# Processes that start, regroup and end.
_BESIDE_SECONDS = 45.0
_FEW = MICROBATCHES[0]
# The runs without `--only`: the cells of the gates with every seed, and every method once.
_SEEDED = (
    *((gate.cell, None) for gate in wanted_gates()),
    *(
        (Cell("7b", "high", shape, _FEW, method), 1)
        for shape in SHAPES
        for method in ("mecefo-paper", "oobleck-like", "exact")
    ),
    *((Cell("7b", "high", shape, _FEW, SPEED, True), 1) for shape in SHAPES),
)

Run = tuple[Cell, int | None]


def wanted_runs(num_seeds: int, only: str | None) -> tuple[Run, ...]:
    """The runs to be had, twins before the runs that need them.

    Raises:
        UsageError: `only` says something that is not there.
    """
    seeded = _SEEDED if only is None else [(cell, None) for cell in chosen_cells(only)]
    runs: list[Run] = []
    for number in range(1, num_seeds + 1):
        for cell, most in seeded:
            if most is None or number <= most:
                runs += [(twin_of(cell), None), (cell, number)]
    return tuple(dict.fromkeys(runs))


def chosen_cells(only: str) -> list[Cell]:
    """The cells that can be run and that `only` names: words of a cell in any order, such as `7b,high,4x8,mecefo`.

    Raises:
        UsageError: it says something that is not there, or nothing that can be run.
    """
    numbers = [f"m{number}" for number in MICROBATCHES]
    kinds = [list(SIZES), list(PROCESSES), list(SHAPES), numbers, ["hidden", "exposed"], list(METHODS)]
    known = [word for kind in kinds for word in kind]
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    for word in words:
        if word not in known:
            message = f"{shown(word)} is no size, process, shape, number of microbatches, communication or method"
            raise UsageError(message, key="--only", suggestion=nearest(word, known))
    # What is not said: the paper's hardest case, and what is quickest to emulate.
    defaults = ([*SIZES], ["high"], [*SHAPES], [numbers[0]], ["hidden"], [name for name in METHODS if _can_run(name)])
    said = [
        [word for word in kind if word in words] or list(default) for kind, default in zip(kinds, defaults, strict=True)
    ]
    for name in said[-1]:
        if not _can_run(name):
            raise UsageError(f"{name} cannot be run: {METHODS[name].why_not_run}", key="--only")
    sizes, processes, shapes, wanted, communications, methods = said
    return [
        Cell(size, process, shape, int(number[1:]), method, communication == "exposed")
        for size in sizes
        for process in processes
        for shape in shapes
        for number in wanted
        for communication in communications
        for method in methods
    ]


def _can_run(method: str) -> bool:
    return METHODS[method].strategy is not None


def missing(runs: Iterable[Run], results: Results) -> tuple[Run, ...]:
    """Those without a usable result."""
    return tuple(run for run in runs if run not in results or not results[run].run.is_usable)


def estimated_seconds(runs: Iterable[Run], time_scale: float | None = None) -> float:
    """About how long they take on this machine; see `experiment_of` for the time scale."""
    total = 0.0
    for cell, seed in runs:
        job = prepare(experiment_of(cell, seed, time_scale=time_scale)).job
        assert isinstance(job, JobConfig) and job.emulation is not None
        scale = job.emulation.time_scale
        total += _BESIDE_SECONDS + scale * _step_seconds(cell) * (TWIN_STEPS if seed is None else NUM_STEPS)
    return total


def _step_seconds(cell: Cell) -> float:
    job = job_of(cell)
    return rate(configured_layout(job.cluster), job).step_seconds


def emulate(runs: Sequence[Run], folder: Path, stream: TextIO, time_scale: float | None = None) -> None:
    """All of `runs`, one after the other, shown on `stream`; results are kept in `folder`, and the runs below it.

    Raises:
        ChaosError: one could not be run; those before it are kept.
        KeyboardInterrupt: one was interrupted.
    """
    for number, (cell, seed) in enumerate(runs, start=1):
        left = name_seconds(estimated_seconds(runs[number - 1 :], time_scale))
        name = f"{cell.key}, {'failure-free' if seed is None else f'seed {seed}'}"
        print(f"run {number} of {len(runs)}: {name}; about {left} to go", file=stream, flush=True)
        scale = time_scale
        for _ in range(_NUM_TRIES):
            try:
                result = _run(cell, seed, folder, stream, scale)
            except NotEmulated as error:
                print(f"{name} does not count: {error}", file=stream, flush=True)
                break
            write_result(folder, result)
            if result.run.is_usable:
                break
            print(f"{name} does not count: {_why_not(result)}", file=stream, flush=True)
            scale = _SLOWER * result.run.time_scale


def _run(cell: Cell, seed: int | None, folder: Path, stream: TextIO, time_scale: float | None) -> Result:
    experiment = experiment_of(cell, seed, time_scale=time_scale)
    summary, run_folder = execute(experiment, folder / RUNS_FOLDER, stream)
    if summary.status == "interrupted":
        raise KeyboardInterrupt
    _, events = judge(run_folder)
    with legible(run_folder):
        try:
            run = read_emulated(events, cell, seed)
        except NotEmulated as error:
            raise NotEmulated(f"{error} ({run_folder})") from None
    return Result(run, datetime.now(UTC).date().isoformat(), machine_words(events), str(run_folder))


def _why_not(result: Result) -> str:
    run = result.run
    if run.overrun_ratio is None:
        return "no rank told how busy the machine was"
    return (
        f"{run.num_settled_steps} settled steps, {run.unrest_ratio:.1%} longer in the mean than by medians; "
        f"{run.overrun_ratio:.1%} of the compute segments took longer than they were to"
    )
