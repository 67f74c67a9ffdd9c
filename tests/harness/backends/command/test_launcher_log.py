"""Whom torchrun blames, read from what it really writes."""

import subprocess
import sys

import pytest

from harness.backends.command.launcher_log import LauncherLog

SCRIPT = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    print(os.getpid(), file=open(sys.argv[1], "a"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


@pytest.mark.integration
def test_torchrun_names_the_worker_that_died_first(tmp_path):
    script, pids, log = tmp_path / "train.py", tmp_path / "pids", tmp_path / "job.log"
    script.write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", str(script), str(pids)]
    with log.open("wb") as output:
        done = subprocess.run([sys.executable, *command], stdout=output, stderr=output, timeout=300)
    assert done.returncode != 0
    died = [int(line) for line in pids.read_text().split()]
    assert len(died) == 2, "it was started again once"
    assert LauncherLog(log).new_culprits() == died


@pytest.mark.unit
def test_it_reads_what_is_new_and_only_whole_lines(tmp_path):
    log = tmp_path / "job.log"
    follower = LauncherLog(log)
    assert follower.new_culprits() == []
    line = "E1121 15:47 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 88) of binary: python\n"
    log.write_text("training\n" + line[:50])
    assert follower.new_culprits() == []
    log.write_text("training\n" + line)
    assert follower.new_culprits() == [88]
    assert follower.new_culprits() == []
    log.write_text("training\n" + line + line.replace("88", "91"))
    assert follower.new_culprits() == [91]


@pytest.mark.unit
def test_a_progress_bar_in_the_same_log_hides_nobody(tmp_path):
    log = tmp_path / "job.log"
    bar = "".join(f"{step}%\r" for step in range(100))
    log.write_text(bar + "E1121 15:47 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 88) of binary: python\n")
    assert LauncherLog(log).new_culprits() == [88]


@pytest.mark.unit
@pytest.mark.parametrize(("order", "is_restart"), [("fm", True), ("mf", False), ("f", False), ("m", False)])
def test_ranks_that_cannot_connect_are_told_from_those_of_the_first_start(tmp_path, order, is_restart):
    lines = {
        "f": "E1121 15:47 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 88) of binary: python\n",
        "m": "[E1121 22:41:00.85 ProcessGroupGloo.cpp:67] Gloo connectFullMesh failed with [pair.cc:152] timed out\n",
    }
    log = tmp_path / "job.log"
    log.write_text("".join(lines[kind] for kind in order))
    follower = LauncherLog(log)
    follower.new_culprits()
    assert follower.has_failed_restart is is_restart
