"""Somebody else's command in containers: the same experiments as on this machine, and nothing left in the engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from harness.backends.docker.image import DEFAULT_IMAGE
from tests.docker.engine import assert_gone, container_of, parts, run_of
from tests.integration.runs import ChaosRun, Finished, read_run, run_chaos

pytestmark = pytest.mark.docker

HERE = Path(__file__).resolve().parents[1] / "integration"
DOCKER = ("--backend", "docker", "--image", os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE))
TWO_NODES = ("--nodes", "2", "--gpus-per-node", "1", *DOCKER)
FOLLOWER = ("python", "follower.py")
# Torch is imported by each launcher and each rank, twice.
TORCHRUN_SECONDS = 600.0
CLEAN_WITHIN_SECONDS = 120.0


@pytest.fixture
def folder(tmp_path):
    """The folder of somebody's scripts, in which `chaos` is called."""
    for name in ("follower.py", "external_training.py"):
        shutil.copy(HERE / name, tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_a_script_that_is_started_again_goes_on_from_its_own_file(folder):
    loop = 'for attempt in 1 2 3; do "$@" && exit 0; done; exit 1'
    command = ("sh", "-c", loop, "sh", *FOLLOWER, "30", "--resume-from", "step")
    run = run_chaos(folder, "kill-process", "--at", "step=13", *DOCKER, command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (run.summary["attempts"], incident["attempt"], incident["recovery_attempt"]) == (2, 1, 2)
    assert (run.summary["steps_committed"], run.summary["steps_repeated"]) == (30, 2)
    # Pids are those of this machine: inside, every container counts from 1.
    started = {event.fields["started_pid"] for event in run.of("process_started")}
    assert min(started) > 100
    assert {process["pid"] for process in run.one("verified").fields["evidence"]["processes"]} <= started
    # The command's folder is the caller's, and so is what it writes there.
    assert (folder / "step").read_text() == "30"
    assert (folder / "step").stat().st_uid == os.geteuid()
    assert (run.folder / "logs" / "job.log").read_text().splitlines()[-1] == "all steps done"
    assert_gone(name_of(run), 0.0)


@pytest.mark.nightly
def test_a_node_that_is_killed_takes_its_launcher_with_it_and_the_others_go_on(folder):
    command = ("sh", "-c", "python follower.py 60; exit $?")
    run = run_chaos(folder, "kill-node", "--at", "step=13", "--on", "node=1", *TWO_NODES, command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    injected = run.one("injected")
    killed = {(process["role"], process["node"]) for process in injected.fields["processes"]}
    assert killed == {("launcher", 1), ("rank", 1), ("container", 1)}
    exits = {event.fields["exited_pid"]: event.fields["exit"] for event in run.of("process_exited")}
    (launcher,) = (one["pid"] for one in injected.fields["processes"] if one["role"] == "launcher")
    assert exits[launcher] == -9
    logs = [run.folder / "logs" / f"job-node-{node}.log" for node in (0, 1)]
    assert [log.read_text() for log in logs] == ["all steps done\n", ""]
    assert_gone(name_of(run), 0.0)


@pytest.mark.nightly
def test_a_link_between_two_nodes_is_cut_and_joined_again(folder):
    link = ("drop-link", "--on", "link=0-1", "--for", "2s", "--at", "step=10")
    run = run_chaos(folder, *link, *TWO_NODES, command=(*FOLLOWER, "400"))
    assert run.exit_code == 0, run.summary["reasons"]
    (seen,) = run.one("verified").fields["evidence"]["links"]
    assert seen["link"] == [0, 1] and seen["summary"].startswith("0 of 5 probes come back")
    assert run.one("undone").fields["evidence"]["rules"]
    assert_gone(name_of(run), 0.0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ("sh", "-c", "echo the corpus; echo is not there; exit 7"),
            "exit code 7; the last lines of logs/job.log: the",
        ),
        pytest.param(
            ("no-such-program",),
            "the command 'no-such-program' cannot be started in the container: No such file",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["fails", "is not in the image"],
)
def test_a_command_that_fails_says_its_last_words(folder, command, said):
    run = run_chaos(folder, "kill-process", "--at", "step=8", *DOCKER, command=command)
    assert (run.exit_code, run.summary["verdict"]) == (3, "error")
    assert said in run.summary["reasons"][0]


@pytest.mark.nightly
def test_an_interrupt_ends_what_takes_no_sigterm(folder, monkeypatch):
    options = ["run", "kill-process", "--at", "step=80000", *TWO_NODES]
    # The runs' folder is said from where `chaos` is called, and containers begin elsewhere and have no way there.
    monkeypatch.chdir(folder)
    with ChaosRun(
        folder, options, out=Path("..", folder.name, "out"), command=(*FOLLOWER, "100000", "--stubborn")
    ) as run:
        run.wait_for("step_committed", step=3)
        name = run_of(folder / "state")
        settings = container_of(name, "node-1").attrs
        # The engine takes seconds longer to remove a container that has asked for a name outside.
        resolved = container_of(name, "node-1").exec_run(["getent", "ahostsv4", "pypi.org"]).output
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 2
        (residue,) = read_run(run.folder, 2).of("residue")
    assert residue.fields["processes"] == [] and residue.fields["left"] == []
    assert resolved == b""
    host = settings["HostConfig"]
    assert (host["Privileged"], host["ReadonlyRootfs"], host["CapDrop"], host["CapAdd"]) == (False, True, ["ALL"], None)
    writable = {mount["Destination"] for mount in settings["Mounts"] if mount["RW"]}
    assert writable == {str(folder), "/run/mecefo-chaos"}
    assert_gone(name, CLEAN_WITHIN_SECONDS)


def test_killed_in_the_middle_nothing_is_left(folder):
    options = ["run", "drop-link", "--on", "link=0-1", "--for", "600s", "--at", "step=10", *TWO_NODES]
    with ChaosRun(folder, options, command=(*FOLLOWER, "100000")) as run:
        run.wait_for("verified")
        name = run_of(folder / "state")
        assert parts(name)["containers"] and parts(name)["networks"]
        run.process.kill()
        run.wait()
        assert_gone(name, CLEAN_WITHIN_SECONDS)


def test_torchrun_finds_the_other_nodes_and_starts_their_ranks_again(folder):
    command = ("torchrun", "--max-restarts", "2", "external_training.py", "25", "checkpoint")
    options = ["run", "kill-process", "--at", "step=13", "--on", "rank=1", *TWO_NODES]
    with ChaosRun(folder, options, command=command) as chaos:
        code = chaos.wait(TORCHRUN_SECONDS)
        run = read_run(chaos.folder, code, chaos.stderr)
    assert run.exit_code == 0, run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["recovered"], run.summary["steps_committed"]) == (True, 25)
    assert [event.fields["world_size"] for event in run.of("attempt_started")][:2] == [2, 2]
    # It blames by the pid that the rank has in its container.
    assert run.of("culprit_named")[0].fields["ranks"] == [1]
    assert {event.rank: event.node for event in run.of("rank_started")} == {0: 0, 1: 1}
    assert not [event for event in run.of("warning") if "plan counted" in event.fields["message"]]


def name_of(run: Finished) -> str:
    """The name of an ended run, as its ledger has it."""
    return json.loads((run.folder / "ledger.jsonl").read_text().splitlines()[0])["run"]
