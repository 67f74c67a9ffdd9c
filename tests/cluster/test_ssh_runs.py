"""Runs over hosts that are reached by ssh: the command is started once on each of them."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.chaos_runs import JOBS, ClusterRun, assert_nothing_left, await_gone, new_folder
from tests.cluster.ssh import Ssh

pytestmark = pytest.mark.cluster

NUM_HOSTS = 2
HOSTS = ("--hosts", "node1,node2")


def script(hosts: Ssh, steps: int) -> list[str]:
    """A script without a launcher, whose ranks are the nodes."""
    return [sys.executable, str(JOBS / "ddp.py"), str(steps), str(new_folder(hosts))]


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_rank_is_killed_and_comes_back(ssh_hosts: Ssh, node: int) -> None:
    """`chaos` is on the login node, or on the first of the hosts."""
    command = ["torchrun", "--max-restarts", "2", str(JOBS / "fsdp2.py"), "20", str(new_folder(ssh_hosts))]
    with ClusterRun(
        ssh_hosts, "kill-process", "--at", "step=8", "--on", "rank=1", *HOSTS, command=command, node=node
    ) as chaos:
        run = chaos.wait()
        assert_nothing_left(ssh_hosts)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["recovered"] and incident["recovery_attempt"] == 2
    own = {0: [], 1: ["node1"]}[node]
    assert sorted(one.fields["reached"][0] for one in run.of("host_reached")) == sorted({"node1", "node2"} - {*own})
    logs = [(run.folder / f"logs/job-node-{number}.log").read_text() for number in (0, 1)]
    # Rank 0 prints, and only it.
    assert ["step 20 loss" in log for log in logs] == [True, False]
    assert len([event for event in run.of("process_started") if event.fields["role"] == "launcher"]) == 2


@pytest.mark.nightly
def test_nothing_is_left_of_a_tool_that_was_killed(ssh_hosts: Ssh) -> None:
    with ClusterRun(ssh_hosts, "none", *HOSTS, command=script(ssh_hosts, 600)) as chaos:
        chaos.wait_for_step(3)
        chaos.kill_chaos()
        for node in ssh_hosts.nodes:
            await_gone(ssh_hosts, node, "ddp.py", "harness.node", "chaos.undo.watchdog")
        healed = ssh_hosts.chaos(1, "heal")
        assert healed.returncode == 0, healed.stdout + healed.stderr
        assert_nothing_left(ssh_hosts)


@pytest.mark.nightly
def test_a_host_that_does_not_come_back_is_residue_until_it_was_healed(ssh_hosts: Ssh) -> None:
    with ClusterRun(ssh_hosts, "none", *HOSTS, command=script(ssh_hosts, 600), env={"TIMEOUT": "2"}) as chaos:
        chaos.crash_at(2, 3)
        run = chaos.wait()
    assert (run.exit_code, run.summary["verdict"]) == (6, "dirty"), run.summary["reasons"]
    (left,) = run.of("residue")[0].fields["left"]
    assert left["kind"] == "host" and "node2" in left["what"] and f"chaos heal {run.folder.resolve()}" in left["what"]
    assert ssh_hosts.chaos(1, "heal", str(run.folder)).returncode == 6
    ssh_hosts.boot(2)
    healed = ssh_hosts.chaos(1, "heal", str(run.folder))
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert_nothing_left(ssh_hosts)
