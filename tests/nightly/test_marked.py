"""Further ends of runs that a marked test makes."""

import json
import signal
import subprocess
import time

import pytest

from tests.integration.runs import RUN_TIMEOUT_SECONDS, WAIT_TIMEOUT_SECONDS, event_logs
from tests.integration.test_marked import assert_gone, command

pytestmark = pytest.mark.nightly


def test_an_interrupted_session_ends_its_run_in_order(environment, tmp_path):
    out = tmp_path / "chaos-runs"
    process = subprocess.Popen(
        command("-k", "until_it_is_ended"),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while not any('"step_committed"' in log.read_text() for log in event_logs(out)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=RUN_TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert "KeyboardInterrupt" in said
    assert process.returncode == 2
    (log,) = event_logs(out)
    assert json.loads(log.read_text().splitlines()[-1])["fields"]["reason"] == "interrupted"
    assert_gone(out)


def test_a_run_that_takes_too_long_is_ended_and_fails_its_test(environment, tmp_path):
    done = subprocess.run(
        command("-k", "until_it_is_ended", "--resilience-timeout=0.5"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
    )
    assert "1 failed" in done.stdout
    assert "chaos run took longer than 0.5 s and was ended" in done.stdout
    assert_gone(tmp_path / "chaos-runs")
