"""Runs an experiment and judges it: the folder, the conductor, and the files that are computed from the log."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from chaos.errors import EnvironmentFailure
from chaos.experiment.experiment import Experiment, to_yaml
from chaos.faults import registry
from chaos.host.inherited import why
from chaos.host.process_table import require_process_table
from chaos.host.run_files import EXPERIMENT_FILE, SUMMARY_FILE
from chaos.host.runtime_extra import require_runtime
from chaos.undo.heal import refuse_if_unclean
from chaos.undo.run_registry import writable_folder
from harness.analysis.contained import attempt
from harness.analysis.state import RunState
from harness.analysis.words import count
from harness.backends.base import AnyConfig, kind_of
from harness.backends.cluster.healing import forget_ended_allocations
from harness.doctor.ground import Needs, needs_of
from harness.exporter.job import JobExporter, exported
from harness.judging.stored import judge
from harness.judging.summary import Summary
from harness.live.live import open_view
from harness.network.machine import wants_networks
from harness.node.node import Node
from harness.report import html, junit
from harness.run.conductor import Conductor
from harness.run.preparation import prepare
from harness.run.ratings import keep_ratings, kept_ratings, with_ratings
from harness.store.files import write_whole
from harness.store.runs import new_run_folder
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Reason

REPORT_FILE = "report.html"
JUNIT_FILE = "junit.xml"
CHECKPOINTS_FOLDER = "checkpoints"


def execute(
    experiment: Experiment,
    out: Path,
    stream: TextIO,
    exporter: JobExporter | None = None,
    ratings: Mapping[str, Any] | None = None,
) -> tuple[Summary, Path]:
    """Run `experiment`, shown on `stream` and exported by `exporter`; returns (summary, run folder).

    `ratings` are those of the summary of a run that this one is to be compared with; None: those kept in `out`, if they
    fit.

    Raises:
        UsageError: the experiment cannot be run.
        EnvironmentFailure: the machine does not let us run it.
        HealError: an earlier run left something behind.
    """
    require_process_table()
    prepared = prepare(experiment)
    require_packages(experiment)
    job, incidents = with_ratings(prepared.job, ratings), prepared.plan.incidents
    if ratings is None:
        job = with_ratings(job, kept_ratings(out, job, experiment.backend))
    has_networks = wants_networks(experiment, [registry()[incident.fault].needs for incident in incidents])
    kind = kind_of(experiment.nodes_on)
    require_room(job, needs_of(job, incidents, has_baseline=experiment.twin, has_networks=has_networks), kind.machine())
    forget_ended_allocations()
    refuse_if_unclean()
    writable_folder()
    if (why_not := kind.machine().why_no_device(job.device)) is not None:
        raise EnvironmentFailure(why_not)
    engine = kind.require(experiment, stream)
    try:
        folder = new_run_folder(out, experiment.name)
        (folder / EXPERIMENT_FILE).write_text(to_yaml(experiment), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(f"cannot write to {out}: {why(error, 'choose another place with --out')}") from error
    job = job.with_checkpoints_in((folder / CHECKPOINTS_FOLDER).resolve())
    state = RunState() if exporter is None else exporter.state
    with exported(open_view(stream, state=state), exporter, out, experiment.name) as view:
        for warning in prepared.warnings:
            view.message(f"warning: {warning}")
        where = "" if exporter is None else exporter.ranks_where
        conductor = Conductor(experiment, incidents, job, folder, state, view, engine=engine, ranks_metrics=where)
        try:
            asyncio.run(conductor.run())
        except asyncio.CancelledError:
            # A signal came before the conductor listened for it.
            raise KeyboardInterrupt from None
    summary = write_reports(folder)
    if ratings is None:
        keep_ratings(out, summary.ratings, experiment.backend)
    if exporter is not None:
        exporter.judge(summary)
    return summary, folder


def require_packages(experiment: Experiment) -> None:
    """Refuse a built-in job where its packages are not installed; containers have their own.

    Raises:
        EnvironmentFailure: some are not.
    """
    if not (experiment.job.traits.is_user_script or experiment.nodes_on.has_own_files):
        require_runtime("the built-in job")


def require_room(job: AnyConfig, needs: Needs, machine: Node) -> None:
    """Make room on `machine` for what a run needs, within the limits that the user has set.

    Raises:
        EnvironmentFailure: they are too low.
    """
    shortage, ranks = machine.make_room(needs), count(job.cluster().num_ranks, "rank")
    if shortage is None:
        return
    if shortage.what == "open files":
        raise EnvironmentFailure(
            f"a run of {ranks} needs up to {needs.open_files} file descriptors in each process, and the hard limit is "
            f"{shortage.limit}: type `ulimit -n {needs.open_files}` before, as root or in a new shell, or choose fewer "
            "ranks"
        )
    enough = shortage.limit - shortage.free + needs.processes
    raise EnvironmentFailure(
        f"a run of {ranks} takes up to {needs.processes} processes and threads, and this user may start "
        f"{shortage.free} more, of {shortage.limit}: type `ulimit -u {enough}` before, as root or in a new shell, or "
        "choose fewer ranks"
    )


def write_reports(folder: Path) -> Summary:
    """Compute everything from the log again and write it beside the log; returns the summary.

    Raises:
        EnvironmentFailure: the files could not be written; the log is whole.
    """
    summary, events = judge(folder)
    files: dict[str, str] = {
        SUMMARY_FILE: json.dumps(to_json(summary), indent=2) + "\n",
        REPORT_FILE: html.page(summary, events, folder=folder, environment=os.environ),
    }
    problems: list[Reason] = []
    if (suite := attempt("JUnit report", lambda: junit.render(summary), problems, size=len(events))) is not None:
        files |= {JUNIT_FILE: suite}
    try:
        for name, text in files.items():
            write_whole(folder / name, text)
    except EnvironmentFailure as error:
        raise EnvironmentFailure(f"{error}. The log is whole: `chaos report {folder}` judges the run by it") from error
    return summary
