"""Work that is done in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mecefo_runtime.system.process import run_apart

pytestmark = pytest.mark.unit


def test_the_answer_comes_from_another_process_and_nothing_stays_of_it():
    kept = []

    def compute() -> str:
        kept.append("x")
        return f"{os.getpid()} {'long ' * 100_000}"

    pid, _, rest = run_apart(compute).partition(" ")
    assert int(pid) != os.getpid() and len(rest) == 500_000
    assert not kept
    with pytest.raises(ChildProcessError):
        os.waitpid(int(pid), os.WNOHANG)


def test_its_failure_is_ours():
    with pytest.raises(RuntimeError, match="exit code 1"):
        run_apart(lambda: str(1 / 0))


AS_IDLE = """
import os
import subprocess
import sys
from pathlib import Path

from mecefo_runtime.system.process import begin_session

begin_session(is_idle=True)
group = Path("/proc/self/autogroup")
print(os.getsid(0) == os.getpid(), os.sched_getscheduler(0) == os.SCHED_IDLE)
print(group.read_text().split()[-1] if group.exists() else "19")
"""


def test_an_idle_session_gives_way_itself_not_only_its_threads():
    done = subprocess.run([sys.executable, "-c", AS_IDLE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "19"]
