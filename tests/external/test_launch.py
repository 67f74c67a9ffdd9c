"""The greeting at the start of Python: who greets, who does not, and that no script suffers from it."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.control.control_server import ControlServer
from mecefo_runtime.system.process import ProcessId
from tests.external.jobs import SITE, TIMEOUT_SECONDS

pytestmark = pytest.mark.external

# Who it is, in a process of its own.
ITSELF = "import os, sys; print(os.getpid()); "


class Greeted:
    """A control server that takes greetings; `pids` are those of whom it heard."""

    def __init__(self, folder: Path | None) -> None:
        self.pids: list[int] = []
        control = ControlServer(lambda event: None)
        control.on_launch = self._on_launch
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._control = control
        self._do(control.open(folder, may_be_relative=False))
        self.address = control.address

    async def _on_launch(self, process: ProcessId, node: int | None) -> None:
        # It waits to be answered.
        assert process.is_running()
        self.pids.append(process.pid)

    def _do(self, coroutine) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_SECONDS)

    def close(self) -> None:
        self._do(self._control.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def greeted(folder: Path | None = None) -> Iterator[Greeted]:
    server = Greeted(folder)
    try:
        yield server
    finally:
        server.close()


def python(code: str, address: str, **variables: object) -> str:
    """What a script prints that starts with `variables`, where the agent would report to `address`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CHAOS_", "LOCAL_RANK"))}
    own = {"CHAOS_RUN": "r", "CHAOS_AGENT": address, "PYTHONPATH": str(SITE), "RANK": 0}
    environment = {
        **inherited,
        **{name: str(value) for name, value in {**own, **variables}.items() if value is not None},
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_a_rank_greets_before_its_script_and_imports_nothing_of_ours(tmp_path, over):
    with greeted(tmp_path if over == "unix" else None) as server:
        said = python(
            f"{ITSELF}print([n for n in sys.modules if n.split('.')[0] in ('chaos', 'torch', 'socket')])",
            server.address,
        )
        pid, modules = said.splitlines()
        assert server.pids == [int(pid)] and modules == "[]"


@pytest.mark.parametrize(
    "variables", [{"RANK": None}, {"RANK": ""}, {"RANK": "first"}, {"CHAOS_RUN": None}, {"CHAOS_AGENT": None}]
)
def test_who_was_not_started_as_a_rank_of_this_run_does_not_greet(variables):
    with greeted() as server:
        python("pass", server.address, **variables)
        assert server.pids == []


CHILDREN = {
    "subprocess": "import subprocess; subprocess.run([sys.executable, '-c', 'pass'], check=True)",
    "shell": "import os; os.system(f'{sys.executable} -c pass')",
    "fork": "import os; pid = os.fork(); pid or os._exit(0); os.waitpid(pid, 0)",
    "spawn": (
        "import multiprocessing; p = multiprocessing.get_context('spawn').Process(target=print); p.start(); p.join()"
    ),
    "grandchild": 'import os; os.system(f"sh -c \'sh -c \\"{sys.executable} -c pass\\"\'")',
}


@pytest.mark.parametrize("variables", [{"LOCAL_RANK": 0}, {}])
@pytest.mark.parametrize("how", CHILDREN)
def test_what_a_rank_starts_does_not_greet(how, variables):
    with greeted() as server:
        pid = python(ITSELF + CHILDREN[how], server.address, **variables).split()[0]
        assert server.pids == [int(pid)]


def test_a_launcher_that_has_rank_itself_does_not_keep_its_ranks_from_greeting():
    start = (
        "import subprocess; [subprocess.run([sys.executable, '-c', 'pass'], check=True, "
        "env={**os.environ, 'RANK': str(r), 'LOCAL_RANK': str(r)}) for r in (0, 1)]"
    )
    with greeted() as server:
        python(ITSELF + start, server.address)
        assert len(set(server.pids)) == 3


def test_a_process_that_replaces_itself_greets_again():
    again = (
        "'again' in sys.argv or (sys.stdout.flush(), os.execv(sys.executable, [sys.executable, '-c', 'pass', 'again']))"
    )
    with greeted() as server:
        pid = int(python(ITSELF + again, server.address))
        assert server.pids == [pid, pid]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nowhere", "nonsense", ""])
def test_a_script_runs_though_nobody_takes_greetings(address):
    assert python("print('trained')", address) == "trained\n"
