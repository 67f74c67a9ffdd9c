"""What do snapshots in memory cost, and what other ways to save? `python -m benchmarks.snapshots [--json] [--quick]`.

1. parts: copying into a snapshot process's memory beside memcpy, checksums, parity; one core.
2. saving: how long one save stops training, and how long it takes until all is safe; beside torch.save and torch's
   asynchronous distributed checkpoints (DCP) of the same state, with all of it on a rank and with its share.
3. restoring: the whole state back on one rank, out of snapshots, out of parity, out of a file.
4. jobs: the step time of real jobs with a snapshot after every step, over that without.

All of a part is measured in turns, so that a drift of the machine affects all alike. Each turn begins with
another way to save, so that no way always follows the writes of the same one. Figures are medians.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder
from benchmarks._spread import Spread, spread, table
from benchmarks.saving.jobs import CONDITIONS, IDLE, JOBS, WITHOUT, JobRun, measure_jobs, step_ratios
from benchmarks.saving.methods import Methods
from benchmarks.saving.nodes import MODEL, NUM_NODES, QUICK_MODEL, Nodes, Save
from benchmarks.saving.parts import MEMCPY, STAGING, Parts
from mecefo_runtime.job.config import ModelConfig
from mecefo_runtime.job.protection import NUM_PARITIES, Protection

NUM_CORES = 2
PARTS = ("parts", "saving", "restoring", "jobs")
MIN_STAGING_RATIO = 0.9
MAX_STEP_RATIO = 1.01
PROTECTIONS: tuple[Protection, ...] = ("none", "xor", "pq")
# Of what a rank does with its time, for what it costs to save: the same for all ways.
BUDGET_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured, and how often."""

    num_rounds: int = 15
    num_job_rounds: int = 4
    num_job_steps: int | None = None
    part_bytes: int = 96 << 20
    is_quick: bool = False


QUICK = Amount(num_rounds=2, num_job_rounds=1, num_job_steps=12, part_bytes=6 << 20, is_quick=True)


