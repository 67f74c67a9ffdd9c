"""How long is a job without its dead ranks? `python -m benchmarks.failover [--kind KIND] [--phase PHASE] [--peers]`.

With `--quick` fewer runs and steps. Runs of the default job, shorter, each with another seed and so another target,
that loses a node (or one rank) to SIGKILL in the middle, as it begins a phase of a step: from the kill to the first
committed step that began after it, by what goes on meanwhile, beside the usual step of the same runs. With --peers,
undilated and with whole models, next to torchft and torchrun under the same kill.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, failure_of, finish, progress, run_folder, run_once
from benchmarks._spread import Spread, name_milliseconds, spread, table
from benchmarks.peers import comparison
from benchmarks.peers.comparison import Outcome, Way
from benchmarks.peers.rounds import NOTES, Entry, peer_entries, run_rounds
from chaos.experiment.experiment import Experiment
from chaos.experiment.job import Job
from chaos.experiment.reading import from_mapping
from chaos.language.trigger import PHASES as PHASES_OF_STEP
from harness.judging.summary import Summary

KINDS = ("kill-node", "kill-process")
# The same as in the other benchmarks, wherever there are more.
NUM_CORES = 2
NUM_RUNS, QUICK_NUM_RUNS = 10, 2
NUM_STEPS, FAULT_STEP = 60, 30
QUICK_NUM_STEPS, QUICK_FAULT_STEP = 16, 8
NUM_ROUNDS, QUICK_NUM_ROUNDS = 5, 1
# The last one is half of that before the kill: what is done again is neither least nor most.
CHECKPOINT_STEPS, QUICK_CHECKPOINT_STEPS = 20, 5
# The peers know neither dilation nor pipelines: one replica per rank. They compute on the CPU.
PEERS_JOB: Mapping[str, Any] = {"dilation": "off", "data_parallel": 8, "pipeline": 1, "device": "cpu"}
MAX_DETECTION_SECONDS = 0.1
MAX_REGROUP_SECONDS = 0.5
# A loss is to cost what has to be computed again, and the regroup.
MAX_RECOVERY_STEPS, MAX_RECOVERY_SECONDS = 1.2, 0.2

# In the order in which they follow each other; together they are the recovery.
PHASES: Mapping[str, str] = {
    "detection": "killed -> loss detected",
    "isolate": "-> in-flight step aborted",
    "regroup": "-> process groups rebuilt",
    "transfer": "-> state transferred",
    "first_step": "-> next step committed",
}


@dataclass(frozen=True, slots=True)
class Failover:
    """One run. `failure` says why it does not count as recovered; what was not reached then is None.

    `is_injected` is False when the fault did not take effect: such a run says nothing about recovery.
    """

    seed: int | None
    target: str
    is_injected: bool
    recovery_seconds: float | None
    phases_seconds: Mapping[str, float | None]
    step_seconds: float | None
    others_cores: float
    failure: str | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result: what of a run, and what it should stay below (seconds, None: no such aim)."""

    name: str
    of: Callable[[Failover], float | None]
    aim_seconds: float | None = None


def _phase(name: str) -> Callable[[Failover], float | None]:
    return lambda run: run.phases_seconds[name]


def _regroup_and_transfer(run: Failover) -> float | None:
    parts = [run.phases_seconds[name] for name in ("regroup", "transfer")]
    return None if None in parts else sum(part for part in parts if part is not None)


DETECTION = Figure("detection", _phase("detection"), MAX_DETECTION_SECONDS)
REGROUP = Figure("regroup + transfer", _regroup_and_transfer, MAX_REGROUP_SECONDS)
RECOVERY = Figure("injected -> committed", lambda run: run.recovery_seconds)


def experiment_of(
    kind: str, seed: int, *, quick: bool, phase: str = "forward", job: Mapping[str, Any] | None = None
) -> Experiment:
    """The default job, changed by `job`, with one kill that is not repaired; the seed draws the target."""
    num_steps, fault_step = (QUICK_NUM_STEPS, QUICK_FAULT_STEP) if quick else (NUM_STEPS, FAULT_STEP)
    fault = {"kind": kind, "at": {"step": fault_step, "phase": phase}, "repair": "none"}
    return from_mapping(
        {
            "name": f"failover-{kind}",
            "seed": seed,
            "job": {"steps": num_steps, **(job or {})},
            "faults": [fault],
            "twin": False,
        }
    )


