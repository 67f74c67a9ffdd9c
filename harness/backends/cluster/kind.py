"""The descriptions of the cluster backends: nodes are the hosts of a Slurm allocation, or hosts reached by ssh."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TextIO

from chaos.errors import EnvironmentFailure, UsageError
from chaos.experiment.backends import SettingOption
from chaos.experiment.command_job import CommandConfig
from chaos.experiment.experiment import Experiment
from harness.backends.base import Backend, BackendKind, BackendSetup
from harness.backends.cluster.settings import RemoteHosts, hosts_of
from harness.backends.cluster.slurm import JOB_VARIABLE, NUM_HOSTS_VARIABLE, Slurm
from harness.doctor.finding import Finding

_TASKS_VARIABLES = ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS")


class _OverHosts(BackendKind):
    """What both have in common: a command of the user's, on hosts with agents."""

    spans_hosts: ClassVar[bool] = True
    links_are_connections: ClassVar[bool] = True

    def require(self, experiment: Experiment, stream: TextIO) -> str | None:
        """See `BackendKind`."""
        if not experiment.job.traits.is_user_script:
            raise EnvironmentFailure(
                f"--backend {self.name} runs a command of your own over its {self.nodes}; the built-in job runs on one "
                "machine: add -- COMMAND, or choose --backend local"
            )
        return None


class SlurmHosts(_OverHosts):
    """The hosts of the allocation in which `chaos` runs; the command starts its ranks on them by itself."""

    name: ClassVar[str] = "slurm"
    node: ClassVar[str] = "a Slurm host"
    # It starts its nodes itself, by srun, and can be started again.
    starts_command_on_each_node: ClassVar[bool] = False

    def is_implied(self, settings: Mapping[str, Any]) -> bool:
        """See `BackendDescription`: within an allocation of several hosts."""
        return bool(os.environ.get(JOB_VARIABLE)) and (_number(NUM_HOSTS_VARIABLE) or 1) > 1

    def shape(self, settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """See `BackendDescription`: as the allocation was asked for."""
        nodes = _number(NUM_HOSTS_VARIABLE)
        per_node, total = (_number(name) for name in _TASKS_VARIABLES)
        if per_node is None and total is not None and nodes is not None:
            per_node = max(1, total // nodes)
        return nodes, per_node

    def require(self, experiment: Experiment, stream: TextIO) -> str | None:
        """See `BackendKind`: an allocation."""
        super().require(experiment, stream)
        Slurm()
        return None

    def findings(self, settings: Any) -> Iterator[Finding]:
        """See `BackendKind`."""
        return iter(())

    def backend(self, run: BackendSetup) -> Backend:
        """The command here, and an agent on each host."""
        from harness.backends.cluster.backend import ClusterBackend
        from harness.backends.cluster.hosts import HostsOfRun

        assert isinstance(run.job, CommandConfig)
        return ClusterBackend(run, HostsOfRun(Slurm(), run))


class SshHosts(_OverHosts):
    """Hosts that are reached by ssh; the command is started on each of them."""

    name: ClassVar[str] = "ssh"
    node: ClassVar[str] = "an ssh host"
    Settings: ClassVar[type[RemoteHosts]] = RemoteHosts
    settings_key: ClassVar[str] = "ssh"
    options: ClassVar[Mapping[str, SettingOption]] = MappingProxyType(
        {"hosts": SettingOption("--hosts", "HOSTS|FILE", "Hosts reached by ssh, as a,b,c or a file: start it on each.")}
    )

    def is_implied(self, settings: Mapping[str, Any]) -> bool:
        """See `BackendDescription`: hosts are named."""
        return "hosts" in settings

    def shape(self, settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """See `BackendDescription`."""
        return (len(hosts_of(settings["hosts"])), None) if "hosts" in settings else (None, None)

    def require(self, experiment: Experiment, stream: TextIO) -> str | None:
        """See `BackendKind`: hosts, one for each node."""
        super().require(experiment, stream)
        hosts, nodes = experiment.node_settings.hosts, experiment.cluster().nodes
        if hosts is None:
            raise UsageError("--backend ssh needs hosts: name them with --hosts")
        if len(hosts) != nodes:
            raise UsageError(f"{nodes} nodes are on {len(hosts)} hosts: each host is one node; leave --nodes out")
        return None

    def backend(self, run: BackendSetup) -> Backend:
        """An agent on each host, which starts the command there."""
        from harness.backends.cluster.hosts import HostsOfRun
        from harness.backends.cluster.on_each_host import HostNodes, JobsOnHosts
        from harness.backends.cluster.ssh import Ssh

        nodes = HostNodes(HostsOfRun(Ssh(run.settings.hosts), run), run.logs)
        return JobsOnHosts.of(run, nodes)


def _number(variable: str) -> int | None:
    """A number in the environment; `4(x2)`, as Slurm writes some, is 4."""
    found = re.match(r"[1-9][0-9]{0,5}", os.environ.get(variable, ""))
    return None if found is None else int(found[0])
