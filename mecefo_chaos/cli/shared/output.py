"""Writes plans, reports and JSON to standard output, also when the reader has closed the pipe."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.errors import EnvironmentFailure
from chaos.host.streams import GONE, drop
from chaos.host.terminal import columns, text_columns, wrap_text
from chaos.plain_text import plain
from mecefo_runtime.system.json_values import to_json

if TYPE_CHECKING:
    from chaos.experiment.command_job import CommandConfig
    from chaos.experiment.experiment import Experiment
    from harness.judging.summary import Summary
    from mecefo_runtime.job.config import JobConfig


def print_plan(experiment: Experiment, as_json: bool) -> None:
    """What a run of `experiment` would do."""
    from chaos.experiment.gate_spec import AbortingGate
    from harness.run.preparation import prepare

    prepared = prepare(experiment)
    job, plan = prepared.job, prepared.plan
    for warning in prepared.warnings:
        echo(f"chaos: warning: {warning}")
    if as_json:
        print_json({"experiment": experiment.model_dump(mode="json"), **to_json(plan)})
        return
    print_text(_job_text(job))
    for incident in plan.incidents:
        print_text(str(incident))
    for note in plan.notes:
        print_text(note)
    for gate in experiment.gates:
        print_text(f"gate: {gate}{' (ends the run when it fails)' if isinstance(gate, AbortingGate) else ''}")
    print_text("fault-free baseline: the same job without faults" if experiment.twin else "no fault-free baseline")


def _job_text(job: JobConfig | CommandConfig) -> str:
    from chaos.experiment.command_job import CommandConfig
    from harness.analysis.words import count

    if isinstance(job, CommandConfig):
        return str(job)
    cluster = job.cluster()
    emulation = job.emulation
    pace = f"dilation x{job.dilation_ratio:g}"
    kept = "" if job.snapshots is None else f", snapshots {job.snapshots}"
    kept += "" if job.checkpoint is None else f", a checkpoint after every {count(job.checkpoint.every_steps, 'step')}"
    if emulation is not None:
        scale = f"time scale {emulation.time_scale:g}{' (chosen)' if emulation.is_scale_chosen else ''}"
        pace = f"emulating {emulation.device} by the {emulation.provenance} table {emulation.device_model}, {scale}"
    spares = f" and {job.spares} spare" if job.spares else ""
    return (
        f"{job.nodes} nodes{spares} x {job.gpus_per_node} ranks, {job.data_parallel} replicas x {job.pipeline} stages, "
        f"{cluster.num_layers} layers, {job.steps} steps, strategy {job.strategy}{kept}, "
        f"{pace}, seed {job.seed}"
    )


def print_report(summary: Summary, folder: Path, as_json: bool, events: Any = None) -> None:
    """The report of a run in `folder`, or its summary as JSON."""
    if as_json:
        print_json(to_json(summary))
        return
    from rich.console import Console

    from harness.judging.stored import judge
    from harness.report.terminal import render

    class ReportConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich's own would end the process with 1: a gate failed.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    events = judge(folder)[1] if events is None else events
    with standard_output():
        render(summary, events, ReportConsole(width=columns()), folder=folder, environment=os.environ)


def tell_github(summary: Summary, folder: Path, asked: bool | None) -> None:
    """Tell a GitHub workflow of the run, where this is one (`asked` None) or where the user says so."""
    if is_for_github(asked):
        from harness.report import github

        github.publish(summary, folder, os.environ, sys.stderr)


def is_for_github(asked: bool | None) -> bool:
    """Whether a GitHub workflow is to be told: where this is one, or (`asked`) as the user says."""
    from harness.report import github

    return github.is_asked_for(os.environ) if asked is None else asked


def print_json(document: Any) -> None:
    """One JSON document."""
    print_as_is(json.dumps(document, indent=2))


def print_text(text: str) -> None:
    """A line or more of prose, on standard output; what is too long for the terminal is wrapped."""
    print_as_is(wrap_text(text, text_columns()))


def print_as_is(text: str) -> None:
    """What is laid out already, or is to be copied, or read by a program, on standard output."""
    with standard_output():
        echo(text, err=False)


def echo(text: object, *, err: bool = True) -> None:
    """A line or more of text, by default on standard error."""
    click.echo(plain(text), err=err)


@contextmanager
def standard_output() -> Iterator[None]:
    """While something is printed: a closed pipe (`chaos runs | head`) or terminal is no failure.

    Raises:
        EnvironmentFailure: standard output takes nothing, such as on a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        drop(sys.stdout)
        if error.errno not in GONE:
            from chaos.host.inherited import why

            raise EnvironmentFailure(f"cannot write to standard output: {why(error)}") from error
