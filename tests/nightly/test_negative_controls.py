"""Further runs that must not pass."""

import os
import signal

import pytest

from tests.integration.runs import PATIENT, SMALL, ChaosRun, read_run, run_chaos
from tests.integration.test_negative_controls import (
    DO_NOTHING,
    KILL,
    NEVER_BEGIN,
)

pytestmark = pytest.mark.nightly


def test_injector_that_does_nothing_is_inconclusive(tmp_path):
    run = run_chaos(tmp_path, *KILL, patch=PATIENT + DO_NOTHING)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["verified"], incident["evidence"]) == (False, None)
    assert "still running" in incident["unverified_reason"]
    assert "could not be verified" in run.summary["reasons"][0]
    assert run.summary["steps_committed"] == 20, "the held ranks were not let go"
    assert run.of("residue")[0].fields["undo_pending"] == []


def test_job_whose_nodes_are_gone_before_its_first_step_has_failed_once_nobody_will_start_one(tmp_path):
    options = ("kill-node", "--at", "time=0s", "--on", "node=1", "--repair", "4s", "--steps", "20", *SMALL)
    with ChaosRun(tmp_path, ["run", *options], patch=NEVER_BEGIN) as run:
        run.wait_for("verified")
        first = run.wait_for("process_started", role="supervisor", started_node=0)
        os.kill(first.fields["started_pid"], signal.SIGKILL)
        # Nobody is there, and still one is to come.
        run.wait_for("repair_started")
        # By the supervisor that has started it.
        again = run.wait_for("process_started", role="rank", rank_attempt=2)
        os.kill(again.pid, signal.SIGKILL)
        exit_code = run.wait()
        finished = read_run(run.folder, exit_code)
    assert exit_code == 1, finished.summary["reasons"]
    (failed,) = finished.of("job_failed")
    assert failed.fields["reason"].startswith("all nodes were gone before the first step")
