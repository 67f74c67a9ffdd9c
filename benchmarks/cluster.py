"""What do several hosts cost? `python -m benchmarks.cluster [--json] [--quick] [--only PART]`, as root.

Hosts that are namespaces of this machine, under real Slurm and OpenSSH, with real `chaos run`s of an unprivileged user
on them. Measured: until the agents of 4 and of 64 hosts are ready; an observed step over 4 hosts beside the same step
without chaos, in turns; a fault applied on another host beside one on the host of `chaos`; and the recovery from the
same kill over 4 hosts and on one.
"""

from __future__ import annotations

import itertools
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import yaml

from benchmarks._hosts import CHAOS, ROOT, Done, Hosts, NotFinished, hosts
from benchmarks._machine import Machine, confined_to, describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder
from benchmarks._spread import Spread, name_milliseconds, spread, table
from harness.store.log import LogError, read_events
from mecefo_runtime.system.events import Event

NUM_CORES = 2
NUM_HOSTS, NUM_MANY_HOSTS = 4, 64
NUM_ROUNDS, QUICK_NUM_ROUNDS = 5, 1
NUM_STEPS, QUICK_NUM_STEPS = 200, 30
# The first steps of a job are slower.
NUM_WARM_UP_STEPS = 10
STEP_SECONDS = 0.05
# In a run that applies faults: one at each of so many steps, in turns on the host of `chaos` and on another.
NUM_FAULTS, QUICK_NUM_FAULTS, STEPS_BETWEEN = 12, 2, 10
PAUSE = "100ms"
KILL_STEP = 25
RUN_TIMEOUT_SECONDS = 600.0
PORT = 29500
TRAINING = str(ROOT / "benchmarks/_cluster_training.py")

MAX_READY_SECONDS = 2.0
MAX_STEP_RATIO = 0.01


@dataclass(slots=True)
class Figures:
    """Seconds (or ratios) by name, in the order in which they were measured, and what went wrong."""

    values: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, *values: float) -> None:
        """Note `values`."""
        self.values.setdefault(name, []).extend(values)

    def spread(self, name: str) -> Spread:
        """All that was noted."""
        return spread(self.values.get(name, ()))

    def median(self, name: str) -> float | None:
        """None where nothing was noted."""
        return self.spread(name).median if self.values.get(name) else None


READY = "ready, {num} hosts, {kind}"
READY_LOCAL = "ready, no other host"
STEP_PLAIN, STEP_OBSERVED, STEP_RATIO = "step without chaos", "observed step", "observed / plain step, less 1"
APPLIED_LOCAL, APPLIED_REMOTE, ROUND_TRIP = "applied, host of chaos", "applied, another host", "round trip"
RECOVERY = "recovery, {where}"
OVER_HOSTS, ON_ONE = f"{NUM_HOSTS} hosts", "one host"


# ---- what the events of a run tell ----


def ready_seconds(events: Iterable[Event]) -> float | None:
    """From the start of the run to that of its job, before which all agents are ready; None: it did not start."""
    started = first(events, "run_started")
    job = first(events, "job_started")
    return None if started is None or job is None else job.monotonic_seconds - started.monotonic_seconds


def applied_seconds(events: Iterable[Event]) -> dict[int, float]:
    """By incident: from its injection until its effect was seen."""
    injected: dict[int, float] = {}
    applied = {}
    for event in events:
        incident = int(event.fields.get("incident", -1))
        if event.kind == "injected":
            injected[incident] = event.monotonic_seconds
        elif event.kind == "verified" and incident in injected:
            applied[incident] = event.monotonic_seconds - injected[incident]
    return applied


def round_trips(events: Iterable[Event]) -> list[float]:
    """Of each sample of another host's clock the best round trip: twice the uncertainty."""
    return [2 * float(event.fields["uncertainty_seconds"]) for event in events if _is_of_other_host(event)]


def num_hosts_of(events: Iterable[Event]) -> int:
    """Hosts that took part: that of the run, and those whose clock was sampled."""
    others = {tuple(event.fields["other_host"]) for event in events if _is_of_other_host(event)}
    return 1 + len(others)


