"""An experiment in, a judged run out: the folder, the conductor, and the files that are computed from the log."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from chaos.errors import EnvironmentFailure, UsageError, all_of
from chaos.experiment.command_job import CommandConfig, CommandJob, check_command
from chaos.experiment.experiment import Experiment, to_yaml
from chaos.faults import registry
from chaos.faults.base import RunContext
from chaos.plan.incident import Incident, Plan
from chaos.plan.needs import NEEDS, capabilities_of, check_needs
from chaos.plan.schedule import make_plan
from chaos.undo.heal import refuse_if_unclean
from chaos.undo.run_registry import writable_folder
from harness.analysis.state import RunState
from harness.backends.base import AnyConfig
from harness.backends.docker.backend import require_image
from harness.backends.docker.settings import is_shared
from harness.exporter.job import JobExporter, exported
from harness.judging.early_end import check_gates
from harness.judging.gates import GateError, HaltCondition
from harness.judging.judge import judge
from harness.judging.summary import Summary
from harness.live.live import open_view
from harness.network.machine import why_no_networks
from harness.report import html, junit
from harness.run.conductor import Conductor
from harness.store.runs import new_run_folder
from mecefo_runtime.checkpoint.durable import MismatchedCheckpoint, newest_durable
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import LayoutError
from mecefo_runtime.model.data import DataError, read_corpus
from mecefo_runtime.system.devices import DeviceError, num_devices, require_device
from mecefo_runtime.system.dilation import NO_DILATION, automatic_ratio

SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
JUNIT_FILE = "junit.xml"
EXPERIMENT_FILE = "experiment.yaml"
CHECKPOINTS_FOLDER = "checkpoints"


def check(experiment: Experiment) -> tuple[AnyConfig, tuple[Incident, ...]]:
    """Everything that can be refused before anything is started; returns the job and the incidents.

    Raises:
        UsageError: the experiment cannot be run, and why.
    """
    job, plan = prepare(experiment)
    return job, plan.incidents


def prepare(experiment: Experiment) -> tuple[AnyConfig, Plan]:
    """As `check`, with what there is to be said of the incidents.

    Raises:
        UsageError: the experiment cannot be run, and why.
    """
    try:
        _check_conditions(experiment)
        job = experiment.job.to_config(experiment.seed, _dilation_ratio(experiment))
        capabilities = _capabilities(experiment, job)
        plan = make_plan(experiment, job.cluster(), capabilities=capabilities)
        _check_needs(plan, experiment, capabilities)
        if experiment.network == "namespaces" and (reason := why_no_networks()) is not None:
            raise UsageError(reason, key="network")
        _check_faults(plan, job, experiment)
        if isinstance(job, CommandConfig):
            check_command(job, is_in_containers=experiment.backend == "docker")
            return job, plan
        try:
            read_corpus(job.data, sequence_length=job.sequence_length)
        except DataError as error:
            raise UsageError(str(error), key="job.data") from error
        if job.checkpoint is not None and job.checkpoint.resume and job.checkpoint.folder:
            newest_durable(job)
    except (LayoutError, MismatchedCheckpoint) as error:
        raise UsageError(str(error)) from error
    return job, plan


def execute(
    experiment: Experiment, out: Path, stream: TextIO, exporter: JobExporter | None = None
) -> tuple[Summary, Path]:
    """Run `experiment`, shown on `stream` and exported by `exporter`; returns (summary, run folder).

    Raises:
        UsageError: the experiment cannot be run.
        EnvironmentFailure: the machine does not let us run it.
        HealError: an earlier run left something behind.
    """
    job, incidents = check(experiment)
    refuse_if_unclean()
    writable_folder()
    try:
        if isinstance(job, JobConfig):
            require_device(job.device)
    except DeviceError as error:
        raise EnvironmentFailure(str(error)) from error
    engine = require_image(experiment.containers.image) if experiment.backend == "docker" else None
    try:
        folder = new_run_folder(out, experiment.name)
        (folder / EXPERIMENT_FILE).write_text(to_yaml(experiment))
    except OSError as error:
        raise EnvironmentFailure(f"cannot write to {out}: {error.strerror}. Choose another place with --out") from error
    if isinstance(job, JobConfig) and job.checkpoint is not None and not job.checkpoint.folder:
        checkpoint = replace(job.checkpoint, folder=str((folder / CHECKPOINTS_FOLDER).resolve()))
        job = replace(job, checkpoint=checkpoint)
    state = RunState() if exporter is None else exporter.state
    with exported(open_view(stream, state=state), exporter, out, experiment.name) as view:
        where = "" if exporter is None else exporter.ranks_where
        conductor = Conductor(experiment, incidents, job, folder, state, view, engine=engine, ranks_metrics=where)
        asyncio.run(conductor.run())
    summary = write_reports(folder)
    if exporter is not None:
        exporter.judge(summary)
    return summary, folder


def write_reports(folder: Path) -> Summary:
    """Compute everything from the log again and write it beside the log; returns the summary.

    Raises:
        EnvironmentFailure: the files could not be written; the log is whole.
    """
    summary, events = judge(folder)
    files: Mapping[str, str] = {
        SUMMARY_FILE: json.dumps(summary.to_json(), indent=2) + "\n",
        REPORT_FILE: html.render(summary, events, folder=folder),
        JUNIT_FILE: junit.render(summary),
    }
    try:
        for name, text in files.items():
            write_whole(folder / name, text)
    except EnvironmentFailure as error:
        raise EnvironmentFailure(f"{error}. The log is whole: `chaos report {folder}` judges the run by it") from error
    return summary


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it.

    A link keeps pointing to the file, and what is no file, such as /dev/stdout, is written to as it is.

    Raises:
        EnvironmentFailure: it could not be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror}") from error


def _capabilities(experiment: Experiment, job: AnyConfig) -> frozenset[str]:
    """What faults can count on: what the experiment offers, and this machine."""
    has_checkpoints = isinstance(job, JobConfig) and job.checkpoint is not None
    offered = capabilities_of(experiment.backend, experiment.job.runtime, has_checkpoints=has_checkpoints)
    is_on_cpu = isinstance(job, JobConfig) and job.device == "cpu"
    of_machine = {
        "root": os.geteuid() == 0,
        "cuda": not is_on_cpu and num_devices() > 0,
        "links": experiment.backend == "local"
        and _may_need_links(experiment)
        and experiment.network != "loopback"
        and why_no_networks() is None,
    }
    return offered | {need for need, is_there in of_machine.items() if is_there}


def _may_need_links(experiment: Experiment) -> bool:
    """Whether it matters that ranks have links: to find out takes a moment."""
    kinds = registry()
    return experiment.profile is not None or any("links" in kinds[fault.kind].needs for fault in experiment.faults)


def _check_conditions(experiment: Experiment) -> None:
    """Let gates and halt conditions pass that can be understood.

    Raises:
        UsageError: some of them cannot; all of those at once.
    """
    problems = []
    for index, gate in enumerate(experiment.gates):
        try:
            check_gates([gate], has_twin=experiment.twin)
        except GateError as error:
            problems.append(UsageError(str(error), key=f"gates[{index}]"))
    for index, condition in enumerate(experiment.halt):
        try:
            HaltCondition.parse(condition)
        except GateError as error:
            problems.append(UsageError(str(error), key=f"halt[{index}]"))
    if problems:
        raise all_of(problems)


def _check_needs(plan: Plan, experiment: Experiment, capabilities: frozenset[str]) -> None:
    """Let faults pass that have what they need.

    Raises:
        UsageError: some have not; each of those at once, where it is said first.
    """
    kinds = registry()
    first_keys: dict[str, str] = {}
    for incident, key in zip(plan.incidents, plan.keys, strict=True):
        first_keys.setdefault(incident.fault, key)
    problems = []
    for fault, key in first_keys.items():
        for violation in check_needs({fault: kinds[fault].needs}, capabilities):
            problems.append(UsageError(_with_reason(violation.message, experiment), key=key))
    if problems:
        raise all_of(problems)


def _with_reason(violation: str, experiment: Experiment) -> str:
    """A violation about links says why there are none."""
    if NEEDS["links"] not in violation:
        return violation
    reason = "with network: loopback they share one" if experiment.network == "loopback" else why_no_networks()
    return f"{violation}, and {reason}"


def _check_faults(plan: Plan, job: AnyConfig, experiment: Experiment) -> None:
    """Let every fault refuse what it can know to be impossible.

    Raises:
        UsageError: one of them does.
    """
    checkpoint = job.checkpoint if isinstance(job, JobConfig) else None
    folder = Path(checkpoint.folder) if checkpoint is not None and checkpoint.folder else None
    run = RunContext(
        job.cluster(),
        folder,
        sees_mounts=experiment.backend == "local" or is_shared(folder or Path.cwd()),
        ranks_are_hosts=isinstance(job, CommandConfig) and experiment.backend == "local",
        node_memory_bytes=experiment.containers.memory,
    )
    for incident, of_fault in zip(plan.incidents, plan.keys, strict=True):
        kind = registry()[incident.fault]
        try:
            kind(kind.Parameters.model_validate(dict(incident.parameters))).check(incident.target, run)
        except UsageError as error:
            key = of_fault + (f".{error.key}" if error.key else "")
            raise UsageError(error.message, key=key, suggestion=error.suggestion) from error


def _dilation_ratio(experiment: Experiment) -> float:
    """What a rank's CPU time is padded to; a rank that computes on a GPU has none to pad."""
    job = experiment.job
    if isinstance(job, CommandJob):
        return NO_DILATION
    uses_gpus = job.device == "cuda" or (job.device == "auto" and num_devices() > 0)
    match job.dilation:
        case "auto" if not uses_gpus:
            return automatic_ratio(job.nodes * job.gpus_per_node, len(os.sched_getaffinity(0)))
        case "auto" | "off":
            return NO_DILATION
        case ratio:
            if uses_gpus and float(ratio) > NO_DILATION:
                raise UsageError(
                    f"{ratio:g} pads CPU time, and the ranks compute on GPUs: leave it on auto, or choose device cpu",
                    key="dilation",
                )
            return float(ratio)