@dataclass(slots=True)
class Results:
    """All that was measured, by name: bytes a second; saves, with the bytes of one rank; seconds to restore; runs."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    saves: dict[str, list[Save]] = field(default_factory=dict)
    saved_bytes: dict[str, int] = field(default_factory=dict)
    restores: dict[str, list[float]] = field(default_factory=dict)
    state_bytes: int = 0
    jobs: list[JobRun] = field(default_factory=list)

    def speeds(self, name: str) -> Spread:
        """Bytes a second of a part."""
        return spread(self.parts[name])

    def stopped(self, name: str) -> Spread:
        """Seconds for which a save of that way stops training."""
        return spread(save.stopped_seconds for save in self.saves[name])

    def total(self, name: str) -> Spread:
        """Seconds until what a save of that way has saved is safe."""
        return spread(save.total_seconds for save in self.saves[name])


def least_interval_seconds(stopped_seconds: float, total_seconds: float, budget_ratio: float = BUDGET_RATIO) -> float:
    """How often one can save, when training may be stopped for that share of the time, and a save after the other."""
    return max(stopped_seconds / budget_ratio, total_seconds)


def ours(protection: str) -> str:
    """The name of a snapshot with that protection."""
    return f"snapshot, {protection}"


def whole(way: str) -> str:
    """The name of a save of the whole state by one rank."""
    return f"{way}, whole state"


def measure_parts(results: Results, amount: Amount) -> None:
    """Every part, so many times, after once to touch what it needs."""
    parts = Parts(amount.part_bytes)
    parts.measure()
    for _ in range(amount.num_rounds):
        for name, speed in parts.measure().items():
            results.parts.setdefault(name, []).append(speed)
    parts.close()


def measure_saving(results: Results, amount: Amount, folder: Path) -> None:
    """Every way to save the same state, in turns, after once each: what is done once is not counted."""
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(Nodes(name, _model(amount))) for name in PROTECTIONS}
        methods = stack.enter_context(Methods(folder))
        state, num_bytes = nodes["xor"].state, nodes["xor"].num_bytes
        # Clones: a slice would bring its whole storage with it.
        share = {name: storage[: storage.numel() // NUM_NODES].clone() for name, storage in state.items()}
        results.state_bytes = num_bytes
        ways: dict[str, tuple[Callable[[], Save], int]] = {
            ours(name): (each.save, num_bytes // NUM_NODES) for name, each in nodes.items()
        }
        for name, save in methods.ways.items():
            ways[name] = partial(save, share), num_bytes // NUM_NODES
            ways[whole(name)] = partial(save, state), num_bytes
        results.saves.update((name, []) for name in ways)
        for number in range(amount.num_rounds + 1):
            for name in _rotated(list(ways), number):
                run, of_rank = ways[name]
                found = run()
                if number:
                    results.saves[name].append(found)
                    results.saved_bytes[name] = of_rank
            progress(f"saving: round {number} of {amount.num_rounds}")


def _rotated(names: Sequence[str], number: int) -> Sequence[str]:
    first = number % len(names)
    return [*names[first:], *names[:first]]


def measure_restoring(results: Results, amount: Amount, folder: Path) -> None:
    """The whole state back on one rank from every rung, in turns."""
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(Nodes(name, _model(amount))) for name in ("xor", "pq")}
        results.state_bytes = nodes["xor"].num_bytes
        for each in nodes.values():
            each.save()
        path = folder / "state.pt"
        torch.save(dict(nodes["xor"].state), path)
        for _ in range(amount.num_rounds):
            _restored(results, "snapshots", nodes["xor"].restore()[0])
            began = time.perf_counter()
            torch.load(path)
            _restored(results, "torch.load, from the page cache", time.perf_counter() - began)
        for name, each in nodes.items():
            lost = range(1, 1 + NUM_PARITIES[each.protection])
            each.kill(lost)
            for _ in range(amount.num_rounds):
                _restored(results, f"{len(lost)} of 4 nodes lost: parity, {name}", each.restore(lost)[0])
        progress("restoring: done")


def _restored(results: Results, name: str, seconds: float) -> None:
    results.restores.setdefault(name, []).append(seconds)


def _model(amount: Amount) -> ModelConfig:
    return QUICK_MODEL if amount.is_quick else MODEL


def report(results: Results, machine: Machine, others_cores: float, command: str) -> str:
    """The result as text."""
    lines = [f"machine: {machine}; others used {others_cores:.2f} cores on average meanwhile", f"command: {command}"]
    if results.parts:
        rows = [(name, *results.speeds(name).to_text(lambda value: f"{value / 1e9:.1f}")) for name in results.parts]
        ratios = staging_ratios(results)
        lines += ["", table(("one core, GB/s", "median", "min", "max", "n"), rows), ""]
        lines.append(
            _aim(
                f"staging at least {MIN_STAGING_RATIO:.0%} of memcpy",
                ratios.median >= MIN_STAGING_RATIO,
                f"{ratios.median:.1%}",
            )
        )
    if results.saves:
        lines += ["", *_saving_lines(results)]
    if results.restores:
        rows = [(name, *spread(values).to_text(_milliseconds)) for name, values in results.restores.items()]
        header = (f"{results.state_bytes / 2**20:.0f} MiB back on one rank, ms", "median", "min", "max", "n")
        lines += ["", table(header, rows)]
    if results.jobs:
        lines += ["", *_job_lines(results.jobs)]
    return "\n".join(lines)


def staging_ratios(results: Results) -> Spread:
    """Staging's speed over memcpy's, of the same round."""
    return spread(a / b for a, b in zip(results.parts[STAGING], results.parts[MEMCPY], strict=True))


def _saving_lines(results: Results) -> list[str]:
    reference = ours("xor")
    interval = {
        name: least_interval_seconds(results.stopped(name).median, results.total(name).median) for name in results.saves
    }
    rows = []
    for name in results.saves:
        stopped, total = results.stopped(name), results.total(name)
        rows.append(
            (
                name,
                f"{results.saved_bytes[name] / 2**20:.0f}",
                _milliseconds(stopped.median),
                f"{_milliseconds(min(stopped.values))}-{_milliseconds(max(stopped.values))}",
                _milliseconds(total.median),
                f"{stopped.median / results.stopped(reference).median:.1f}",
                f"{interval[name]:.2f} s",
                f"{interval[name] / interval[reference]:.1f}",
            )
        )
    header = (
        *("way to save", "MiB a rank", "stopped, ms", "min-max", "safe after, ms", "stopped, x ours"),
        *(f"least interval at {BUDGET_RATIO:.0%}", "x ours"),
    )
    return [
        f"{results.state_bytes / 2**20:.0f} MiB of state on each of 4 replicas; `ours` is {reference}",
        table(header, rows),
    ]


def _job_lines(runs: Sequence[JobRun]) -> list[str]:
    rows, aims = [], []
    for job in JOBS:
        for condition in CONDITIONS:
            found = spread(r.step_seconds for r in runs if r.job == job and r.condition == condition and r.step_seconds)
            ratios = step_ratios(runs, job, condition)
            rows.append(
                (job, condition, *found.to_text(lambda s: f"{s * 1000:.1f}")[:1], *ratios.to_text(lambda r: f"{r:.4f}"))
            )
            if job == IDLE and condition != WITHOUT and ratios.values:
                is_met = ratios.median <= MAX_STEP_RATIO
                aims.append(
                    _aim(f"step time, {condition}, at most {MAX_STEP_RATIO:g} times", is_met, f"{ratios.median:.4f}")
                )
    header = ("snapshots after every step", "protection", "step, ms", "x without", "min", "max", "n")
    failures = [f"{r.job}, round {r.round_number + 1}, {r.condition}: FAILED: {r.failure}" for r in runs if r.failure]
    return [table(header, rows), "", *aims, *failures]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _aim(text: str, is_met: bool, found: str) -> str:
    return f"aim: {text}: {'met' if is_met else 'MISSED'} ({found})"


def saving_document(results: Results, machine: Machine, command: str) -> dict[str, Any]:
    """What `chaos paper reft` reads of how often one can save: medians, and all values in the order of the rounds."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": str(machine),
        "command": command,
        "state_bytes": results.state_bytes,
        "methods": {
            name: {
                "bytes_per_rank": results.saved_bytes[name],
                "stopped_seconds": round(results.stopped(name).median, 6),
                "total_seconds": round(results.total(name).median, 6),
                "num_saves": len(saves),
                "stopped_each": [round(save.stopped_seconds, 6) for save in saves],
                "total_each": [round(save.total_seconds, 6) for save in saves],
            }
            for name, saves in results.saves.items()
        },
    }


