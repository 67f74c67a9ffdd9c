"""Marked tests, run by pytest and pytest-xdist as a user runs them: verdicts, reports, JUnit, and an interrupt."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.harness.pytest.test_pytest_plugin import PLUGIN
from tests.integration.runs import GONE_TIMEOUT_SECONDS, REPOSITORY, RUN_TIMEOUT_SECONDS, event_logs

pytestmark = pytest.mark.integration

TESTS = """
import pytest

pytestmark = pytest.mark.chaos(nodes=2, gpus_per_node=2, dilation="off", strategy="ndb", twin=False, repair="5steps")

@pytest.mark.chaos("kill-node", at="step=8", steps=20, gate=["recovery < 10min", "step_seconds p95 < 10min"])
def test_survives(chaos_run):
    assert chaos_run.verdict == "pass"
    assert chaos_run.incidents[0]["recovered"]
    assert [event.kind for event in chaos_run.events()].count("injected") == 1
    assert chaos_run.summary["steps_committed"] == 20
    assert "kill-node on node" in chaos_run.report

@pytest.mark.chaos("kill-node", at="step=8", steps=20, gate={"gate": "recovery < 1ms", "abort_on_fail": True})
def test_fails():
    raise SystemError("it must not come to this")

@pytest.mark.chaos("kill-node", at="step=8", steps=1000000)
def test_goes_on_until_it_is_ended(chaos_run):
    raise SystemError("it must not come to this")

@pytest.mark.chaos("kill-node", at="step=8", steps=12, repair="none", gate="rejoin_seconds < 10min", check=False)
def test_takes_it_as_it_is(chaos_run):
    assert chaos_run.verdict == "inconclusive", chaos_run.reasons
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "COLUMNS": "200",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CHAOS_STATE": str(tmp_path / "state"),
    }


def command(*arguments):
    return [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "-W", "error", *arguments]


def running(out: Path):
    """What still runs of the runs in `out`, by their logs."""
    for log in event_logs(out):
        for line in log.read_text().splitlines():
            event = json.loads(line)
            pid = event["fields"].get("started_pid") if event["kind"] == "process_started" else event["pid"]
            if Path(f"/proc/{pid}").exists():
                yield pid


def assert_gone(out: Path):
    """That nothing of the runs in `out` runs any more; what was killed takes a moment to end."""
    deadline = time.monotonic() + GONE_TIMEOUT_SECONDS
    while left := list(running(out)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.nightly
def test_under_xdist_with_reports_and_junit(environment, tmp_path):
    done = subprocess.run(
        command("-n", "2", "-k", "not until_it_is_ended", "--junitxml=junit.xml", "--resilience-out=runs"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * RUN_TIMEOUT_SECONDS,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "FAILED test_it.py::test_fails - Failed: chaos run: FAIL: gate 'recovery < 1ms' failed" in done.stdout
    assert "Captured chaos run call" in done.stdout
    assert "Recovery from incident 0 (kill-node)" in done.stdout
    assert "it must not come to this" not in done.stdout
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    said = {
        name: {prop.get("name"): prop.get("value") for prop in case.iter("property")} for name, case in cases.items()
    }
    verdicts = {name: properties["chaos_verdict"] for name, properties in said.items()}
    assert verdicts == {"test_survives": "pass", "test_fails": "fail", "test_takes_it_as_it_is": "inconclusive"}
    assert said["test_survives"]["chaos_gate: recovery < 10min"].startswith("pass: ")
    assert said["test_fails"]["chaos_gate: recovery < 1ms"].startswith("FAIL: ")
    assert float(said["test_survives"]["chaos_recovery_seconds_0"]) > 0
    assert (Path(said["test_fails"]["chaos_run"]) / "report.html").is_file()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir() and not path.is_symlink()) == [
        "test_it-test_fails",
        "test_it-test_survives",
        "test_it-test_takes_it_as_it_is",
    ]
