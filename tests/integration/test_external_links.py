"""Links of an external job, whose ranks each get a network as their Python starts: `chaos run FAULT -- COMMAND`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from chaos.undo.ledger import read_ledger
from harness.network.machine import why_no_networks
from tests.integration.runs import ChaosRun, assert_nothing_left, read_log, run_chaos

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}"),
]

TRAINING = str(Path(__file__).parent / "external_training.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
ONE_LAUNCHER = (*TORCHRUN, "--nproc-per-node", "2")
RESTARTING = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
LINK = ("--on", "link=0-1", "--at", "step=8")
# Every rank is forked by the script: its Python started when nobody knew yet which rank it would be.
FORKED = """
import os
import torch

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="0")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

children = []
for rank in (0, 1):
    if (child := os.fork()) == 0:
        train(rank)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def training(tmp_path, steps):
    return (TRAINING, str(steps), str(tmp_path / "c.pt"))


def two_launchers(tmp_path, steps, port):
    """One for each node, as on two machines."""
    script = " ".join(training(tmp_path, steps))
    launcher = f"{' '.join(TORCHRUN)} --nnodes 2 --nproc-per-node 1 --master-port {port} --node-rank"
    return ("sh", "-c", f"{launcher} 0 {script} & {launcher} 1 {script} & wait")


@pytest.mark.nightly
def test_a_link_that_is_cut_holds_the_ranks_up_until_it_is_whole(tmp_path):
    run = run_chaos(tmp_path, "drop-link", *LINK, "--for", "2s", command=(*ONE_LAUNCHER, *training(tmp_path, 30)))
    assert run.exit_code == 0, run.summary["reasons"]
    assert run.summary["steps_committed"] == 30 and run.summary["attempts"] == 1
    injected, verified = run.one("injected"), run.one("verified")
    assert "0 of 5 probes come back" in verified.fields["evidence"]["summary"]
    # Held until it was seen; and then neither of them came any further. Not until `undone`: the rules are gone some
    # moments before it is said that they are.
    later = [e for e in run.of("step_committed") if verified.monotonic_seconds < e.monotonic_seconds]
    assert later and all(event.monotonic_seconds >= injected.monotonic_seconds + 2.0 for event in later)


def test_without_networks_it_is_refused(tmp_path):
    arguments = ["run", "drop-link", *LINK, "--network", "loopback"]
    with ChaosRun(tmp_path, arguments, command=(*ONE_LAUNCHER, *training(tmp_path, 30))) as run:
        assert run.wait() == 4
        assert "drop-link needs ranks with networks of their own" in run.stderr
    assert not run.out.exists()


@pytest.mark.nightly
def test_nothing_outlives_a_command_that_is_killed(tmp_path):
    arguments = ["run", "drop-link", *LINK, "--for", "1h"]
    with ChaosRun(tmp_path, arguments, command=(*ONE_LAUNCHER, *training(tmp_path, 100000))) as run:
        run.wait_for("verified")
        assert read_ledger(run.folder / "ledger.jsonl").pending
        run.process.send_signal(signal.SIGKILL)
        run.wait()
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"))
        assert read_ledger(run.folder / "ledger.jsonl").pending == ()
