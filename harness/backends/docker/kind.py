"""The description of the Docker backend: nodes are containers on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TextIO

from chaos.experiment.backends import SettingOption
from chaos.experiment.command_job import CommandConfig
from chaos.experiment.experiment import Experiment
from harness.backends.base import Backend, BackendKind, BackendSetup, checkpoint_folders
from harness.backends.docker.containers import Containers
from harness.doctor.finding import Finding


class Docker(BackendKind):
    """Containers on this machine; the only backend whose code talks to a Docker engine during a run."""

    name: ClassVar[str] = "docker"
    node: ClassVar[str] = "a container"
    Settings: ClassVar[type[Containers]] = Containers
    settings_key: ClassVar[str] = "containers"
    options: ClassVar[Mapping[str, SettingOption]] = {
        "image": SettingOption("--image", "IMAGE", "With docker: image of the containers. Default: mecefo-chaos."),
        "cpus": SettingOption("--node-cpus", "CORES", "With docker: CPU limit of each node.", "number"),
        "memory": SettingOption("--node-memory", "BYTES", "With docker: memory limit of each node, such as 2GiB."),
    }
    # Experiments have had them since the first version, whatever their backend, and their hashes depend on them.
    settings_are_always_written: ClassVar[bool] = True
    has_own_networks: ClassVar[bool] = True
    has_own_files: ClassVar[bool] = True
    node_memory_key: ClassVar[str] = "containers.memory"

    def findings(self, settings: Any) -> Iterator[Finding]:
        """SDK, engine, image, networks."""
        from harness.backends.docker.examination import docker_findings

        return docker_findings(settings.image)

    def require(self, experiment: Experiment, stream: TextIO) -> str:
        """Check the engine and the image."""
        from harness.backends.docker.backend import require_image
        from harness.live.working import Working

        image: str = experiment.node_settings.image
        with Working(f"checking the image {image}", stream):
            return require_image(image)

    def backend(self, run: BackendSetup) -> Backend:
        """Containers that may write to the folders of the run and of the job."""
        from harness.backends.command.on_nodes import folder_of
        from harness.backends.docker.backend import DockerNodes
        from harness.backends.docker.settings import container_spec, with_whole_paths
        from harness.backends.nodes import JobsOnNodes, loaded_for

        assert run.engine is not None
        if isinstance(run.job, CommandConfig):
            folders, loaded = [run.folder.resolve(), folder_of(run.job)], loaded_for(run.job)
        else:
            folders = [one.resolve() for one in (run.folder, *checkpoint_folders(run.job))]
            loaded = loaded_for(with_whole_paths(run.job), has_metrics=bool(run.ranks_metrics))
        spec = container_spec(run.settings, run.job, folders, has_links=run.has_links)
        nodes = DockerNodes(run.control, run.logs, run.emitter, spec, run.engine, loaded)
        return JobsOnNodes.of(run, nodes)
