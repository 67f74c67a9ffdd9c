"""Which backend runs an experiment, made ready with all that it needs to know."""

from __future__ import annotations

from collections.abc import Iterable
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
from mecefo_runtime.system.events import Emitter

# What ranks and the coordinator import when they first need it: seconds, were every one of them to do so.
CHECKPOINT_MODULES = ("mecefo_runtime.checkpoint.checkpoint", "mecefo_runtime.checkpoint.writer")


def choose_backend(
    experiment: Experiment,
    job: AnyConfig,
    needs: Iterable[tuple[str, ...]],
    folder: Path,
    logs: Path,
    control: ControlServer,
    token: str,
    emitter: Emitter,
    engine: str | None,
    ranks_metrics: str,
) -> Backend:
    """The backend of a run in `folder`; `needs` are those of each of its incidents' faults.

    `engine` is the address of the Docker engine in which nodes are containers; None: they are on this machine.
    `ranks_metrics` is where the main job's ranks are to serve their metrics (`exporter`), if at all.
    """
    has_links = wants_networks(experiment, needs)
    networked = job.cluster() if has_links else None
    if isinstance(job, CommandConfig):
        if engine is None:
            return CommandBackend(control, token, logs, emitter, networked)
        spec = container_spec(experiment, job, (folder.resolve(), folder_of(job)), has_links=has_links)
        return DockerBackend(control, token, logs, emitter, spec, engine)
    modules = () if job.checkpoint is None else CHECKPOINT_MODULES
    if engine is None:
        return LocalBackend(control, token, logs, job.data, emitter, modules, networked, ranks_metrics)
    folders = [one.resolve() for one in (folder, *checkpoint_folders(job))]
    spec = container_spec(experiment, job, folders, has_links=has_links)
    return DockerBackend(control, token, logs, emitter, spec, engine, modules, ranks_metrics)


def checkpoint_folders(job: AnyConfig) -> tuple[Path, ...]:
    """Where the job writes its checkpoints, if it writes any."""
    if isinstance(job, CommandConfig) or job.checkpoint is None:
        return ()
    return (Path(job.checkpoint.folder),)
