"""What does it cost a job to be read by Prometheus? `python -m benchmarks.exporter [--json] [--quick]`.

One run of a job without faults. While it continues, its job endpoint and all its ranks are read in turn not at all,
once a second, not at all, and 50 times a second, by a process of its own. The CPU time that the ranks and the conductor
take in each window is compared with what their steps take in the windows without readers; the windows with many readers
tell what one answer costs. Beside it stand the step times of the same windows, which the machine's noise is in.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

from benchmarks._machine import describe_machine
from benchmarks._runs import benchmark_options, failure_of, finish, progress, run_folder
from benchmarks._spread import Spread, spread, table
from chaos.experiment.reading import from_mapping
from harness.exporter.job import JobExporter
from harness.run.execute import execute
from mecefo_runtime.system.events import Event

IDLE, USUAL, MANY = 0.0, 1.0, 50.0
RATES = (IDLE, USUAL, IDLE, MANY)
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5.0, 1.0
STEPS, QUICK_STEPS = 900, 60
SHAPE = {"nodes": 2, "gpus_per_node": 2, "data_parallel": 2, "pipeline": 2}
# The first steps pay for warming up.
WARM_UP_STEPS = 10


@dataclass(frozen=True, slots=True)
class Window:
    """What happened while everything was read `rate` times a second. CPU times in seconds, `ranks` one for each rank.

    `num_answers` counts those of all endpoints, the job's and each rank's.
    """

    rate: float
    seconds: float
    num_answers: int
    step_seconds: tuple[float, ...]
    rank_cpu_seconds: tuple[float, ...]
    conductor_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of one answer, of a rank and of the conductor; step times in seconds by rate of reading."""

    rank_answer: Spread
    conductor_answer: Spread
    step_seconds: Mapping[float, Spread]


def costs_of(windows: Sequence[Window]) -> Costs:
    """What an answer costs, from each window with many of them.

    A window's steps are charged with the CPU time that steps took in the windows without readers; what it took beyond
    that went into its answers.
    """
    idle = [window for window in windows if window.rate == IDLE and window.step_seconds]
    many = [window for window in windows if window.rate == MANY and window.num_answers]
    num_ranks = len(windows[0].rank_cpu_seconds) if windows else 0
    ranks, conductor = [], []
    if idle:
        for window in many:
            num_answers, num_steps = window.num_answers / (num_ranks + 1), len(window.step_seconds)
            for rank in range(num_ranks):
                a_step = median(one.rank_cpu_seconds[rank] / len(one.step_seconds) for one in idle)
                ranks.append((window.rank_cpu_seconds[rank] - a_step * num_steps) / num_answers)
            a_step = median(one.conductor_cpu_seconds / len(one.step_seconds) for one in idle)
            conductor.append((window.conductor_cpu_seconds - a_step * num_steps) / num_answers)
    return Costs(
        spread(ranks),
        spread(conductor),
        {
            rate: spread(median(w.step_seconds) for w in windows if w.rate == rate and w.step_seconds)
            for rate in dict.fromkeys(RATES)
        },
    )


class Watch(JobExporter):
    """An exporter that also sees the job's processes and steps, and drives the reader through the windows."""

    def __init__(self, window_seconds: float) -> None:
        super().__init__("auto")
        self.windows: list[Window] = []
        self._window_seconds = window_seconds
        self._addresses: dict[int, str] = {}
        self._ranks: dict[int, psutil.Process] = {}
        self._steps: list[float] = []
        self._over = threading.Event()
        self._driver = threading.Thread(target=self._drive, name="windows")

    def feed(self, event: Event) -> None:
        """Take in one event."""
        super().feed(event)
        if event.kind == "rank_started" and event.rank is not None:
            self._addresses[event.rank] = event.fields["metrics"]
            self._ranks[event.rank] = psutil.Process(event.pid)
        elif event.kind == "step_committed":
            self._steps.append(float(event.fields["committed_monotonic"]))
            if event.step == WARM_UP_STEPS:
                self._driver.start()
        elif event.kind in ("job_ended", "rank_finished"):
            self._over.set()

    def join(self) -> None:
        """Wait for the last window."""
        self._over.set()
        if self._driver.ident is not None:
            self._driver.join()

    def _drive(self) -> None:
        addresses = [self.url.split("/")[2], *self._addresses.values()]
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks._scraper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            turn = 0
            while not self._over.is_set():
                rate = RATES[turn % len(RATES)]
                _tell(reader, rate, addresses)
                began, num_steps, before = time.monotonic(), len(self._steps), self._cpu_seconds()
                is_cut = self._over.wait(self._window_seconds)
                after = self._cpu_seconds()
                seconds, times = time.monotonic() - began, self._steps[num_steps - 1 :]
                num_answers = _tell(reader, IDLE, addresses)
                if is_cut or before is None or after is None:
                    break
                spent = tuple(later - earlier for earlier, later in zip(before, after, strict=True))
                steps = tuple(later - earlier for earlier, later in itertools.pairwise(times))
                self.windows.append(Window(rate, seconds, num_answers, steps, spent[1:], spent[0]))
                turn += 1
            reader.stdin.close()

    def _cpu_seconds(self) -> tuple[float, ...] | None:
        """Of the conductor, that is this process, and of every rank; None when one of them is gone."""
        try:
            times = [self._ranks[rank].cpu_times() for rank in sorted(self._ranks)]
        except psutil.Error:
            return None
        return (time.process_time(), *(one.user + one.system for one in times))


