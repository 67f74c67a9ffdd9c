"""Further faults of processes on a real job."""

import pytest

from tests.integration.runs import assert_survived
from tests.integration.test_process_faults import (
    IN_TIME,
    SILENT,
    SILENT_STEPS,
    STEPS,
    assert_away_and_back,
    assert_passed,
    run_fault,
)

pytestmark = pytest.mark.nightly


def test_any_signal_that_ends_a_rank(tmp_path):
    run = run_fault(tmp_path, kind="kill-process", on="rank=1", at="step=10", repair="5steps", signal="SIGABRT")
    assert_survived(run, STEPS, at=10)
    evidence = run.one("verified").fields["evidence"]
    assert [process["exit"] for process in evidence["processes"]] == [-6]


def test_rank_that_is_silent_for_a_while(tmp_path):
    run = run_fault(tmp_path, kind="pause-process", on="rank=1", at="step=10", **IN_TIME, **SILENT)
    evidence = assert_passed(run, SILENT_STEPS)
    assert [process["state"] for process in evidence["processes"]] == ["T"]
    assert_away_and_back(run, 1)
