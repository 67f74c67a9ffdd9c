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


def blamed(follower):
    """The pids of the workers that it has blamed since the last call."""
    return follower.culprits(follower.new_lines())


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
    assert blamed(LauncherLog(log)) == died


@pytest.mark.unit
def test_it_reads_what_is_new_and_only_whole_lines(tmp_path):
    log = tmp_path / "job.log"
    follower = LauncherLog(log)
    assert blamed(follower) == []
    line = "E1121 15:47 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 88) of binary: python\n"
    log.write_text("training\n" + line[:50])
    assert blamed(follower) == []
    log.write_text("training\n" + line)
    assert blamed(follower) == [88]
    assert blamed(follower) == []
    log.write_text("training\n" + line + line.replace("88", "91"))
    assert blamed(follower) == [91]


@pytest.mark.unit
def test_a_progress_bar_in_the_same_log_hides_nobody(tmp_path):
    log = tmp_path / "job.log"
    bar = "".join(f"{step}%\r" for step in range(100))
    log.write_text(bar + "E1121 15:47 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 88) of binary: python\n")
    assert blamed(LauncherLog(log)) == [88]


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
    blamed(follower)
    assert follower.has_failed_restart is is_restart


OF_RANK_1 = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 35, in <module>
[rank1]:     train()
[rank1]:   File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
[rank1]:     torch.autograd.backward(
[rank1]:     ^^^^^^^^^^^^^^^^^^^^^^^
[rank1]: ValueError: the vocabulary has 32000 words, not 32064
"""
OF_RANK_0 = OF_RANK_1.replace("rank1", "rank0").replace(
    "ValueError: the vocabulary has 32000 words, not 32064",
    "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:5321",
)
CAUSE = "ValueError: the vocabulary has 32000 words, not 32064 (train.py, line 35)"
OF_TORCHRUN = """\
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_21:10:54
  exitcode  : 1 (pid: 1475)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            OF_RANK_1 + OF_RANK_0 + OF_TORCHRUN,
            "ValueError: the vocabulary has 32000 words, not 32064 (train.py, line 35)",
        ),
        (
            OF_RANK_0 + OF_RANK_1 + OF_TORCHRUN,
            "ValueError: the vocabulary has 32000 words, not 32064 (train.py, line 35)",
        ),
        (OF_RANK_0 + OF_TORCHRUN, "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer"),
        (
            "python: can't open file 'trian.py'\n" + OF_TORCHRUN,
            "the last lines of logs/job.log: python: can't open file",
        ),
        ("the corpus\n=====\nis not there\n", "the last lines of logs/job.log: the corpus | is not there"),
        ("", ""),
    ],
)
def test_a_failure_is_told_by_the_exception_of_the_rank_that_had_a_reason(tmp_path, text, words):
    log = tmp_path / "job.log"
    log.write_text("step 1\n" * bool(text and "corpus" not in text and "trian" not in text) + text)
    assert words in LauncherLog(log).why_it_failed()
    assert "ChildFailedError" not in LauncherLog(log).why_it_failed()
    assert "^^^" not in LauncherLog(log).why_it_failed()
