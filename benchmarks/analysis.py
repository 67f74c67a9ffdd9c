"""What does it cost to report on a long run, and to compare two? `python -m benchmarks.analysis [--lines N] [--json]`.

The benchmark writes a log of N lines: a command of two ranks that is killed and restarted four times, with its steps,
checkpoints and checksums of its state. It runs `chaos report` and `chaos compare` on it, each in a separate process,
and prints their time and peak memory. With `--beside FOLDER`, the sources of another version, both versions run in
turns, so that the machine's other load affects both, and it prints the ratios of the pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks._machine import describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder
from benchmarks._spread import Spread, spread, table
from chaos.host.run_files import EVENTS_FILE

LINES, QUICK_LINES = 1_000_000, 2_000
ROUNDS, QUICK_ROUNDS = 3, 1
NUM_KILLS = 4
LOOK_STEPS = 20
NUM_TENSORS = 24
_ENTRY = "import sys; from mecefo_chaos.cli.main import run_cli; sys.exit(run_cli(sys.argv[1:]))"
_HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def lines(number: int) -> Iterator[str]:
    """A log of about `number` lines."""
    now = 1000.0

    def line(kind: str, *, rank: int | None = None, step: int | None = None, pid: int = 1, **said: Any) -> str:
        nonlocal now
        now += 0.01
        head = {"time": 1.8e9 + now, "monotonic": now, "job": "main", "source": "conductor" if rank is None else "rank"}
        told = {"rank": rank, "node": None, "pid": pid, "attempt": 1, "step": step, "kind": kind, "fields": said}
        return json.dumps({**head, **told}, separators=(",", ":"))

    def start(attempt: int) -> Iterator[str]:
        yield line("attempt_started", attempt_number=attempt, world_size=2)
        for rank in range(2):
            pid = 10 * attempt + rank
            yield line("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=attempt)
            yield line("rank_started", rank=rank, pid=pid, world_size=2)

    experiment = {"name": "long", "seed": 0, "job": {}, "faults": [{"kind": "kill-process"}], "gates": []}
    yield line("run_started", experiment=experiment, seed=0, gates=[])
    yield line("incidents_planned", incidents=[])
    yield line("job_started", runtime="command", command="torchrun train.py", num_ranks=2, nodes=1)
    names = [f"layers.{index}.weight" for index in range(NUM_TENSORS)]
    # Of each look one line of the two ranks, and one of a checkpoint.
    num_steps = int(number / (1 + 3 / LOOK_STEPS))
    attempt = 1
    yield from start(attempt)
    for step in range(1, num_steps + 1):
        pid = 10 * attempt
        yield line("step_committed", rank=0, step=step, pid=pid, epoch=attempt, loss=2.0 - 1e-7 * step, tokens=4096,
                   began_monotonic=now, optimizers=1)  # fmt: skip
        if step % LOOK_STEPS == 0:
            for rank in range(2):
                sums = "".join(f"{(step * 64 + index) & 0xFFFFFFFF:08x}" for index in range(NUM_TENSORS))
                told = names if step == LOOK_STEPS or attempt > 1 else []
                yield line("state_checksums", rank=rank, pid=pid + rank, step=step, sums=sums, tensors=told)
            yield line("checkpoint_written", rank=0, pid=pid, step=step, blocking_seconds=0.001, writing_seconds=0.0)
        if step % (num_steps // (NUM_KILLS + 1)) == 0 and attempt <= NUM_KILLS:
            incident, attempt = attempt - 1, attempt + 1
            told_of: dict[str, Any] = {"fault": "kill-process", "is_loss": True, "target": "rank=1", "ranks": [1]}
            yield line("injected", step=step, incident=incident, **told_of)
            yield line("verified", incident=incident, evidence={"summary": "killed"})
            exited: dict[str, Any] = {"exited_pid": pid + 1, "exit": -9, "exited_rank": 1, "rank_attempt": attempt - 1}
            yield line("process_exited", role="rank", **exited)
            yield from start(attempt)
    yield line("job_ended", outcome="completed")
    yield line("residue", processes=[], undo_pending=[], left=[])
    yield line("run_ended", reason="completed", message="")


def write_log(folder: Path, number: int) -> Path:
    """A run in `folder` with a log of about `number` lines."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / EVENTS_FILE).open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines(number))
    return folder