def first(events: Iterable[Event], kind: str) -> Event | None:
    """The first event of this kind."""
    return next((event for event in events if event.kind == kind), None)


def _is_of_other_host(event: Event) -> bool:
    return event.kind == "clock_sampled" and event.fields.get("other_host") is not None


def steps_of(text: str) -> list[float]:
    """Seconds of each step but the first ones, of the times at which they began."""
    began = [float(line) for line in text.split()][NUM_WARM_UP_STEPS:]
    return [later - earlier for earlier, later in itertools.pairwise(began)]


# ---- runs ----


@dataclass(frozen=True, slots=True)
class Run:
    """A `chaos run` on the hosts: its events, its incidents as `summary.json` has them, and how it ended."""

    done: Done
    events: Sequence[Event]
    incidents: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures on `cluster`, and keeps what it makes in `out`."""

    cluster: Hosts
    figures: Figures
    out: Path

    def chaos(self, *arguments: str, command: Sequence[str], is_over_hosts: bool = True) -> Run:
        """`chaos run ARGUMENTS -- COMMAND` in an allocation, or over all hosts by ssh.

        Raises:
            NotFinished: it left no log, or something on a host.
        """
        where = []
        if self.cluster.kind == "ssh" and is_over_hosts:
            where = ["--hosts", ",".join(self.cluster.names)]
        words = [CHAOS, "run", *arguments, *where, "--json", "--out", "out", "--", *command]
        done = self.cluster.run(words, RUN_TIMEOUT_SECONDS)
        logs = sorted(done.folder.glob("out/*/[!.]*/events.jsonl"))
        logs = [one for one in logs if not one.parent.is_symlink()]
        if not logs:
            raise NotFinished(f"exit code {done.exit_code}, no run: {done.stderr[-1000:]}")
        try:
            events = tuple(read_events(logs[0]).events)
        except LogError as error:
            raise NotFinished(str(error)) from error
        summary = logs[0].with_name("summary.json")
        incidents = yaml.safe_load(summary.read_text())["incidents"] if summary.exists() else []
        shutil.copytree(logs[0].parent, self.out / done.folder.name, dirs_exist_ok=True)
        if is_over_hosts and (num := num_hosts_of(events)) < len(self.cluster.names):
            raise NotFinished(f"{num} of {len(self.cluster.names)} hosts took part: {done.stderr[-1000:]}")
        if (left := self.cluster.leftovers()) != "nothing":
            raise NotFinished(f"left on the hosts: {left}")
        return Run(done, events, incidents)

    def training(self, num_steps: int, folder: Path) -> list[str]:
        """The job."""
        return [sys.executable, TRAINING, str(num_steps), str(folder), str(STEP_SECONDS)]

    def try_to(self, name: str, measure: Callable[[], None]) -> None:
        """Measure; what does not work is noted."""
        try:
            measure()
        except NotFinished as error:
            self.figures.failures.append(f"{name}: {error}")
        progress(f"{name}: done")

    # ---- parts ----

    def measure_ready(self) -> None:
        """Until the agents are ready, of a command that does nothing; and the same run without other hosts."""
        name = READY.format(num=len(self.cluster.names), kind=self.cluster.kind)
        self._note_ready(name, self.chaos("none", command=["true"]))
        if self.cluster.kind == "ssh" and len(self.cluster.names) == NUM_HOSTS:
            self._note_ready(READY_LOCAL, self.chaos("none", command=["true"], is_over_hosts=False))

    def measure_steps(self, num_steps: int, *, is_observed_first: bool) -> None:
        """The job without chaos and with it, one after the other, by the script's own times."""
        medians = {}
        for is_observed in (is_observed_first, not is_observed_first):
            folder = self.cluster.new_folder()
            job = ["srun", *self.training(num_steps, folder)]
            done = self.chaos("none", command=job).done if is_observed else self.cluster.run(job, RUN_TIMEOUT_SECONDS)
            began = folder / "began.txt"
            if done.exit_code != 0 or not began.exists():
                raise NotFinished(f"exit code {done.exit_code}: {done.stderr[-1000:]}")
            seconds = steps_of(began.read_text())
            medians[is_observed] = median(seconds)
            self.figures.add(STEP_OBSERVED if is_observed else STEP_PLAIN, *seconds)
        self.figures.add(STEP_RATIO, medians[True] / medians[False] - 1)

    def measure_faults(self, num_faults: int) -> None:
        """Pauses of a rank of the host of `chaos` and of another, in turns in one run."""
        folder = self.cluster.new_folder()
        remote = NUM_HOSTS - 1
        steps = [NUM_WARM_UP_STEPS + STEPS_BETWEEN * number for number in range(2 * num_faults)]
        faults = [
            {"kind": "pause-process", "on": f"rank={remote if number % 2 else 0}", "at": {"step": step}, "for": PAUSE}
            for number, step in enumerate(steps)
        ]
        experiment = folder / "faults.yaml"
        experiment.write_text(yaml.safe_dump({"name": "applied", "faults": faults}))
        run = self.chaos(str(experiment), command=["srun", *self.training(steps[-1] + STEPS_BETWEEN, folder)])
        for incident, seconds in applied_seconds(run.events).items():
            self.figures.add(APPLIED_REMOTE if incident % 2 else APPLIED_LOCAL, seconds)
        self.figures.add(ROUND_TRIP, *round_trips(run.events))
        if run.done.exit_code != 0:
            raise NotFinished(f"exit code {run.done.exit_code}: {run.done.stderr[-1000:]}")

    def measure_recovery(self, *, is_over_hosts: bool) -> None:
        """The same kill of a rank under torchrun, of one rank on each host or of as many on one."""
        folder = self.cluster.new_folder()
        num_ranks = len(self.cluster.names)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "1", "--rdzv-backend", "c10d"]
        if is_over_hosts:
            counts = ["--nnodes", str(num_ranks), "--nproc-per-node", "1"]
            store = f"{self.cluster.names[0]}:{PORT}"
            command = ["srun", *launcher, *counts, "--rdzv-endpoint", store]
        else:
            command = [*launcher, "--nnodes", "1", "--nproc-per-node", str(num_ranks), "--rdzv-endpoint", "localhost:0"]
        target = ("--at", f"step={KILL_STEP}", "--on", f"rank={num_ranks - 1}")
        job = [*command, *self.training(KILL_STEP + 3 * NUM_WARM_UP_STEPS, folder)[1:]]
        run = self.chaos("kill-process", *target, command=job, is_over_hosts=is_over_hosts)
        (incident,) = run.incidents or ({},)
        seconds = incident.get("recovery_seconds")
        self.figures.add(RECOVERY.format(where=OVER_HOSTS if is_over_hosts else ON_ONE), seconds or math.inf)
        if seconds is None:
            raise NotFinished(f"exit code {run.done.exit_code}, no recovery: {run.done.stderr[-1000:]}")

    def _note_ready(self, name: str, run: Run) -> None:
        seconds = ready_seconds(run.events)
        if seconds is None:
            raise NotFinished(f"exit code {run.done.exit_code}, no start of the job: {run.done.stderr[-1000:]}")
        self.figures.add(name, seconds)