def _tell(reader: subprocess.Popen[str], rate: float, addresses: Iterable[str]) -> int:
    """Give the reader its next orders; returns how many answers it had to the last ones."""
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(f"{rate} {' '.join(addresses)}\n")
    reader.stdin.flush()
    return int(reader.stdout.readline())


def to_document(costs: Costs, windows: Sequence[Window]) -> dict[str, Any]:
    """The figures as JSON."""
    return {
        "machine": describe_machine().to_dict(),
        "rank_answer_cpu_seconds": costs.rank_answer.to_dict(),
        "conductor_answer_cpu_seconds": costs.conductor_answer.to_dict(),
        # Read once a second, an answer's CPU time is its share of every second of the rank's.
        "rank_share_at_one_a_second_ratio": costs.rank_answer.median if costs.rank_answer.values else None,
        "step_seconds": {f"{rate:g} a second": times.to_dict() for rate, times in costs.step_seconds.items()},
        "num_answers": sum(window.num_answers for window in windows),
        "windows": len(windows),
    }


def to_text(costs: Costs, window_seconds: float) -> str:
    """The figures as tables."""
    answers = table(
        ("CPU time of one answer", "median", "min", "max", "n"),
        [
            ("of a rank", *costs.rank_answer.to_text(_milliseconds)),
            ("of the conductor", *costs.conductor_answer.to_text(_milliseconds)),
        ],
    )
    steps = table(
        (f"step time, medians of windows of {window_seconds:g} s", "median", "min", "max", "n"),
        [(_reading(rate), *times.to_text(_milliseconds)) for rate, times in costs.step_seconds.items()],
    )
    share = f"{costs.rank_answer.median:.3%}" if costs.rank_answer.values else "not measured"
    return "\n\n".join(
        [
            f"{describe_machine()}, load {os.getloadavg()[0]:.1f}",
            answers,
            f"read once a second, that is {share} of a rank's time; its waits for others can hide some of it",
            steps,
        ]
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _reading(rate: float) -> str:
    return f"read {rate:g} times a second" if rate else "not read"


@click.command()
@click.option("--steps", type=click.IntRange(min=1), help="Steps of the job: it has to last for some windows.")
@benchmark_options
def main(steps: int | None, as_json: bool, quick: bool, out: Path | None) -> None:
    """Run the job, read it by turns, and print what that costs."""
    window_seconds = QUICK_WINDOW_SECONDS if quick else WINDOW_SECONDS
    job = {**SHAPE, "steps": steps or (QUICK_STEPS if quick else STEPS)}
    experiment = from_mapping({"name": "read-by-prometheus", "job": job, "twin": False})
    with (
        run_folder(out) as folder,
        Watch(window_seconds) as watch,
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
    ):
        summary, _ = execute(experiment, folder, nowhere, watch)
        watch.join()
    if (failure := failure_of(summary)) is not None:
        progress(f"the run failed: {failure}")
    costs = costs_of(watch.windows)
    finish(
        to_document(costs, watch.windows),
        to_text(costs, window_seconds),
        as_json=as_json,
        has_failures=failure is not None or not costs.rank_answer.values,
    )


if __name__ == "__main__":
    main()
