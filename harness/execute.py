"""An experiment in, a judged run out: the folder, the conductor, and the files that are computed from the log."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from chaos.errors import EnvironmentFailure, UsageError
from chaos.experiment import Experiment, to_yaml
from chaos.schedule import Incident, plan_incidents
from harness.conductor import EVENTS_FILE, Conductor
from harness.gates import Gate, GateError, HaltCondition
from harness.live import open_view
from harness.log import read_events
from harness.report import html, junit
from harness.runs import StoreError, new_run_folder
from harness.summary import summarize
from mecefo_runtime.config import JobConfig
from mecefo_runtime.data import DataError, read_corpus
from mecefo_runtime.dilation import NO_DILATION, automatic_ratio
from mecefo_runtime.durable import ForeignCheckpoint, newest_durable
from mecefo_runtime.events import Event
from mecefo_runtime.layout import LayoutError

SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
JUNIT_FILE = "junit.xml"
EXPERIMENT_FILE = "experiment.yaml"
CHECKPOINTS_FOLDER = "checkpoints"


def check(experiment: Experiment) -> tuple[JobConfig, tuple[Incident, ...]]:
    """Everything that can be refused before anything is started; returns the job and the incidents.

    Raises:
        UsageError: the experiment cannot be run, and why.
    """
    try:
        for expression in experiment.gates:
            Gate.parse(expression)
        for condition in experiment.halt:
            HaltCondition.parse(condition)
        job = experiment.job.to_config(experiment.seed, _dilation_ratio(experiment))
        incidents = plan_incidents(experiment, job.cluster())
        read_corpus(job.data, sequence_length=job.sequence_length)
        if job.checkpoint is not None and job.checkpoint.resume and job.checkpoint.folder:
            newest_durable(job)
    except (GateError, LayoutError, DataError, ForeignCheckpoint) as error:
        raise UsageError(str(error)) from error
    return job, incidents


def execute(experiment: Experiment, out: Path, stream: TextIO) -> tuple[dict[str, Any], Path]:
    """Run `experiment`, shown on `stream`; returns (summary, run folder).

    Raises:
        UsageError: the experiment cannot be run.
        EnvironmentFailure: the machine does not let us run it.
    """
    job, incidents = check(experiment)
    try:
        folder = new_run_folder(out, experiment.name)
        (folder / EXPERIMENT_FILE).write_text(to_yaml(experiment))
    except StoreError as error:
        raise EnvironmentFailure(str(error)) from error
    except OSError as error:
        raise EnvironmentFailure(f"cannot write to {out}: {error.strerror}. Choose another place with --out") from error
    if job.checkpoint is not None and not job.checkpoint.folder:
        checkpoint = replace(job.checkpoint, folder=str((folder / CHECKPOINTS_FOLDER).resolve()))
        job = replace(job, checkpoint=checkpoint)
    with open_view(stream) as view:
        asyncio.run(Conductor(experiment, incidents, job, folder, view).run())
    return write_reports(folder), folder


def judge(folder: Path) -> tuple[dict[str, Any], list[Event]]:
    """The summary of a run, and its events, from the log alone.

    Raises:
        harness.log.LogError: there is no log to read.
    """
    events, num_unreadable = read_events(folder / EVENTS_FILE)
    return summarize(events, num_unreadable=num_unreadable), events


def write_reports(folder: Path) -> dict[str, Any]:
    """Compute everything from the log again and write it beside the log; returns the summary.

    Raises:
        EnvironmentFailure: the files could not be written; the log is whole.
    """
    summary, events = judge(folder)
    files: Mapping[str, str] = {
        SUMMARY_FILE: json.dumps(summary, indent=2) + "\n",
        REPORT_FILE: html.render(summary, events, folder=folder),
        JUNIT_FILE: junit.render(summary),
    }
    for name, text in files.items():
        write_whole(folder / name, text)
    return summary


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it.

    Raises:
        EnvironmentFailure: it could not be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error


def _dilation_ratio(experiment: Experiment) -> float:
    match experiment.job.dilation:
        case "auto":
            return automatic_ratio(experiment.job.nodes * experiment.job.gpus_per_node, len(os.sched_getaffinity(0)))
        case "off":
            return NO_DILATION
        case ratio:
            return float(ratio)
