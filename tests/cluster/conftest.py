"""The clusters of a file's tests: each is started once, and again where a test did not leave it as it was."""

from __future__ import annotations

import compileall
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Generic, TypeVar

import pytest

from tests.cluster import slurm as slurm_module
from tests.cluster import ssh as ssh_module
from tests.cluster.folders import cluster_folder
from tests.cluster.hosts import ROOT, Hosts, why_no_hosts
from tests.cluster.slurm import Slurm
from tests.cluster.ssh import Ssh
from tests.sources import PACKAGES

# What a user's .bashrc says before every command that comes by ssh.
GREETING = "welcome"
# By how many seconds the hosts' clocks differ from that of the first one.
CLOCK = {2: 3, 3: -3}


Kind = TypeVar("Kind", bound=Hosts)


class Keeper(Generic[Kind]):
    """A cluster that is there when it is asked for, in the state of a new one."""

    def __init__(self, start: Callable[[ExitStack], Kind]) -> None:
        self._start, self._stack = start, ExitStack()
        self._cluster: Kind | None = None

    def get(self) -> Kind:
        """The cluster; a new one where hosts are down, or something was left on one."""
        if self._cluster is not None and not _is_as_new(self._cluster):
            self.close()
        if self._cluster is None:
            self._cluster = self._start(self._stack)
        return self._cluster

    def close(self) -> None:
        """End it."""
        self._cluster = None
        self._stack.close()


def _is_as_new(cluster: Hosts) -> bool:
    if not all(cluster.is_up(node) for node in (0, *cluster.nodes)) or cluster.all_leftovers():
        return False
    return not isinstance(cluster, Slurm) or cluster.is_idle()


@pytest.fixture(scope="session")
def compiled() -> None:
    """What the users of the hosts import: they may not write beside the sources, and each would compile it anew."""
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2)


@pytest.fixture(scope="module")
def slurm_keeper(request: pytest.FixtureRequest, compiled: None) -> Iterator[Keeper[Slurm]]:
    """Keeps the Slurm cluster of a file, which has NUM_HOSTS hosts, with memory and GPUs of which a job takes all."""
    if (reason := why_no_hosts(slurm_module.PROGRAMS, slurm_module.PACKAGES)) is not None:
        pytest.skip(f"no Slurm here: {reason}")
    num_hosts = getattr(request.module, "NUM_HOSTS", 4)

    def start(stack: ExitStack) -> Slurm:
        folder = stack.enter_context(cluster_folder()) / "slurm"
        return stack.enter_context(Slurm(folder, num_hosts, clock=CLOCK, memory_megabytes=2000, gpus=1))

    keeper = Keeper(start)
    yield keeper
    keeper.close()


@pytest.fixture(scope="module")
def ssh_keeper(request: pytest.FixtureRequest, compiled: None) -> Iterator[Keeper[Ssh]]:
    """Keeps the hosts of a file that are reached by ssh."""
    if (reason := why_no_hosts(ssh_module.PROGRAMS, ssh_module.PACKAGES)) is not None:
        pytest.skip(f"no hosts by ssh here: {reason}")

    num_hosts = getattr(request.module, "NUM_HOSTS", 4)

    def start(stack: ExitStack) -> Ssh:
        return stack.enter_context(Ssh(stack.enter_context(cluster_folder()) / "ssh", num_hosts, greeting=GREETING))

    keeper = Keeper(start)
    yield keeper
    keeper.close()


@pytest.fixture
def slurm(slurm_keeper: Keeper[Slurm]) -> Slurm:
    """Idle hosts with Slurm, on which nothing is."""
    return slurm_keeper.get()


@pytest.fixture
def ssh_hosts(ssh_keeper: Keeper[Ssh]) -> Ssh:
    """Hosts that are reached by ssh, on which nothing is."""
    return ssh_keeper.get()
