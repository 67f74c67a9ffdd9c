"""The methods on real ranks as fast as they go: eight processes on this machine, of which one is lost for a while.

No device is emulated and nothing is padded, so where ranks share cores those of a lost rank speed up the others. On
eight cores or more, the drop is the method's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import TextIO

from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping
from chaos.user_files import read_regular
from harness.comparison.stored import machine_words
from harness.judging.stored import judge
from harness.run.execute import execute
from harness.store.files import write_whole
from mecefo_chaos.studies.papers.mecefo.results import RUNS_FOLDER
from mecefo_chaos.studies.papers.mecefo.setting import METHODS
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json

# In a folder of results, and as it comes with this version.
FILE = "undilated.json"
NUM_RANKS = 8
# Under `high` an eighth of the ranks is down on average.
_STEPS, _FAULT_STEP, _LOST_STEPS = 160, 60, 60


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop of tokens/s of one method while a rank was lost, over runs that lost different ranks."""

    method: str
    median_ratio: float
    least_ratio: float
    greatest_ratio: float
    num_seeds: int


@dataclass(frozen=True, slots=True)
class Undilated:
    """What was measured, when and on what."""

    date: str
    machine: str
    rows: tuple[Drop, ...]


def methods() -> tuple[str, ...]:
    """Those that the runtime has."""
    return tuple(name for name, method in METHODS.items() if method.strategy is not None)


def experiment_of(method: str, seed: int) -> Experiment:
    """One run as an ordinary experiment."""
    job: dict[str, object] = {"steps": _STEPS, "strategy": METHODS[method].strategy, "dilation": "off", "device": "cpu"}
    if METHODS[method].quality is not None:
        job["quality"] = METHODS[method].quality
    fault = {
        "kind": "kill-process",
        "on": f"rank={(3 * seed + 2) % NUM_RANKS}",
        "at": {"step": _FAULT_STEP},
        "repair": f"{_LOST_STEPS}steps",
    }
    return from_mapping({"name": f"undilated-{method}", "seed": seed, "job": job, "faults": [fault], "twin": False})


def measure(num_seeds: int, folder: Path, stream: TextIO) -> Undilated:
    """Run every method with so many seeds, method after method in turn; what is found is kept in `folder`.

    Raises:
        ChaosError: one could not be run.
        KeyboardInterrupt: one was interrupted.
    """
    found: dict[str, list[float]] = {name: [] for name in methods()}
    run_folder = folder
    for seed in range(num_seeds):
        for name, drops in found.items():
            summary, run_folder = execute(experiment_of(name, seed), folder / RUNS_FOLDER, stream)
            if summary.status == "interrupted":
                raise KeyboardInterrupt
            if summary.throughput_drop_ratio is not None:
                drops.append(summary.throughput_drop_ratio)
    rows = tuple(
        Drop(name, round(median(drops), 5), round(min(drops), 5), round(max(drops), 5), len(drops))
        for name, drops in found.items()
        if drops
    )
    # All ran on the same machine: the last one tells.
    machine = machine_words(judge(run_folder)[1])
    result = Undilated(datetime.now(UTC).date().isoformat(), machine, rows)
    write_whole(folder / FILE, json.dumps(to_json(result), indent=1) + "\n")
    return result


def read_undilated(folder: Path) -> Undilated:
    """What was measured last with that folder, else what came with this version."""
    try:
        return from_json(Undilated, json.loads(read_regular(folder / FILE)))
    except (OSError, ValueError, JsonTypeError, RecursionError):
        return from_json(Undilated, json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8")))
