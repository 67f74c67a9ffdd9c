"""A fault of somebody else's package, as docs/how-to/extending/fault.md tells it."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.integration.runs import REPOSITORY, SMALL, run_chaos
from tests.plugins import documented, install

pytestmark = pytest.mark.integration


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of every process, in which packages can be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def entry_points_of_document():
    (line,) = re.findall(r'^make-nice = "(.*)"$', documented("fault.md", "toml"), re.MULTILINE)
    return f"[chaos.faults]\nmake-nice = {line}\n"


def listed():
    command = [sys.executable, "-m", "mecefo_chaos", "faults", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return {row["kind"]: row for row in json.loads(done.stdout)}, done.stderr


def test_the_documented_fault_works(tmp_path, site):
    install(site, "nice_faults", documented("fault.md", "python"), entry_points_of_document())
    kinds, stderr = listed()
    assert kinds["make-nice"]["parameters"]["by"]["default"] == 10
    assert stderr == ""
    path = tmp_path / "nice.yaml"
    path.write_text(
        "name: nice\ntwin: false\nfaults: [{kind: make-nice, on: rank=1, at: step=6, by: 7}]\n"
        "job: {nodes: 2, gpus_per_node: 2, steps: 12, dilation: 'off', strategy: ndb}\n"
    )
    run = run_chaos(tmp_path / "run", str(path))
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert run.summary["incidents"][0]["evidence"]["summary"] == "niceness in the kernel: {1: 7}"


@pytest.mark.nightly
def test_it_needs_its_apply(tmp_path, site):
    idle = documented("fault.md", "python").replace(
        "os.setpriority(os.PRIO_PROCESS, owned.process.pid, self.parameters.by)", "pass"
    )
    assert idle != documented("fault.md", "python")
    install(site, "nice_faults", idle, entry_points_of_document())
    # Not what the tests themselves run with.
    niceness = next(number for number in (10, 11) if number != os.getpriority(os.PRIO_PROCESS, 0))
    fault = ("make-nice", "--on", "rank=1", "--at", "step=6", "-p", f"by={niceness}")
    run = run_chaos(tmp_path, *fault, "--steps", "12", *SMALL)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]


@pytest.mark.parametrize(
    ("source", "entry_point", "reason"),
    [
        ("import no_such_module", "broken = broken_faults", "cannot be imported"),
        ("class Fault: pass", "broken = broken_faults:Fault", "neither a Fault"),
        (
            "from chaos.faults.process.kill import KillNode\nclass Twice(KillNode):\n    kind = 'kill-node'",
            "broken = broken_faults:Twice",
            "which chaos.faults.process.kill has already",
        ),
    ],
)
def test_a_broken_plugin_is_named_and_does_no_harm(site, source, entry_point, reason):
    install(site, "broken_faults", source, f"[chaos.faults]\n{entry_point}\n")
    kinds, stderr = listed()
    assert "kill-node" in kinds
    assert reason in stderr
    assert "broken_faults" in stderr
    assert "Traceback" not in stderr
