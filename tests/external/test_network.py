"""The networks of somebody else's ranks: into which of them a rank moves, and what its environment says then."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from chaos.host import join_network as network
from chaos.host.join_network import HOLDER_VARIABLE, NCCL_LOG_VARIABLE, NETWORKS_VARIABLE, move
from harness.backends.command.start import SITE_FOLDER

pytestmark = pytest.mark.unit

ADDRESSES = {"coordinator": "10.77.0.1", "node-0": "10.77.1.1", "rank-0": "10.77.84.1", "rank-1": "10.77.84.2"}


@pytest.fixture
def entered(monkeypatch):
    """The files that were entered."""
    seen = []
    monkeypatch.setattr(network, "enter_namespace", lambda descriptor, kind: seen.append(os.fstat(descriptor).st_ino))
    return seen


@pytest.fixture
def job(tmp_path):
    """The environment of a rank, its network a file that we hold."""
    with (tmp_path / "network").open("w") as held:
        told = {name: [held.fileno(), address] for name, address in ADDRESSES.items()}
        yield {NETWORKS_VARIABLE: json.dumps(told), HOLDER_VARIABLE: str(os.getpid()), "MASTER_ADDR": "localhost"}


def inode(tmp_path):
    return (tmp_path / "network").stat().st_ino


def test_a_rank_moves_and_finds_the_store_where_it_is(tmp_path, job, entered):
    for store, address in (("True", "10.77.0.1"), ("False", "10.77.84.1")):
        environment = {**job, "RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": store}
        assert move(environment)
        assert environment["MASTER_ADDR"] == address
        assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "eth0"
        assert "NCCL_DEBUG" not in environment
    assert entered == [inode(tmp_path)] * 2


def test_nccl_is_made_to_say_which_way_it_takes_into_a_file_of_the_rank(job, entered):
    environment = {**job, "RANK": "1", NCCL_LOG_VARIABLE: "/run/logs/nccl-{rank}.log", "NCCL_DEBUG": "WARN"}
    assert move(environment)
    assert (environment["NCCL_DEBUG"], environment["NCCL_DEBUG_FILE"]) == ("INFO", "/run/logs/nccl-1.log")


def test_nccl_is_asked_in_a_network_that_was_not_made_for_the_rank_too(entered):
    environment = {"RANK": "3", NCCL_LOG_VARIABLE: "/run/logs/nccl-{rank}.log"}
    assert not move(environment)
    assert environment["NCCL_DEBUG_FILE"] == "/run/logs/nccl-3.log" and entered == []


@pytest.mark.parametrize("own", [{}, {"RANK": ""}, {"RANK": "7"}, {"RANK": "one"}])
def test_what_is_no_rank_of_the_job_stays_where_it_is(job, entered, own):
    environment = {**job, **own}
    assert not move(environment)
    assert environment == {**job, **own}
    assert entered == []


def test_a_network_that_cannot_be_entered_is_an_error_that_the_script_survives(job):
    environment = {**job, "RANK": "0"}
    # The file that is held is no network.
    with pytest.raises(OSError, match="cannot enter the namespace"):
        move(environment)
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['MASTER_ADDR'])"],
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": str(SITE_FOLDER),
            "CHAOS_AGENT": "nowhere:1",
            "CHAOS_RUN": "none",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "localhost\n"
    assert "chaos: this process has no network of its own: OSError" in done.stderr
