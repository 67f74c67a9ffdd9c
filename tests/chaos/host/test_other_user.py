"""Processes of a run that belong to another user: root finds them by the mark of the run."""

import os
import shutil
import subprocess

import pytest

from chaos.host.process_table import effective_uid, parent_of
from chaos.host.run_processes import RUN_VARIABLE, end_processes, processes_of
from mecefo_runtime.system.process import ProcessId

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"),
]

NOBODY = 65534


@pytest.fixture
def child():
    """A process of another user with the mark of the run `other-user`."""
    command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sh", "-c", "echo; exec sleep 60"]
    environment = {**os.environ, RUN_VARIABLE: "other-user"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as started:
        assert started.stdout.readline()
        yield started
        started.kill()


def test_root_finds_and_ends_it(child):
    process = ProcessId.of(child.pid)
    assert [one.process for one in processes_of("other-user")] == [process]
    assert [one.process for one in end_processes("other-user")] == [process]
    child.wait()
    assert not process.is_running()


def test_its_user_and_its_parent(child):
    process = ProcessId.of(child.pid)
    assert effective_uid(process) == NOBODY and parent_of(process) == ProcessId.of(os.getpid())
    child.kill()
    child.wait()
    assert effective_uid(process) is None and parent_of(process) is None
