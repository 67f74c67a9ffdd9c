"""Launchers within shell scripts: what a fault on one ends, and agents that join."""

import sys

import pytest

from tests.integration.runs import ChaosRun, read_run
from tests.integration.test_external import TORCHRUN, TRAINING

pytestmark = pytest.mark.nightly

# Two agents of one rank each; the second one comes when there is a file `go`.
TWO_AGENTS = """
"$@" & first=$!
while [ ! -e "$0" ]; do sleep 0.05; done
"$@" & second=$!
wait $first && wait $second
"""
PORT = 29_683


def agents(tmp_path):
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{PORT}", "--rdzv-id", "two")
    conf = ("--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1")
    script = (TRAINING, "400", str(tmp_path / "checkpoint.pt"))
    # Without it ranks of torch 2.13 look for the address of the start before.
    setting = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    return ("env", setting, "bash", "-c", TWO_AGENTS, str(tmp_path / "go"), *torchrun, *rendezvous, *conf, *script)


def test_an_agent_that_joins_begins_an_attempt_and_is_no_loss(tmp_path):
    options = ["run", "none", "--nodes", "2", "--gpus-per-node", "1", "--json"]
    with ChaosRun(tmp_path, options, command=agents(tmp_path)) as chaos:
        chaos.wait_for("step_committed", step=10)
        (tmp_path / "go").touch()
        exit_code = chaos.wait()
        run = read_run(chaos.folder, exit_code, chaos.stderr)
    summary = run.summary
    assert run.exit_code == 0, summary["reasons"]
    first, second = summary["attempt_list"]
    assert (first["world_size"], first["end"]["code"]) == (1, "by_launcher")
    assert (second["world_size"], second["end"]["code"]) == (2, "completed")
    assert second["loaded"] == str(tmp_path / "checkpoint.pt")
    # torchrun counts no restart.
    assert [one.fields["num_restarts"] for one in run.of("attempt_started")] == [0, 0]
    assert (summary["world_size"]["before"], summary["world_size"]["after"]) == (1, 2)
    assert summary["unplanned_losses"] == [] and summary["fruitless_attempts"] == 0


def test_the_launcher_is_the_one_within_a_loop(tmp_path):
    torchrun = (*TORCHRUN, "--nproc-per-node", "1", TRAINING, "400", str(tmp_path / "checkpoint.pt"))
    command = ("sh", "-c", 'for start in 1 2; do "$@" && exit 0; done; exit 1', "sh", *torchrun)
    options = ["run", "kill-process", "--at", "step=8", "--on", "role=launcher", "--json"]
    with ChaosRun(tmp_path, options, command=command) as chaos:
        exit_code = chaos.wait()
        run = read_run(chaos.folder, exit_code, chaos.stderr)
    (struck,) = run.one("injected").fields["processes"]
    started = [event.fields for event in run.of("process_started")]
    assert struck["pid"] == next(one["parent_pid"] for one in started if one["role"] == "rank")
    assert struck["pid"] not in [one["started_pid"] for one in started if one["role"] == "launcher"]
    # The loop starts the job again, where a shell that is killed would have started nothing.
    assert run.summary["attempts"] == 2
