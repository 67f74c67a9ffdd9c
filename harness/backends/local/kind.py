"""The description of the local backend: nodes are process groups on this machine."""

from __future__ import annotations

from typing import ClassVar

from chaos.experiment.command_job import CommandConfig
from harness.backends.base import Backend, BackendKind, BackendSetup


class Local(BackendKind):
    """Process groups on this machine; needs neither root nor Docker."""

    name: ClassVar[str] = "local"
    node: ClassVar[str] = "a process group on this machine"
    divides_network: ClassVar[bool] = True
    starts_command_on_each_node: ClassVar[bool] = False

    def backend(self, run: BackendSetup) -> Backend:
        """The command itself starts what its nodes are; all others are started by a fork server."""
        from harness.backends.command.backend import CommandBackend
        from harness.backends.local.backend import LocalNodes
        from harness.backends.nodes import JobsOnNodes, loaded_for

        networked = run.job.cluster() if run.has_links else None
        if isinstance(run.job, CommandConfig):
            return CommandBackend(run.control, run.logs, run.emitter, networked)
        loaded = loaded_for(run.job, has_metrics=bool(run.ranks_metrics) and networked is None)
        return JobsOnNodes.of(run, LocalNodes(run.logs, loaded, networked))
