"""Further ways in which the ground is taken from under `chaos`."""

import signal
import time
from pathlib import Path

import pytest

from tests.crash.test_hostile_ground import LONG, SHORT, _fork_server, assert_lost
from tests.integration.runs import (
    PATIENT,
    WAIT_TIMEOUT_SECONDS,
    ChaosRun,
    read_run,
)

pytestmark = pytest.mark.nightly


def test_standard_output_on_a_full_disk(tmp_path):
    with Path("/dev/full").open("wb") as full, ChaosRun(tmp_path, ["run", *SHORT], stdout=full, patch=PATIENT) as run:
        exit_code = run.wait()
        assert "Traceback" not in run.stderr, run.stderr
        assert exit_code == 3
        assert "standard output" in run.stderr
        assert read_run(run.folder, exit_code).summary["verdict"] == "pass"


def test_fork_server_killed_before_the_job(tmp_path):
    with ChaosRun(tmp_path, ["run", *LONG], patch=PATIENT) as run:
        run.wait_for("incidents_planned")
        deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while (server := _fork_server(run)) is None:
            assert run.process.poll() is None, run.stderr
            assert time.monotonic() < deadline, run.stderr
        server.signal(signal.SIGKILL)
        assert_lost(run)
