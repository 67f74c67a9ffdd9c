"""Pids that processes in other namespaces tell, turned into those out here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from harness.control.pid_namespaces import HostPids
from mecefo_runtime.system.events import Event

pytestmark = pytest.mark.unit
# The first process of a namespace tells its own pid and that of a child, and waits until it is let go.
TELL = """
import os, sys
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
sys.stdin.read()
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


def may_unshare() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.fixture
def apart():
    """(pid out here of the first process of a namespace, the pids that it and its child have there)."""
    if not may_unshare():
        pytest.skip("users may not make namespaces here")
    with subprocess.Popen(
        [*UNSHARE, sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        inner = tuple(map(int, process.stdout.readline().split()))
        (first,) = (int(pid) for pid in children(process.pid))
        try:
            yield first, inner
        finally:
            process.stdin.close()
            process.wait()


def children(pid: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(stat(entry)[1]) == pid:
                found.append(entry.name)
    return found


def stat(entry: Path) -> list[str]:
    return (entry / "stat").read_text().rpartition(")")[2].split()


def event(pid: int, **fields: object) -> Event:
    return Event("process_started", "supervisor", 0.0, 0.0, pid, fields=fields)


def test_what_a_process_apart_tells_is_translated(apart):
    first, (one, two) = apart
    assert one == 1
    outside = HostPids()
    assert outside.of(first, one) == first
    child = outside.of(first, two)
    assert str(child) in children(first)
    told = outside.of_event(event(1, started_pid=two, role="rank"), first)
    assert (told.pid, told.fields) == (first, {"started_pid": child, "role": "rank"})


def test_the_dead_keep_the_pid_that_they_were_known_by(apart):
    first, (_, two) = apart
    outside = HostPids()
    child = outside.of(first, two)
    os.kill(child, 9)
    entry = Path(f"/proc/{child}")
    with suppress(OSError):
        while stat(entry)[0] != "Z":
            os.sched_yield()
    assert outside.of(first, two) == child


def test_a_pid_of_this_namespace_is_what_it_is():
    us = os.getpid()
    told = event(us, started_pid=12345)
    assert HostPids().of_event(told, us) is told
    assert HostPids().of(us, 12345) == 12345


def test_who_cannot_be_found_keeps_the_number(apart):
    first, _ = apart
    assert HostPids().of(first, 4_000_000) == 4_000_000
