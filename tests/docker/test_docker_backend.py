"""The same experiments in containers: nodes that are hosts, links among them, and nothing left in the engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from harness.backends.docker.image import DEFAULT_IMAGE
from mecefo_runtime.system.events import Event
from tests.docker.engine import (
    SLOW_UNTIL_BACK_IN_CONTAINERS,
    SlowEngine,
    assert_gone,
    container_of,
    network_of,
    parts,
    remove_network,
    run_of,
)
from tests.integration.runs import (
    RUN_TIMEOUT_SECONDS,
    SMALL,
    WAIT_TIMEOUT_SECONDS,
    ChaosRun,
    Finished,
    assert_nothing_left,
    assert_sound,
    assert_survived,
    environment_of_run,
    read_log,
    read_run,
    run_chaos,
)
from tests.integration.test_backends import LOSS, assert_a_node_was_lost_and_came_back

pytestmark = pytest.mark.docker

DOCKER = (*SMALL, "--backend", "docker", "--image", os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE))
AT = ("--at", "step=10")
LONG = (*AT, "--steps", "100000", *DOCKER)
# What is asked of the tool: after its death nothing of it is there.
CLEAN_WITHIN_SECONDS = 120.0


@pytest.mark.nightly
def test_it_keeps_what_every_backend_keeps(tmp_path):
    # Dilated: the steps must last longer than a container takes to start.
    assert_a_node_was_lost_and_came_back(run_chaos(tmp_path, *LOSS, *DOCKER, "--dilation", "8"))


def test_a_node_that_is_killed_is_a_container_that_ends_and_comes_back(tmp_path):
    kill = ("kill-node", *AT, "--on", "node=1", "--repair", "1steps", "--steps", "45")
    run = run_chaos(tmp_path, *kill, *DOCKER, patch=SLOW_UNTIL_BACK_IN_CONTAINERS)
    assert_survived(run, 45, at=10)
    killed = {(process["role"], process["node"]) for process in run.one("injected").fields["processes"]}
    assert killed == {("supervisor", 1), ("rank", 1), ("container", 1)}
    containers = [
        event.fields["container"] for event in run.of("process_started") if event.fields["role"] == "container"
    ]
    assert sorted(containers) == ["coordinator", "node-0", "node-1", "node-1"]
    # Whoever waits for them sees them come up, and the repaired one again.
    told = re.findall(r"  (starting 2 nodes|node \d is up[,:])", run.stderr)
    assert sorted(told) == ["node 0 is up,", "node 1 is up,", "node 1 is up:", "starting 2 nodes"]
    # Pids are those of this machine: inside, every container counts from 1.
    assert min(event.fields["started_pid"] for event in run.of("process_started")) > 100
    assert {event.pid for event in run.events if event.rank == 0} == {
        event.fields["started_pid"] for event in run.of("process_started") if event.fields.get("started_rank") == 0
    }
    assert_gone_after(run)


def test_containers_have_no_rights_and_their_limits_and_one_that_is_removed_by_hand_is_a_lost_node(tmp_path):
    never, limits = ("--at", "step=99999", "--steps", "100000"), ("--node-cpus", "1.5", "--node-memory", "1GiB")
    with ChaosRun(tmp_path, ["run", "kill-node", *never, *DOCKER, *limits]) as run:
        run.wait_for("step_committed", step=2)
        name = run_of(tmp_path / "state")
        settings = container_of(name, "node-0").attrs
        # Two streams would come in any order.
        look = "exec 2>&1; id -u; grep CapBnd /proc/1/status; ls /var/run/docker.sock; touch /x"
        inside = container_of(name, "node-0").exec_run(["sh", "-c", look])
        has_way_out = not network_of(name).attrs["Internal"]
        container_of(name, "node-1").remove(force=True)
        # One after the other where the kernel takes its time to end them.
        run.wait_for("regrouped", reason="loss", members=[0, 1])
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 2
    losses = read_run(run.folder, 2, run.stderr).summary["unplanned_losses"]
    assert sorted(rank for loss in losses for rank in loss["ranks"]) == [2, 3]
    host = settings["HostConfig"]
    assert (host["Privileged"], host["ReadonlyRootfs"], host["CapDrop"], host["CapAdd"]) == (False, True, ["ALL"], None)
    assert (host["Memory"], host["CpuQuota"] / host["CpuPeriod"]) == (1 << 30, 1.5)
    assert host["PidMode"] != "host" and host["NetworkMode"] != "host"
    user, capabilities, socket, touched = inside.output.decode().splitlines()
    assert user == str(os.geteuid())
    assert int(capabilities.split()[1], 16) == 0
    assert "No such file" in socket and "Read-only" in touched and not has_way_out
    assert_gone(name, CLEAN_WITHIN_SECONDS)


def test_a_link_that_is_cut_between_two_nodes(tmp_path):
    drop = ("drop-link", *AT, "--on", "link=1-2", "--for", "3steps", "--steps", "35")
    run = run_chaos(tmp_path, *drop, *DOCKER, patch=SLOW_UNTIL_BACK_IN_CONTAINERS)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 35)
    detected = run.of("detected")
    # Of who is kept waiting for seconds by a busy machine, the heartbeats are missed too.
    assert "peers" in {event.fields["how"] for event in detected}
    back = {rank for event in run.of("rejoined") for rank in event.fields["ranks"]}
    assert back == {rank for event in detected for rank in event.fields["lost"]}
    assert run.one("undone").fields["evidence"]["rules"], "rules were removed one by one"
    assert_gone_after(run)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "fault",
    [("drop-link", "--on", "link=0-2", "--for", "600s"), ("pause-node", "--on", "node=1", "--for", "600s")],
    ids=lambda fault: fault[0],
)
def test_killed_in_the_middle_nothing_is_left(tmp_path, fault):
    with ChaosRun(tmp_path, ["run", *fault, *LONG]) as run:
        run.wait_for("verified")
        name = run_of(tmp_path / "state")
        assert parts(name)["containers"] and parts(name)["networks"]
        run.process.kill()
        run.wait()
        assert_gone(name, CLEAN_WITHIN_SECONDS)
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"), CLEAN_WITHIN_SECONDS)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_while_the_engine_makes_containers_nothing_is_left(tmp_path, monkeypatch, number):
    with SlowEngine(tmp_path, 3.5) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        with ChaosRun(tmp_path, ["run", "kill-node", *LONG]) as run:
            assert engine.asked.wait(WAIT_TIMEOUT_SECONDS), run.stderr
            name = run_of(tmp_path / "state")
            run.process.send_signal(number)
            run.wait()
            # Nobody is there any more who could ask for anything or remove it, and all that was asked for is made.
            assert_nothing_left(run, timeout_seconds=CLEAN_WITHIN_SECONDS)
            engine.join(CLEAN_WITHIN_SECONDS)
            assert not any(parts(name).values())


@pytest.mark.nightly
def test_killed_with_its_watchdog_heal_removes_what_is_left(tmp_path):
    with ChaosRun(tmp_path, ["run", "pause-node", "--on", "node=1", "--for", "600s", *LONG]) as run:
        run.wait_for("verified")
        name = run_of(tmp_path / "state")
        (entry,) = (tmp_path / "state").glob("*.json")
        watchdog = json.loads(entry.read_text())["watchdog"][0]
        os.kill(run.process.pid, signal.SIGSTOP)
        os.kill(watchdog, signal.SIGKILL)
        run.process.kill()
        run.wait()
        assert parts(name)["networks"], "nobody was there to remove it"
        code, _, told = chaos(run, "run", "kill-node", *LONG)
        assert (code, "`chaos heal`" in told, f"network mecefo-chaos-{name}" in told) == (6, True, True), told
        code, out, _ = chaos(run, "heal")
        assert (code, f"removed: network mecefo-chaos-{name}" in out) == (0, True), out
        assert_gone(name, 1.0)


def test_a_network_that_is_removed_by_hand_is_named(tmp_path):
    two_ranks = ("--nodes", "2", "--gpus-per-node", "1", *DOCKER[DOCKER.index("--dilation") :])
    with ChaosRun(tmp_path, ["run", "kill-node", "--at", "step=99999", "--steps", "100000", *two_ranks]) as run:
        run.wait_for("step_committed")
        name = run_of(tmp_path / "state")
        remove_network(name)
        assert run.wait() == 3
    assert f"the run's network mecefo-chaos-{name} is gone: it was removed" in " ".join(run.stdout.split())
    assert_gone(name, 0.0)


def test_without_an_image_it_is_refused_and_nothing_is_made(tmp_path):
    with ChaosRun(tmp_path, ["run", "kill-node", *LONG, "--image", "there-is-none"]) as run:
        assert run.wait() == 3
    assert "no image there-is-none" in run.stderr and "docker/build" in run.stderr
    assert not list(run.out.glob("*/*"))


def took_seconds(step: Event) -> float:
    """How long a committed step took."""
    return float(step.fields["committed_monotonic"] - step.fields["began_monotonic"])


def name_of(run: ChaosRun | Finished) -> str:
    """The name of an ended run, as its ledger has it."""
    return json.loads((run.folder / "ledger.jsonl").read_text().splitlines()[0])["run"]


def assert_gone_after(run: Finished) -> None:
    """That an ended run left nothing in the engine."""
    assert_gone(name_of(run), 0.0)


def chaos(run: ChaosRun, *arguments: str) -> tuple[int, str, str]:
    """Another `chaos` command of the same user on the same OUT: (exit code, standard output, standard error)."""
    done = subprocess.run(
        [sys.executable, "-m", "mecefo_chaos", *arguments, "--out", str(run.out)],
        env=environment_of_run(run.mark, run.out.parent),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
