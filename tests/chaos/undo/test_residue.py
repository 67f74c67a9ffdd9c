"""The search for what a run left behind: what is ours is found, and nothing else."""

import os
import signal
import subprocess
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.host.run_processes import RUN_VARIABLE, end_processes, processes_of
from chaos.undo import residue
from chaos.undo.ledger import Ledger
from chaos.undo.residue.base import AuditScope

pytestmark = pytest.mark.unit


@pytest.fixture
def scope(tmp_path):
    return AuditScope(uuid.uuid4().hex[:16], (tmp_path,), tmp_path / "ledger.jsonl")


@pytest.fixture
def start():
    """Starts a process with the given run in its environment."""
    children = []

    def start(run):
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_VARIABLE: run})
        children.append(child)
        while b"sleep" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


def found(scope, before):
    return residue.left_behind(before, residue.look(scope))


def test_nothing_is_left_by_nobody(scope):
    assert residue.left_behind({}, residue.look(scope)) == []
    assert {auditor.name for auditor in residue.auditors()} == {
        *("process", "mount", "cgroup", "Docker", "file", "network", "rule"),
    }


def test_processes_of_a_run_are_found_by_their_environment(scope, start):
    child, other = start(scope.run), start(scope.run + "0")
    (one,) = processes_of(scope.run)
    assert one.process.pid == child.pid
    assert found(scope, {}) == [{"kind": "process", "what": f"pid {child.pid}: sleep 600"}]
    child.send_signal(signal.SIGSTOP)
    while processes_of(scope.run)[0].state != "T":
        time.sleep(0.001)
    assert found(scope, {}) == [{"kind": "process", "what": f"pid {child.pid}, stopped: sleep 600"}]

    assert [one.process.pid for one in end_processes(scope.run)] == [child.pid], "a stopped one dies like any other"
    assert child.wait() == -signal.SIGKILL
    assert processes_of(scope.run) == ()
    assert other.poll() is None
    assert end_processes(scope.run) == ()


def test_files_that_records_name_are_found_when_they_were_not_there_before(scope, tmp_path):
    made, link, old = tmp_path / "made", tmp_path / "link", tmp_path / "old"
    old.write_text("was there")
    with Ledger(scope.ledger) as ledger:
        ledger.prepare(0, "f", {"paths": [str(made), str(link)], "old": str(old), "never": str(tmp_path / "never")})
        ledger.undo(0, "f", {}, lambda record: {})
    before = residue.look(scope)
    made.mkdir()
    link.symlink_to("nowhere")
    assert found(scope, before) == [{"kind": "file", "what": str(link)}, {"kind": "file", "what": str(made)}]


@contextmanager
def done_and_undone(do, undo):
    """What only a privileged user may do; elsewhere the test is skipped."""
    try:
        result = subprocess.run(do, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if result.returncode:
        pytest.skip(f"not possible here: {result.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(undo, check=True)


def test_mounts_on_the_runs_folders_are_found(scope, tmp_path):
    point = tmp_path / "disk with a blank"
    point.mkdir()
    before = residue.look(scope)
    with done_and_undone(["mount", "-t", "tmpfs", "tmpfs", str(point)], ["umount", str(point)]):
        assert found(scope, before) == [{"kind": "mount", "what": f"tmpfs on {point}"}]
        assert residue.look(AuditScope(scope.run, (), scope.ledger))["mount"] == frozenset()
    assert found(scope, before) == []


def test_a_mount_that_only_bears_the_projects_name_is_somebody_elses(scope, tmp_path):
    point = tmp_path / "mecefo-chaos-ci"
    point.mkdir()
    elsewhere = AuditScope(scope.run, (tmp_path / "run",), scope.ledger)
    with done_and_undone(["mount", "-t", "tmpfs", "mecefo-chaos", str(point)], ["umount", str(point)]):
        assert found(elsewhere, {}) == []


def test_network_namespaces_under_the_runs_name_are_found(scope):
    name = f"chaos-{scope.run}"
    before = residue.look(scope)
    with done_and_undone(["ip", "netns", "add", name], ["ip", "netns", "delete", name]):
        assert {"kind": "network", "what": f"network namespace {name}"} in found(scope, before)
    assert found(scope, before) == []


def test_control_groups_under_the_runs_name_are_found(scope):
    root = next((path for path in Path("/sys/fs/cgroup").glob("*/") if os.access(path, os.W_OK)), None)
    if root is None:
        pytest.skip("no control group can be made here")
    before = residue.look(scope)
    group = root / f"chaos-{scope.run}"
    with done_and_undone(["mkdir", str(group)], ["rmdir", str(group)]):
        assert found(scope, before) == [{"kind": "cgroup", "what": str(group)}]
    assert found(scope, before) == []
