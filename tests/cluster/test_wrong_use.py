"""Hosts that cannot be used: each is said in a line, whose exit code is that of the environment."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.cluster.chaos_runs import Allocation, assert_nothing_left
from tests.cluster.hosts import Hosts
from tests.cluster.slurm import Slurm
from tests.cluster.ssh import Ssh

pytestmark = pytest.mark.cluster

NUM_HOSTS = 2
ENVIRONMENT, USAGE = 3, 4


@contextmanager
def key_is_refused(hosts: Ssh) -> Iterator[None]:
    keys = hosts.folder / "authorized_keys.alice"
    known = keys.read_text()
    keys.write_text("")
    try:
        yield
    finally:
        keys.write_text(known)


@contextmanager
def not_installed(hosts: Ssh) -> Iterator[None]:
    """The environment of this Python is not on the second host."""
    hosts.run(2, "mount", "-t", "tmpfs", "tmpfs", sys.prefix)
    try:
        yield
    finally:
        hosts.run(2, "umount", sys.prefix)


@contextmanager
def of_another_version(hosts: Ssh) -> Iterator[None]:
    """What is installed on the second host calls itself 9.9."""
    known = importlib.metadata.distribution("mecefo-chaos").locate_file(_metadata())
    fake = hosts.folder / "METADATA"
    fake.write_text(re.sub(r"(?m)^Version: .*", "Version: 9.9", Path(str(known)).read_text()))
    hosts.run(2, "mount", "--bind", str(fake), str(known))
    try:
        yield
    finally:
        hosts.run(2, "umount", str(known))


def _metadata() -> str:
    files = importlib.metadata.files("mecefo-chaos") or []
    return next(str(one) for one in files if one.name == "METADATA")


@contextmanager
def as_it_is(hosts: Ssh) -> Iterator[None]:
    yield


def refused(hosts: Hosts, *arguments: str, node: int = 0, env: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit code, standard output and error, on one line) of a run that does not begin."""
    done = hosts.chaos(node, "run", "none", *arguments, "--", "true", cwd=hosts.home(), env=env)
    assert "Traceback" not in done.stderr and "Unknown child process" not in done.stderr, done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("circumstance", "names", "said"),
    [
        (as_it_is, "node1,nowhere", "nowhere: the agent cannot be started: ssh: Could not resolve hostname nowhere"),
        (key_is_refused, "node1,node2", "alice@node1: Permission denied"),
        (not_installed, "node1,node2", "node2: the agent cannot be started: env: "),
        (of_another_version, "node1,node2", "node2: version 9.9 of mecefo-chaos is installed there, and this is"),
    ],
    ids=["unknown", "key", "not-installed", "version"],
)
def test_a_host_that_cannot_be_used(
    ssh_hosts: Ssh, circumstance: Callable[[Ssh], AbstractContextManager[None]], names: str, said: str
) -> None:
    with circumstance(ssh_hosts):
        exit_code, text = refused(ssh_hosts, "--hosts", names)
    assert (exit_code, said in text) == (ENVIRONMENT, True), text
    assert_nothing_left(ssh_hosts)


def test_hosts_that_are_none(ssh_hosts: Ssh) -> None:
    for names, said in (("node1,node1", "node1 is named twice"), ("-oProxyCommand=x", "is not a host")):
        exit_code, text = refused(ssh_hosts, "--hosts", names)
        assert (exit_code, said in text) == (USAGE, True), text


def test_an_allocation_that_there_is_not(slurm: Slurm) -> None:
    exit_code, text = refused(slurm, "--backend", "slurm")
    assert (exit_code, "$SLURM_JOB_ID is not set" in text) == (ENVIRONMENT, True), text
    with Allocation(slurm) as allocation:
        pass
    exit_code, text = refused(slurm, node=1, env=allocation.environment)
    assert (exit_code, f"job {allocation.job}" in text) == (ENVIRONMENT, True), text
    assert_nothing_left(slurm)
