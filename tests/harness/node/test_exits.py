"""The exit codes of processes whose parent is somebody else."""

import asyncio
import os
import platform
import signal
import subprocess
import sys

import pytest

from harness.node import exits
from harness.node.exits import exit_of
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

# Much longer than any of it takes on a busy machine.
TIMEOUT_SECONDS = 120.0
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
# Says its pid, and ends as its first line of input says.
ENDS = "import os; print(os.getpid(), flush=True); exec(input())"
# Asks after its child at once, and lives on.
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {ENDS!r}])
sys.stdin.read()
"""


def exit_code_of(*command, last_words):
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        process = ProcessId.of(int(child.stdout.readline()))

        async def follow():
            following = asyncio.create_task(exit_of(process))
            await asyncio.sleep(0)
            child.stdin.write(f"{last_words}\n")
            child.stdin.flush()
            return await asyncio.wait_for(following, TIMEOUT_SECONDS)

        return asyncio.run(follow())


@pytest.mark.skipif(KERNEL < (6, 15), reason="the kernel tells it since Linux 6.15")
@pytest.mark.parametrize(
    ("last_words", "code"),
    [("os._exit(7)", 7), ("os.abort()", -signal.SIGABRT), ("os.kill(os.getpid(), 9)", -9), ("pass", 0)],
)
def test_a_child_of_somebody_who_asked_at_once(last_words, code):
    assert exit_code_of(sys.executable, "-c", PARENT, last_words=last_words) == code


@pytest.mark.parametrize(("last_words", "code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_what_nobody_has_asked_after_yet_tells_it_on_any_kernel(monkeypatch, last_words, code):
    monkeypatch.setattr(exits, "_status_of_reaped", lambda descriptor: None)
    assert exit_code_of(sys.executable, "-c", ENDS, last_words=last_words) == code


def test_where_nobody_tells_it_is_unknown(monkeypatch):
    monkeypatch.setattr(exits, "_status_of_zombie", lambda process: None)
    monkeypatch.setattr(exits, "_GET_INFO", 0)
    monkeypatch.setattr(exits, "REAPED_SECONDS", 0.05)
    assert exit_code_of(sys.executable, "-c", ENDS, last_words="pass") is None


def test_who_is_gone_already_or_has_its_pid_from_another_tells_nothing():
    me = ProcessId.of(os.getpid())
    other = ProcessId(me.pid, me.start_ticks - 1)
    assert asyncio.run(asyncio.wait_for(exit_of(other), TIMEOUT_SECONDS)) is None