def cost_of(arguments: Sequence[str], sources: Path) -> Cost:
    """Run `chaos` with `arguments`, from the sources in that folder."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", _ENTRY, *arguments],
        cwd=sources,
        env={**os.environ, "PYTHONPATH": str(sources)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 5):
        raise click.ClickException(f"chaos {' '.join(arguments)} ended with {process.returncode}")
    return Cost(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


Costs = Mapping[str, Mapping[str, Sequence[Cost]]]
"""By command, by version: one cost for each round."""


def measure(folder: Path, number: int, rounds: int, versions: Mapping[str, Path]) -> Costs:
    """Each command with each version, in turn."""
    run, other = write_log(folder / "run", number), write_log(folder / "other", number)
    commands = {"report": ["report", str(run)], "compare": ["compare", str(run), str(other)]}
    costs: dict[str, dict[str, list[Cost]]] = {command: {version: [] for version in versions} for command in commands}
    for round_number in range(1, rounds + 1):
        for command, arguments in commands.items():
            for version, sources in versions.items():
                costs[command][version].append(cost_of(arguments, sources))
                progress(f"round {round_number} of {rounds}: {command} ({version})")
    return costs


def to_text(costs: Costs, number: int) -> str:
    """What the commands took, and how much of what the other version takes."""
    rows = []
    for command, versions in costs.items():
        for version, told in versions.items():
            ratio = _ratio(told, versions.get("beside", ())) if version == "here" else None
            rows.append(
                [
                    f"{command} ({version})",
                    f"{_median(told, 'seconds'):.1f} s",
                    f"{_median(told, 'cpu_seconds'):.1f} s",
                    f"{_median(told, 'peak_bytes') / 1e6:,.0f} MB",
                    "" if ratio is None else f"{ratio.median:.3f}",
                    str(len(told)),
                ]
            )
    header = (f"{number:,} lines, medians", "time", "CPU time", "most memory", "CPU time to that beside", "n")
    return table(header, rows)


def to_dict(costs: Costs, number: int) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {
        "lines": number,
        "machine": asdict(describe_machine()),
        "costs": {
            command: {version: [asdict(cost) for cost in told] for version, told in versions.items()}
            for command, versions in costs.items()
        },
    }


def _median(told: Sequence[Cost], what: str) -> float:
    return spread(float(getattr(cost, what)) for cost in told).median


def _ratio(told: Sequence[Cost], beside: Sequence[Cost]) -> Spread | None:
    """The ratios of the CPU times of each round."""
    pairs = list(zip(told, beside, strict=False))
    return spread(here.cpu_seconds / there.cpu_seconds for here, there in pairs) if pairs else None


@click.command()
@benchmark_options
@click.option("--lines", "number", type=click.IntRange(100), help=f"Lines of the log. Default: {LINES:,}.")
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds. Default: {ROUNDS}.")
@click.option("--beside", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Other sources.")
def main(
    as_json: bool, quick: bool, out: Path | None, number: int | None, rounds: int | None, beside: Path | None
) -> None:
    """Measure what it costs to report on a long run, and to compare two."""
    number = number or (QUICK_LINES if quick else LINES)
    versions = {"here": _HERE, **({} if beside is None else {"beside": beside.resolve()})}
    with run_folder(out) as folder:
        costs = measure(folder, number, rounds or (QUICK_ROUNDS if quick else ROUNDS), versions)
    finish(to_dict(costs, number), to_text(costs, number), as_json=as_json, has_failures=False)


if __name__ == "__main__":
    main()
