"""Runs an experiment and judges it: the folder, the conductor, and the files that are computed from the log."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from chaos.errors import EnvironmentFailure
from chaos.experiment.experiment import Experiment, to_yaml
from chaos.faults import registry
from chaos.host.inherited import why
from chaos.host.process_table import require_process_table
from chaos.host.run_files import EXPERIMENT_FILE, SUMMARY_FILE
from chaos.undo.heal import refuse_if_unclean
from chaos.undo.run_registry import writable_folder
from harness.analysis.contained import attempt
from harness.analysis.state import RunState
from harness.backends.docker.backend import require_image
from harness.backends.ground import needs_of, require_room
from harness.exporter.job import JobExporter, exported
from harness.judging.stored import judge
from harness.judging.summary import Summary
from harness.live.live import open_view
from harness.live.working import Working
from harness.network.machine import wants_networks
from harness.report import html, junit
from harness.run.conductor import Conductor
from harness.run.preparation import prepare
from harness.run.ratings import keep_ratings, kept_ratings, with_ratings
from harness.store.files import write_whole
from harness.store.runs import new_run_folder
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.devices import DeviceError, require_device
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
    job, incidents = with_ratings(prepared.job, ratings), prepared.plan.incidents
    if ratings is None:
        job = with_ratings(job, kept_ratings(out, job, experiment.backend))
    has_networks = wants_networks(experiment, [registry()[incident.fault].needs for incident in incidents])
    needs = needs_of(job, incidents, has_twin=experiment.twin, has_networks=has_networks)
    require_room(job, needs)
    refuse_if_unclean()
    writable_folder()
    try:
        if isinstance(job, JobConfig):
            require_device(job.device)
    except DeviceError as error:
        raise EnvironmentFailure(str(error)) from error
    engine = None
    if experiment.backend == "docker":
        with Working(f"checking the image {experiment.containers.image}", stream):
            engine = require_image(experiment.containers.image)
    try:
        folder = new_run_folder(out, experiment.name)
        (folder / EXPERIMENT_FILE).write_text(to_yaml(experiment), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(f"cannot write to {out}: {why(error, 'choose another place with --out')}") from error
    if isinstance(job, JobConfig) and job.checkpoint is not None and not job.checkpoint.folder:
        checkpoint = replace(job.checkpoint, folder=str((folder / CHECKPOINTS_FOLDER).resolve()))
        job = replace(job, checkpoint=checkpoint)
    state = RunState() if exporter is None else exporter.state
    with exported(open_view(stream, state=state), exporter, out, experiment.name) as view:
        for warning in prepared.warnings:
            view.message(f"warning: {warning}")
        where = "" if exporter is None else exporter.ranks_where
        conductor = Conductor(experiment, incidents, job, folder, state, view, engine=engine, ranks_metrics=where)
        asyncio.run(conductor.run())
    summary = write_reports(folder)
    if ratings is None:
        keep_ratings(out, summary.ratings, experiment.backend)
    if exporter is not None:
        exporter.judge(summary)
    return summary, folder


def write_reports(folder: Path) -> Summary:
    """Compute everything from the log again and write it beside the log; returns the summary.

    Raises:
        EnvironmentFailure: the files could not be written; the log is whole.
    """
    summary, events = judge(folder)
    files: dict[str, str] = {
        SUMMARY_FILE: json.dumps(summary.to_json(), indent=2) + "\n",
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