def read_failover(summary: Summary, others_cores: float) -> Failover:
    """What a summary says of its only incident."""
    incident = summary.incidents[0]
    is_injected = incident.verified
    failure = failure_of(summary)
    if not is_injected:
        failure = f"the kill did not take effect: {incident.unverified_reason or failure or 'it never came to it'}"
    elif not incident.recovered:
        failure = f"did not recover: {failure or 'no step began after the kill'}"
    elif failure is not None:
        failure = f"recovered, and then failed: {failure}"
    phases = incident.phases_seconds
    return Failover(
        seed=summary.seed,
        target=str(incident.target),
        is_injected=is_injected,
        recovery_seconds=incident.recovery_seconds,
        phases_seconds={name: incident.detection_seconds if name == "detection" else phases[name] for name in PHASES},
        step_seconds=summary.step_seconds,
        others_cores=others_cores,
        failure=failure,
    )


def collect(runs: Sequence[Failover], of: Callable[[Failover], float | None]) -> Spread:
    """One figure of all runs whose kill took effect; in a run that did not get that far it never happened."""
    values = (of(run) for run in runs if run.is_injected)
    return spread(math.inf if value is None else value for value in values)


def recovery_in_steps(run: Failover) -> float | None:
    """The recovery as a multiple of the usual step of the same run."""
    if run.recovery_seconds is None or not run.step_seconds:
        return None
    return run.recovery_seconds / run.step_seconds


def is_recovered_in_time(run: Failover) -> bool:
    """Whether the recovery took no longer than it should, beside the usual step of the same run."""
    if run.recovery_seconds is None or not run.step_seconds:
        return False
    return run.recovery_seconds <= MAX_RECOVERY_STEPS * run.step_seconds + MAX_RECOVERY_SECONDS


def report(runs: Sequence[Failover], machine: Machine, kind: str, *, quick: bool, phase: str = "forward") -> str:
    """The result as text."""
    trigger = experiment_of(kind, 0, quick=quick, phase=phase).faults[0].at
    figures = [RECOVERY, *(Figure(f"  {name}: {text}", _phase(name)) for name, text in PHASES.items()), REGROUP]
    rows = [(figure.name, *collect(runs, figure.of).to_text(name_milliseconds)) for figure in figures]
    rows.append(("usual step", *collect(runs, lambda run: run.step_seconds).to_text(name_milliseconds)))
    rows.append(("injected -> committed, in steps", *collect(runs, recovery_in_steps).to_text(_name_multiple)))
    aims = [_aim(runs, figure) for figure in (DETECTION, REGROUP)]
    injected = [run for run in runs if run.is_injected]
    limit = f"{MAX_RECOVERY_STEPS:g} usual steps and {name_milliseconds(MAX_RECOVERY_SECONDS)}"
    num_in_time = sum(map(is_recovered_in_time, injected))
    aims.append(f"aim: injected -> committed within {limit}: {num_in_time} of {len(injected)} runs")
    failures = [f"seed {run.seed}, {run.target}: FAILED: {run.failure}" for run in runs if run.failure]
    recovered = sum(run.failure is None for run in runs)
    others = max((run.others_cores for run in runs), default=0.0)
    return "\n".join(
        [
            f"machine: {machine}; others used at most {others:.2f} cores meanwhile",
            f"job: the default one, dilated, {QUICK_NUM_STEPS if quick else NUM_STEPS} steps; {kind} at {trigger}",
            "",
            table(("time", "median", "min", "max", "n"), rows),
            "",
            f"recovered: {recovered} of {len(runs)} runs",
            *aims,
            *failures,
        ]
    )


def to_document(
    runs: Sequence[Failover], machine: Machine, kind: str, *, quick: bool, phase: str = "forward"
) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "failover",
        "machine": machine.to_dict(),
        "kind": kind,
        "phase": phase,
        "job": experiment_of(kind, 0, quick=quick).job.model_dump(mode="json"),
        "num_recovered": sum(run.failure is None for run in runs),
        "num_recovered_in_time": sum(map(is_recovered_in_time, runs)),
        "runs": [asdict(run) for run in runs],
        "recovery_seconds": collect(runs, RECOVERY.of).to_dict(),
        "phases_seconds": {name: collect(runs, _phase(name)).to_dict() for name in PHASES},
        "regroup_and_transfer_seconds": collect(runs, REGROUP.of).to_dict(),
        "step_seconds": collect(runs, lambda run: run.step_seconds).to_dict(),
        "recovery_in_steps": collect(runs, recovery_in_steps).to_dict(),
    }