def to_document(results: Results, machine: Machine, others_cores: float, command: str) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "snapshots",
        "machine": machine.to_dict(),
        "others_cores": others_cores,
        "saving": saving_document(results, machine, command) if results.saves else None,
        "bytes_per_second": {name: spread(values).to_dict() for name, values in results.parts.items()},
        "stopped_seconds": {name: results.stopped(name).to_dict() for name in results.saves},
        "total_seconds": {name: results.total(name).to_dict() for name in results.saves},
        "restore_seconds": {name: spread(values).to_dict() for name, values in results.restores.items()},
        "step_ratios": {
            job: {c: step_ratios(results.jobs, job, c).to_dict() for c in CONDITIONS if c != WITHOUT}
            for job in (JOBS if results.jobs else ())
        },
        "runs": [
            {
                "job": run.job,
                "protection": run.condition,
                "round": run.round_number,
                "step_seconds": run.step_seconds,
                "failure": run.failure,
            }
            for run in results.jobs
        ],
    }


@click.command(help=__doc__)
@benchmark_options
@click.option("--part", type=click.Choice(["all", *PARTS]), default="all", help="Only one of the four.")
@click.option(
    "--saving",
    "saving_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what saving takes to it, as JSON.",
)
def main(as_json: bool, quick: bool, out: Path | None, part: str, saving_file: Path | None) -> None:
    """Entry point."""
    amount = QUICK if quick else Amount()
    parts = PARTS if part == "all" else (part,)
    command = " ".join(["python -m benchmarks.snapshots", *sys.argv[1:]])
    results = Results()
    torch.set_num_threads(1)
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        with OtherLoad(cores) as others:
            if "parts" in parts:
                measure_parts(results, amount)
            if "saving" in parts:
                measure_saving(results, amount, folder / "saves")
            if "restoring" in parts:
                measure_restoring(results, amount, folder)
            if "jobs" in parts:
                results.jobs += measure_jobs(amount.num_job_rounds, folder, amount.num_job_steps)
    if saving_file is not None and results.saves:
        document = saving_document(results, machine, "python -m benchmarks.snapshots --part saving")
        saving_file.write_text(json.dumps(document, indent=1) + "\n")
    finish(
        to_document(results, machine, others.num_cores, command),
        report(results, machine, others.num_cores, command),
        as_json=as_json,
        has_failures=any(run.failure for run in results.jobs),
    )


if __name__ == "__main__":
    main()