PARTS = ("ready", "steps", "faults", "recovery", "many")


def measure(parts: Sequence[str], out: Path, *, quick: bool) -> Figures:
    """All figures of these parts.

    Raises:
        NotFinished: there can be no hosts here.
    """
    figures = Figures()
    num_rounds = QUICK_NUM_ROUNDS if quick else NUM_ROUNDS
    # Without the last one PyTorch may give ranks that are started again the addresses of those before.
    variables = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(PORT + 1), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if {"ready", "steps", "faults", "recovery"} & {*parts}:
        with hosts("slurm", NUM_HOSTS, variables) as cluster:
            # Names of hosts are known only now; rank 0 is on the first.
            first_host = {**variables, "MASTER_ADDR": cluster.names[0]}
            cluster = Hosts(cluster.kind, cluster.folder, cluster.names, cluster.home, first_host)
            _measure_slurm(Bench(cluster, figures, out), parts, num_rounds, quick=quick)
    for part, num in (("ready", NUM_HOSTS), ("many", NUM_MANY_HOSTS)):
        if part in parts:
            with hosts("ssh", num, variables) as cluster:
                bench = Bench(cluster, figures, out)
                for _ in range(num_rounds):
                    bench.try_to(f"{num} hosts by ssh", bench.measure_ready)
    return figures


