"""Processes known by their mark: found whoever started them, and no others."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest

from chaos.host.run_processes import RUN_VARIABLE
from harness.node.processes_by_env import environment_of, listener_on, processes_of_run, session_processes
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

# Starts a child in a session of its own and waits with it. The child says that it is ready: one that is just being
# executed has no environment yet that could be read.
PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"],
    stdin=sys.stdin,
    start_new_session=True,
)
child.wait()
"""


@pytest.fixture
def family():
    """(run id, the parent's process): two processes that carry the mark."""
    run_id = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, RUN_VARIABLE: run_id},
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        parent.stdout.readline()
        yield run_id, parent
        parent.stdin.write(b"\n")
        parent.stdin.close()


def test_children_are_found_by_the_mark_that_they_inherit(family):
    run_id, parent = family
    found = processes_of_run(run_id)
    assert len(found) == 2 and ProcessId.of(parent.pid) in found
    assert processes_of_run(run_id[:-1]) == [] and processes_of_run(uuid.uuid4().hex) == []
    assert ProcessId.of(os.getpid()) not in found


def test_a_stopped_one_is_found_and_a_dead_one_is_not(family):
    run_id, parent = family
    process = ProcessId.of(parent.pid)
    process.signal(signal.SIGSTOP)
    assert process in processes_of_run(run_id)
    process.signal(signal.SIGKILL)
    parent.wait()
    assert process not in processes_of_run(run_id) and len(processes_of_run(run_id)) == 1


def test_the_environment_of_a_process(family):
    run_id, parent = family
    assert environment_of(parent.pid)[RUN_VARIABLE] == run_id
    assert environment_of(2**22 + 1) == {}


@pytest.mark.parametrize(("family_of_address", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_who_listens_on_a_port(family, family_of_address, address):
    ours, other = ProcessId.of(os.getpid()), ProcessId.of(family[1].pid)
    try:
        listener = socket.create_server((address, 0), family=family_of_address)
    except OSError:
        pytest.skip("this machine has no such loopback")
    with listener:
        port = listener.getsockname()[1]
        assert listener_on(port, [other, ours]) == ours
        assert listener_on(port, [other]) is None
    assert listener_on(port, [ours]) is None


def test_a_session_is_known_by_who_began_it_whatever_is_in_the_environment():
    script = (
        "import subprocess, sys; print('ready', flush=True); subprocess.run([sys.executable, '-c', 'input()'], env={})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env={}
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdout.readline()
        leader = ProcessId.of(parent.pid)
        while len(found := session_processes(leader)) < 2:
            time.sleep(0.01)
        assert leader in found and ProcessId.of(os.getpid()) not in found
        # Of another one that had the same number before it, none is left.
        assert session_processes(ProcessId(parent.pid, leader.start_ticks - 1)) == []
        parent.stdin.close()
    assert session_processes(leader) == []
