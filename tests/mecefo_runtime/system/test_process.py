"""Processes by host, pid and start time; work that is done in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from mecefo_runtime.system.host import UNKNOWN_HOST, Host, machine_digest, this_host
from mecefo_runtime.system.process import ForeignProcess, ProcessId, read_environment, run_apart

pytestmark = pytest.mark.unit


def test_a_process_is_of_this_host_unless_another_is_named():
    us = ProcessId.of(os.getpid())
    assert us == ProcessId(us.pid, us.start_ticks) == ProcessId(us.pid, us.start_ticks, this_host())
    assert us.is_here and us.is_running() and us.local_pid == os.getpid()
    assert us not in {ProcessId(us.pid, us.start_ticks, ELSEWHERE), ProcessId(us.pid, us.start_ticks, EARLIER)}


ELSEWHERE, EARLIER = Host("node2", "another boot"), Host(this_host().name, "an earlier boot")


@pytest.mark.parametrize(
    ("host", "code"), [(ELSEWHERE, "other_host"), (EARLIER, "other_boot"), (UNKNOWN_HOST, "other_host")]
)
@pytest.mark.parametrize(
    "look",
    [
        lambda process: process.local_pid,
        lambda process: process.is_running(),
        lambda process: process.state(),
        lambda process: process.signal(signal.SIGKILL),
    ],
)
def test_a_process_of_another_host_is_neither_looked_at_nor_signalled(host, code, look):
    """Its numbers are this very process's: a signal would end the tests."""
    us = ProcessId.of(os.getpid())
    with pytest.raises(ForeignProcess, match=f"pid {us.pid}") as refused:
        look(ProcessId(us.pid, us.start_ticks, host))
    assert refused.value.code == code


def test_a_host_is_read_as_it_was_written():
    assert Host.from_json(this_host().to_json()) == this_host() and this_host().boot
    for raw in (None, "ab", [], ["a"], ["a", 1], ["a" * 1000, "b"]):
        with pytest.raises(ValueError, match="host"):
            Host.from_json(raw)


def test_the_id_of_the_machine_is_not_shown():
    assert len(machine_digest()) in (0, 16) and machine_digest() == machine_digest()


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


IN_A_SESSION = """
import os
import subprocess
import sys
from pathlib import Path

from mecefo_runtime.system.process import begin_session, give_way

begin_session(is_idle=sys.argv[1] == "is_idle")
if sys.argv[1] == "give_way":
    give_way()
group = Path("/proc/self/autogroup")
print(os.getsid(0) == os.getpid(), os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))
print(group.read_text().split()[-1] if group.exists() else sys.argv[2])
"""


@pytest.mark.parametrize(("how", "nice", "of_session"), [("is_idle", 0, "19"), ("give_way", 10, "10")])
def test_a_session_gives_way_itself_not_only_its_threads(how: str, nice: int, of_session: str):
    command = [sys.executable, "-c", IN_A_SESSION, how, of_session]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # It begins with what this process has.
    is_idle = how == "is_idle" or os.sched_getscheduler(0) == os.SCHED_IDLE
    assert done.stdout.split() == ["True", str(is_idle), str(min(19, os.nice(0) + nice)), of_session]


def test_the_environment_of_a_process_is_known_as_soon_as_it_is_started():
    # On busy cores who starts a process goes on long before the kernel has put its environment in place.
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for _ in range(20):
            started = subprocess.Popen(["sleep", "300"], env={"MARK": "here"})
            try:
                assert read_environment(started.pid) == b"MARK=here\0"
            finally:
                started.kill()
                started.wait()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert read_environment(os.getpid())
