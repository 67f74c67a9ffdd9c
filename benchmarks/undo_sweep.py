"""Is anything left when `chaos` is killed? `python -m benchmarks.undo_sweep [--times N] [--json] [--quick]`.

For every kind of fault that has an undo, a small `chaos` with the real injector, ledger and watchdog is killed
(SIGKILL) at every point between "record written" and "record affected", and beside it both are killed, `chaos` and its
watchdog, and `chaos heal` follows. Measured is how long it takes from the death until nothing is left: no entry in the
ledger, no file that the record names, every process and checkpoint as it was, no watchdog.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks._machine import describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder, run_once
from benchmarks._spread import name_milliseconds, spread, table
from benchmarks._undo_stage import CLEAN_WITHIN_SECONDS, POINTS, Trial, heal_trial, run_trial, set_stage
from chaos.experiment.reading import from_mapping
from chaos.faults import registry
from chaos.undo.run_registry import STATE_VARIABLE

NUM_TIMES, QUICK_NUM_TIMES = 100, 1
BOTH = "both killed, noted"


def kinds_with_undo() -> list[str]:
    """Every kind of fault whose records say something to undo."""
    return [kind for kind, fault in registry().items() if fault.has_undo]


def summarize(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """One row for each kind and point, in the order in which they came."""
    keys = dict.fromkeys((trial.kind, trial.point) for trial in trials)
    rows = []
    for kind, point in keys:
        of_both = [trial for trial in trials if (trial.kind, trial.point) == (kind, point)]
        seconds = [trial.seconds for trial in of_both if trial.was_reached]
        rows.append(
            {
                "kind": kind,
                "point": point,
                "seconds": spread(seconds).to_dict(),
                "reached": len(seconds),
                "clean": sum(math.isfinite(value) for value in seconds),
            }
        )
    return rows


def to_text(trials: Sequence[Trial]) -> str:
    """The rows as a table."""
    rows = []
    for row in summarize(trials):
        seconds = spread(
            [t.seconds for t in trials if (t.kind, t.point) == (row["kind"], row["point"]) and t.was_reached]
        )
        cells = seconds.to_text(name_milliseconds)
        rows.append((f"{row['kind']}, {row['point']}", *cells, f"{row['clean']} of {row['reached']}"))
    return table(("killed at", "median", "min", "max", "n", "nothing left"), rows)


def sweep(kinds: Sequence[str], num_times: int, out: Path, checkpoints: Path | None) -> Iterator[Trial]:
    """All trials, kind by kind and point by point within a round."""
    for kind in kinds:
        for time_number in range(num_times):
            for point in POINTS:
                with set_stage(out / f"{kind}-{point}-{time_number}", checkpoints) as stage:
                    yield run_trial(stage, kind, point)[0]
            with set_stage(out / f"{kind}-both-{time_number}", checkpoints) as stage:
                trial, was_left = heal_trial(stage, kind, "noted")
                # Had nothing been left, `chaos heal` would have proved nothing.
                yield Trial(kind, BOTH, trial.was_reached and was_left, trial.seconds)
        progress(f"{kind}: {num_times} times at each of {len(POINTS) + 1} points")


def make_checkpoints(out: Path) -> Path:
    """The checkpoints of a real job of a few steps."""
    job = {"steps": 4, "nodes": 2, "gpus_per_node": 1, "dilation": "off", "checkpoint": {"every_steps": 2}}
    run_once(from_mapping({"name": "checkpoints", "job": job, "twin": False}), out)
    (folder,) = out.glob("checkpoints/*/checkpoints")
    return folder


@click.command()
@benchmark_options
@click.option("--times", "num_times", type=click.IntRange(min=1), help="Deaths at each point. Default: 100.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind. Repeatable. Default: all that have an undo.")
def main(as_json: bool, quick: bool, out: Path | None, num_times: int | None, kinds: tuple[str, ...]) -> None:
    """Kill `chaos` at every point where something would be left behind without its watchdog."""
    num_times = num_times or (QUICK_NUM_TIMES if quick else NUM_TIMES)
    chosen = list(kinds) or kinds_with_undo()
    with run_folder(out) as folder:
        os.environ[STATE_VARIABLE] = str(folder / "state")
        needs_checkpoints = any(str(registry()[kind].scope) == "checkpoint" for kind in chosen)
        checkpoints = make_checkpoints(folder) if needs_checkpoints else None
        trials = list(sweep(chosen, num_times, folder / "trials", checkpoints))
    machine = describe_machine()
    failures = [trial for trial in trials if trial.was_reached and not math.isfinite(trial.seconds)]
    unreached = sorted({trial.kind for trial in trials} - {trial.kind for trial in trials if trial.was_reached})
    text = [to_text(trials), f"limit: {CLEAN_WITHIN_SECONDS:g} s; machine: {machine}"]
    if unreached:
        text.append(f"not injected on this stage, so that nothing is known of them: {', '.join(unreached)}")
    document = {
        "machine": machine.to_dict(),
        "limit_seconds": CLEAN_WITHIN_SECONDS,
        "rows": summarize(trials),
        "not_injected": unreached,
        "trials": [
            {**asdict(trial), "seconds": trial.seconds if math.isfinite(trial.seconds) else None} for trial in trials
        ],
    }
    finish(document, "\n".join(text), as_json=as_json, has_failures=bool(failures))


if __name__ == "__main__":
    main()