def _measure_slurm(bench: Bench, parts: Sequence[str], num_rounds: int, *, quick: bool) -> None:
    num_steps = QUICK_NUM_STEPS if quick else NUM_STEPS
    for number in range(num_rounds):
        if "ready" in parts:
            bench.try_to("agents by Slurm", bench.measure_ready)
        if "steps" in parts:
            # In turns, so that what changes on the machine meets both.
            steps = partial(bench.measure_steps, num_steps, is_observed_first=number % 2 == 1)
            bench.try_to("observed steps", steps)
        if "recovery" in parts:
            for is_over_hosts in (True, False):
                bench.try_to("recovery", partial(bench.measure_recovery, is_over_hosts=is_over_hosts))
    if "faults" in parts:
        bench.try_to("faults", partial(bench.measure_faults, QUICK_NUM_FAULTS if quick else NUM_FAULTS))


# ---- the result ----


def verdicts(figures: Figures) -> dict[str, bool]:
    """Of each aim whose figures were measured, whether it is met by the medians."""
    met = {}
    for kind in ("slurm", "ssh"):
        ready = figures.median(READY.format(num=NUM_HOSTS, kind=kind))
        if ready is not None:
            met[f"agents of {NUM_HOSTS} hosts by {kind} ready within {MAX_READY_SECONDS:g} s"] = (
                ready <= MAX_READY_SECONDS
            )
    ratio = figures.median(STEP_RATIO)
    if ratio is not None:
        met[f"an observed step costs under {MAX_STEP_RATIO:.0%}"] = ratio < MAX_STEP_RATIO
    local, remote, round_trip = (figures.median(name) for name in (APPLIED_LOCAL, APPLIED_REMOTE, ROUND_TRIP))
    if local is not None and remote is not None and round_trip is not None:
        met["a fault on another host takes as long as here, and one round trip"] = remote <= local + round_trip
    return met


def to_text(figures: Figures, machine: Machine) -> str:
    """The result as text."""
    rows = [(name, *figures.spread(name).to_text(_namer(name))) for name in figures.values]
    return "\n".join(
        [
            f"machine: {machine}",
            table(("", "median", "min", "max", "n"), rows),
            *(f"{aim}: {'yes' if is_met else 'NO'}" for aim, is_met in verdicts(figures).items()),
            *(f"FAILED: {failure}" for failure in figures.failures),
        ]
    )


def _namer(name: str) -> Callable[[float], str]:
    if name == STEP_RATIO:
        return lambda ratio: f"{ratio:+.2%}"
    if name == ROUND_TRIP:
        return lambda seconds: f"{seconds * 1e6:,.0f} us"
    return name_milliseconds


def to_document(figures: Figures, machine: Machine) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "cluster",
        "machine": machine.to_dict(),
        "figures": {name: figures.spread(name).to_dict() for name in figures.values},
        "met": verdicts(figures),
        "failures": figures.failures,
    }


@click.command(help=__doc__)
@benchmark_options
@click.option("--only", "parts", multiple=True, type=click.Choice(PARTS), help="Default: all. May be given again.")
def main(as_json: bool, quick: bool, out: Path | None, parts: tuple[str, ...]) -> None:
    """Measure and print."""
    with confined_to(NUM_CORES), run_folder(out) as folder:
        folder.mkdir(parents=True, exist_ok=True)
        machine = describe_machine()
        # What others use of the machine meanwhile is not known: the hosts' processes are no children of this one.
        try:
            figures = measure(parts or PARTS, folder, quick=quick)
        except NotFinished as error:
            raise click.ClickException(str(error)) from error
    finish(
        to_document(figures, machine),
        to_text(figures, machine),
        as_json=as_json,
        has_failures=bool(figures.failures) or not all(verdicts(figures).values()),
    )


if __name__ == "__main__":
    main()