def _aim(runs: Sequence[Failover], figure: Figure) -> str:
    assert figure.aim_seconds is not None
    values = collect(runs, figure.of).values
    num_met = sum(value < figure.aim_seconds for value in values)
    return f"aim: {figure.name} under {name_milliseconds(figure.aim_seconds)}: {num_met} of {len(values)} runs"


def _name_multiple(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "never"


def our_entry(kind: str, *, quick: bool) -> Entry:
    """Ours as a way of the comparison with the peers."""
    ours = experiment_of(kind, 0, quick=quick, job=PEERS_JOB).job
    assert isinstance(ours, Job)
    way = Way(f"ours, {kind}", "ours", f"strategy {ours.strategy}, nothing repaired")

    def run(round_number: int, folder: Path) -> Outcome:
        experiment = experiment_of(kind, round_number, quick=quick, job=PEERS_JOB)
        run = read_failover(run_once(experiment, folder), 0.0)
        return Outcome(
            way.name, round_number, run.target, run.is_injected, run.recovery_seconds, run.step_seconds, run.failure
        )

    return Entry(way, run)


def compare(out: Path | None, *, quick: bool, as_json: bool) -> None:
    """Run ours and the peers in turns, and print and judge the result."""
    one_rank = functools.partial(experiment_of, "kill-process", quick=quick, job=PEERS_JOB)
    peers, missing = peer_entries(one_rank, QUICK_CHECKPOINT_STEPS if quick else CHECKPOINT_STEPS)
    entries = [*(our_entry(kind, quick=quick) for kind in reversed(KINDS)), *peers]
    ways = [entry.way for entry in entries]
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        outcomes = run_rounds(entries, QUICK_NUM_ROUNDS if quick else NUM_ROUNDS, folder, cores)
    experiment = one_rank(0)
    job = experiment.job
    assert isinstance(job, Job)
    shape = f"job: {job.model}, {job.num_ranks} ranks, {job.steps} steps; one rank killed at {experiment.faults[0].at}"
    notes = [f"{shape} (kill-node: two)", *NOTES]
    finish(
        comparison.to_document(outcomes, ways, machine, job.model_dump(mode="json"), [*notes, *missing]),
        comparison.report(outcomes, ways, machine, notes, missing),
        as_json=as_json,
        has_failures=comparison.has_failures(outcomes, ways),
    )


@click.command(help=__doc__)
@benchmark_options
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="What is killed.")
@click.option(
    "--phase", type=click.Choice(PHASES_OF_STEP), default="forward", show_default=True, help="When in a step."
)
@click.option(
    "--peers", is_flag=True, help="Compare with torchft (where it is installed) and torchrun; kills a rank and a node."
)
def main(as_json: bool, quick: bool, out: Path | None, kind: str, phase: str, peers: bool) -> None:
    """Entry point."""
    if peers:
        source = click.get_current_context().get_parameter_source
        if ParameterSource.COMMANDLINE in (source("kind"), source("phase")):
            raise click.UsageError("--peers kills one rank and one node, as they compute: leave out --kind and --phase")
        compare(out, quick=quick, as_json=as_json)
        return
    num_runs = QUICK_NUM_RUNS if quick else NUM_RUNS
    runs: list[Failover] = []
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        for seed in range(num_runs):
            with OtherLoad(cores) as others:
                summary = run_once(experiment_of(kind, seed, quick=quick, phase=phase), folder)
            run = read_failover(summary, others.num_cores)
            runs.append(run)
            outcome = f"FAILED: {run.failure}" if run.failure else name_milliseconds(run.recovery_seconds or 0.0)
            progress(f"run {seed + 1} of {num_runs}, {run.target}: {outcome}")
    finish(
        to_document(runs, machine, kind, quick=quick, phase=phase),
        report(runs, machine, kind, quick=quick, phase=phase),
        as_json=as_json,
        has_failures=any(run.failure for run in runs),
    )


if __name__ == "__main__":
    main()
