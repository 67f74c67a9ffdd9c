"""One run of a real job over every backend of this machine: ours, and the one of docs/how-to/extending/backend.md."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.integration.runs import SLOW_UNTIL_BACK, SMALL, Finished, run_chaos
from tests.plugins import documented, install_backend_of_page

pytestmark = pytest.mark.integration

HERE = Path(__file__).resolve().parent
LOSS = ("kill-node", "--on", "node=1", "--at", "step=10", "--repair", "10steps", "--steps", "40")
# A patch: each fork server writes down on which cores it may run, before it forks anything.
CORES = """
import os, pathlib, sys
if "harness.backends.forkserver" in sys.orig_argv:
    pathlib.Path(f"cores-{os.getpid()}").write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of every process, with the backend of the page."""
    install_backend_of_page(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path / "site"


def assert_a_node_was_lost_and_came_back(run: Finished) -> None:
    """What every backend keeps, of a run with `LOSS`."""
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert run.summary["steps_committed"] == 40
    killed = run.one("injected").fields["processes"]
    assert [process["rank"] for process in killed if process["role"] == "rank"] == [2, 3]
    # The backend reports the end of what it was ordered to start.
    ordered = {process["pid"] for process in killed if process["role"] == "supervisor"}
    assert ordered and ordered <= {event.fields["exited_pid"] for event in run.of("process_exited")}
    assert [event.fields["ranks"] for event in run.of("rejoined")] == [[2, 3]]


@pytest.mark.nightly
def test_a_node_of_the_local_backend_is_lost_and_comes_back(tmp_path):
    assert_a_node_was_lost_and_came_back(run_chaos(tmp_path, *LOSS, *SMALL, patch=SLOW_UNTIL_BACK))


def test_a_node_of_the_pages_backend_is_lost_and_comes_back(tmp_path, site):
    path = tmp_path / "pinned.yaml"
    path.write_text(documented("backend.md", "yaml"))
    run = run_chaos(tmp_path / "run", str(path), *SMALL, patch=SLOW_UNTIL_BACK + CORES)
    assert_a_node_was_lost_and_came_back(run)
    # Each node has a fork server, on cores of its own as far as there are enough.
    cores = [path.read_text() for path in (tmp_path / "run").glob("cores-*")]
    assert len(cores) == 2 and all(len(text.split()) == 1 for text in cores), cores
    assert len(set(cores)) == min(2, len(os.sched_getaffinity(0)))


def test_a_command_runs_on_each_of_its_nodes(tmp_path, site):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(HERE / "follower.py", folder)
    # The shell is the launcher on its node, and the script its rank.
    command = ("sh", "-c", "python follower.py 60; exit $?")
    nodes = ("--nodes", "2", "--gpus-per-node", "1", "--backend", "pinned")
    run = run_chaos(folder, "kill-node", "--at", "step=13", "--on", "node=1", *nodes, command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    killed = {(process["role"], process["node"]) for process in run.one("injected").fields["processes"]}
    assert killed == {("launcher", 1), ("rank", 1)}
    logs = [run.folder / "logs" / f"job-node-{node}.log" for node in (0, 1)]
    assert [log.read_text() for log in logs] == ["all steps done\n", ""]
    # The fork servers are nobody's leftovers.
    assert not run.of("orphans_ended")
