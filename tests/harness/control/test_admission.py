"""Which processes a control server of root admits: real processes, of this user and of another."""

import os
import shutil
import subprocess
import sys

import pytest

from harness.control import admission
from harness.control.admission import Admission
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

NOBODY, SOMEBODY = 65534, 65533
SLEEP = ["sleep", "60"]
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv: a process of a second user"
)


@pytest.fixture
def started():
    """Starts processes, as another user if one is given; all of them are killed at the end."""
    running = []

    def start(*command, uid=None):
        prefix = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        running.append(subprocess.Popen([*prefix, *command], stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.wait()
        one.stdout.close()


def other(started, uid=NOBODY):
    """A process of another user that has changed to it already."""
    child = started("sh", "-c", "echo; exec sleep 60", uid=uid)
    assert child.stdout.readline()
    return child


def test_this_user_and_root_are_admitted_whoever_started_them(started):
    stranger = ProcessId.of(started(*SLEEP).pid)
    assert Admission(stranger).admits(os.getppid(), os.geteuid())
    assert Admission(stranger).admits(None, 0)


@as_root
def test_another_user_is_admitted_as_a_descendant(started):
    assert Admission().admits(other(started).pid, NOBODY)


@as_root
def test_a_grandchild_is_a_descendant(started):
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    parent = started("/usr/bin/env", "python3", "-c", code, uid=NOBODY)
    grandchild = int(parent.stdout.readline())
    try:
        assert Admission().admits(grandchild, NOBODY)
    finally:
        os.kill(grandchild, 9)


@as_root
def test_another_user_is_refused_where_it_is_no_descendant(started):
    stranger = ProcessId.of(started(*SLEEP).pid)
    assert not Admission(stranger).admits(other(started).pid, NOBODY)


@as_root
def test_a_recycled_pid_does_not_count(started):
    """The process that has the pid now is of the run, but has another user than the one that connected."""
    assert not Admission().admits(other(started, SOMEBODY).pid, NOBODY)
    of_root = started(*SLEEP)
    assert not Admission().admits(of_root.pid, NOBODY)


@as_root
@pytest.mark.parametrize("is_recycled", [False, True])
def test_a_pid_of_an_ancestor_that_is_recycled_meanwhile_does_not_count(started, monkeypatch, is_recycled):
    child = other(started)
    own = ProcessId.of(os.getpid())
    # The root's pid, which another process had before.
    root = ProcessId(own.pid, own.start_ticks - 1) if is_recycled else own
    assert Admission(root).admits(child.pid, NOBODY) is not is_recycled


@as_root
def test_a_process_that_is_gone_is_refused(started):
    child = other(started)
    child.kill()
    child.wait()
    assert not Admission().admits(child.pid, NOBODY)
    assert not Admission().admits(None, NOBODY)


@as_root
def test_an_admitted_process_stays_so_when_its_parent_is_gone(started):
    """As a rank whose launcher is killed."""
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    launcher = started("/usr/bin/env", "python3", "-c", code, uid=NOBODY)
    rank = int(launcher.stdout.readline())
    early, late = Admission(), Admission()
    try:
        assert early.admits(rank, NOBODY)
        launcher.kill()
        launcher.wait()
        assert early.admits(rank, NOBODY) and not late.admits(rank, NOBODY)
    finally:
        os.kill(rank, 9)


def test_a_server_that_is_not_of_root_admits_no_other_user(started, monkeypatch):
    monkeypatch.setattr(admission.os, "geteuid", lambda: SOMEBODY)
    child = started(sys.executable, "-c", "input()")
    assert not Admission().admits(child.pid, NOBODY)
