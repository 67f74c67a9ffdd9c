"""Whom torchrun blames, read from what it really writes."""

import subprocess
import sys

import pytest

from harness.analysis.command.failure_cause import EXITED, FailureCause
from harness.backends.command.failing import FailureFacts, failure_reason, is_pipe
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
OF_TORCHRUN = """\
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1019, in run
    elastic_launch(
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


THREADS = (
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being "
    "overloaded, please further tune the variable for optimal performance in your application as needed."
)
STARS = "*****************************************"
WARNING = "W1126 01:19:58.123000 1234 torch/distributed/run.py:852]"
BANNERS = f"""\
{WARNING}
{WARNING} {STARS}
{WARNING} {THREADS}
{WARNING} {STARS}
/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated.
  import pynvml
/venv/lib/python3.11/site-packages/timm/layers.py:48: DeprecationWarning: Importing from timm.models is deprecated
  warnings.warn("Importing from timm.models is deprecated", DeprecationWarning)
[W1126 01:20:01.000000000 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called
"""
OLD_BANNER = f"{STARS}\n{THREADS}\n{STARS}\n"
AN_ERROR = "E1126 01:21:00.000000 1234 torch/distributed/elastic/multiprocessing/api.py:1002]"
SIGNALLED = f"{AN_ERROR} failed (exitcode: -11) local_rank: 0 (pid: 88) of binary: /venv/bin/python\n"
BLAMED = SIGNALLED.replace("-11", "1")
OF_WORKER = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 35, in <module>
[rank0]:     batch = next(batches)
[rank0]: OSError: Caught OSError in DataLoader worker process 0.
[rank0]: Original Traceback (most recent call last):
[rank0]:   File "/home/me/data.py", line 12, in __getitem__
[rank0]:     shard.write(row)
[rank0]: OSError: [Errno 28] No space left on device
"""
UNPREFIXED = OF_RANK_1.replace("[rank1]: ", "")
FROM = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in load
    return table[name]
KeyError: 'optimizer'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/train.py", line 14, in load
    raise RuntimeError("no checkpoint") from error
RuntimeError: no checkpoint
"""
HANDLING = FROM.replace(
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
HANDLING = HANDLING.replace(
    "During handling of the above exception:", "During handling of the above exception, another exception occurred:"
)
SYNTAX = '  File "/home/me/train.py", line 3\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n'
IN_RANK_1 = "rank 1 raised ValueError: the vocabulary has 32000 words, not 32064 (train.py:35); the command ended with"


def reason_of(tmp_path, text, code=1):
    log = tmp_path / "job.log"
    log.write_text(text)
    found = LauncherLog(log)
    ended = f"the command ended with exit code {code}"
    return failure_reason(ended, FailureFacts().cause(found.printed()), log.name, found.last_words())


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OF_RANK_1 + OF_RANK_0 + OF_TORCHRUN, IN_RANK_1),
        (OF_RANK_0 + OF_RANK_1 + OF_TORCHRUN, IN_RANK_1),
        (BANNERS + OF_RANK_0 + OF_RANK_1 + OF_TORCHRUN, IN_RANK_1),
        (OF_RANK_0 + OF_TORCHRUN, "rank 0 raised RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by"),
        # Without a prefix nobody says whose it is.
        (
            UNPREFIXED,
            "exit code 1: ValueError: the vocabulary has 32000 words, not 32064 (train.py:35); see logs/job.log",
        ),
        (
            OF_WORKER + OF_TORCHRUN,
            "rank 0 raised OSError: Caught OSError in DataLoader worker process 0 (train.py:35), caused by "
            "OSError: [Errno 28] No space left on device (data.py:12); the command ended with exit code 1",
        ),
        (FROM, "RuntimeError: no checkpoint (train.py:14), caused by KeyError: 'optimizer' (train.py:12)"),
        (HANDLING, "RuntimeError: no checkpoint (train.py:14), while it handled KeyError: 'optimizer' (train.py:12)"),
        (SYNTAX + OF_TORCHRUN, "SyntaxError: invalid syntax (train.py:3)"),
        # An older attempt's stands before the last one's.
        (UNPREFIXED + FROM, "exit code 1: RuntimeError: no checkpoint"),
        (
            "python: can't open file 'trian.py'\n" + OF_TORCHRUN,
            "the last lines of logs/job.log: python: can't open file",
        ),
        ("the corpus\n=====\nis not there\n", "the last lines of logs/job.log: the corpus | is not there"),
        (BANNERS + "the corpus is not there\n" + OF_TORCHRUN, "of logs/job.log: the corpus is not there"),
        (
            BANNERS + "step 3\n" + SIGNALLED + OF_TORCHRUN,
            "exit code 1; its launcher names local rank 0: killed by SIGSEGV",
        ),
        ("the command ended", "the last lines of logs/job.log: the command ended"),
        # --redirects: the ranks print into other files.
        (BANNERS + BLAMED + OF_TORCHRUN, "exit code 1; its launcher names local rank 0: exit code 1"),
        (BANNERS + "data: none\n" + BLAMED + OF_TORCHRUN, "the last lines of logs/job.log: data: none"),
    ],
)
def test_a_failure_is_told_by_the_exception_of_the_rank_that_had_a_reason(tmp_path, text, words):
    reason = reason_of(tmp_path, text)
    assert words in reason and "\n" not in reason
    assert "ChildFailedError" not in reason and "^^^" not in reason and "OMP_NUM" not in reason


@pytest.mark.unit
@pytest.mark.parametrize("text", ["", BANNERS, OLD_BANNER, BANNERS + OLD_BANNER + OF_TORCHRUN])
def test_a_banner_is_no_reason(tmp_path, text):
    assert reason_of(tmp_path, text) == "the command ended with exit code 1"


NO_MODULE = (
    "python: Error while finding module specification for 'my.train' (ModuleNotFoundError: No module named 'my')"
)


@pytest.mark.unit
@pytest.mark.parametrize(("num_steps", "code", "is_shown"), [(0, 1, True), (7, 1, False), (0, -9, False)])
def test_what_a_rank_printed_is_the_reason_where_it_ended_with_an_exit_code_before_the_first_step(
    tmp_path, num_steps, code, is_shown
):
    log = tmp_path / "job.log"
    log.write_text(BANNERS + f"{NO_MODULE}\n" * 2 + BLAMED + OF_TORCHRUN)
    found = LauncherLog(log)
    cause = FailureCause(EXITED, 1, exit=code)
    printed = None if num_steps else found.last_lines()
    reason = failure_reason("the command ended with exit code 1", cause, log.name, found.last_words(), printed)
    assert reason.endswith(f"the last lines of logs/job.log: {NO_MODULE}") is is_shown
    assert ("see logs/job.log" in reason) is not is_shown


@pytest.mark.unit
def test_a_pipe_is_told_by_its_bar():
    assert is_pipe(["bash", "-c", "python train.py | tee log"])
    assert not is_pipe(["bash", "-c", "python train.py || true"]) and not is_pipe(["torchrun", "train.py"])


@pytest.mark.unit
def test_a_launcher_that_lost_the_store_is_told_from_one_that_only_warns(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("W1127 dynamic_rendezvous.py:1346] keep-alive: error of type RendezvousConnectionError.\n")
    follower = LauncherLog(log)
    blamed(follower)
    assert not follower.has_lost_store
    name = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError"
    with log.open("a") as file:
        file.write(f"{name}: The connection to the C10d store has failed. See inner exception for details.\n")
    blamed(follower)
    assert follower.has_lost_store
