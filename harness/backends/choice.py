"""Chooses the backend of an experiment and configures it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.experiment.command_job import CommandConfig
from chaos.experiment.experiment import Experiment
from harness.backends.base import AnyConfig, Backend
from harness.backends.command.backend import CommandBackend
from harness.backends.docker.backend import DockerBackend
from harness.backends.docker.command import folder_of
from harness.backends.docker.settings import container_spec
from harness.backends.local import LocalBackend
from harness.control.control_server import ControlServer
from harness.network.machine import wants_networks
from mecefo_runtime.system.emitter import Emitter

# What ranks and the coordinator import when they first need it: seconds, were every one of them to do so.
CHECKPOINT_MODULES = ("mecefo_runtime.checkpoint.checkpoint", "mecefo_runtime.checkpoint.writer")


@dataclass(frozen=True, slots=True)
class BackendSetup:
    """What a run in `folder` gives its backend; `needs` are those of each of its incidents' faults.

    `engine` is the address of the Docker engine in which nodes are containers; None: they are on this machine.
    `ranks_metrics` is where the main job's ranks are to serve their metrics (`exporter`), if at all.
    """

    experiment: Experiment
    job: AnyConfig
    needs: Sequence[tuple[str, ...]]
    folder: Path
    logs: Path
    control: ControlServer
    token: str
    emitter: Emitter
    engine: str | None = None
    ranks_metrics: str = ""


def choose_backend(run: BackendSetup) -> Backend:
    """The backend of a run."""
    job, has_links = run.job, wants_networks(run.experiment, run.needs)
    networked = job.cluster() if has_links else None
    connected = (run.control, run.token, run.logs)
    if isinstance(job, CommandConfig):
        if run.engine is None:
            return CommandBackend(run.control, run.logs, run.emitter, networked)
        spec = container_spec(run.experiment, job, (run.folder.resolve(), folder_of(job)), has_links=has_links)
        return DockerBackend(*connected, run.emitter, spec, run.engine)
    modules = () if job.checkpoint is None else CHECKPOINT_MODULES
    if run.engine is None:
        return LocalBackend(*connected, job.data, run.emitter, modules, networked, run.ranks_metrics)
    folders = [one.resolve() for one in (run.folder, *checkpoint_folders(job))]
    spec = container_spec(run.experiment, job, folders, has_links=has_links)
    return DockerBackend(*connected, run.emitter, spec, run.engine, modules, run.ranks_metrics)


def checkpoint_folders(job: AnyConfig) -> tuple[Path, ...]:
    """Where the job writes its checkpoints, if it writes any."""
    if isinstance(job, CommandConfig) or job.checkpoint is None:
        return ()
    return (Path(job.checkpoint.folder),)
