"""Further faults of processes on a real job."""

import pytest

from tests.integration.runs import IN_RANKS, assert_survived
from tests.integration.test_process_faults import (
    DO_NOTHING,
    IDLE,
    IN_TIME,
    NOTHING,
    SILENT,
    SILENT_STEPS,
    STEPS,
    assert_away_and_back,
    assert_passed,
    run_fault,
)

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"kind": "raise", "exception": "OverflowError", "message": "loss scale"}, 1),
        # As ranks end that have done their training.
        ({"kind": "exit", "code": 0}, 0),
    ],
    ids=["raise", "exit-0"],
)
def test_rank_that_crashes_from_within(tmp_path, fault, code):
    run = run_fault(tmp_path, on="rank=1", at="step=10,phase=backward", repair="5steps", **fault)
    evidence = assert_passed(run)
    assert [process["exit"] for process in evidence["processes"]] == [code]
    exited = next(e for e in run.of("process_exited") if e.fields.get("exited_rank") == 1)
    assert exited.fields["exit"] == code
    assert 1 in {rank for event in run.of("rejoined") for rank in event.fields["ranks"]}


# Padded far beyond what the machine needs, so that its load hides nothing.
@pytest.mark.parametrize(("dilation", "steps"), [(12, 60)])
def test_slow_rank_makes_the_job_slower(tmp_path, dilation, steps):
    fault = {"kind": "slow-rank", "on": "rank=1", "at": "step=21", "factor": 4.0, "for": "5s"}
    run = run_fault(tmp_path, dilation=dilation, steps=steps, **fault)
    evidence = assert_passed(run, steps)
    (process,) = evidence["processes"]
    assert process["stopped_ratio"] > 0.6
    # Not padded, a rank that waits for a busy core anyway loses less by being stopped.
    assert evidence["step_time_ratio"] > (0 if dilation == "off" else 1.3)
    assert evidence["padded_ratio"] == (1.0 if dilation == "off" else 12.0)
    assert not run.of("detected"), "slow is not lost"


@pytest.mark.parametrize("kind", sorted(NOTHING.keys() - {"hang-gil"}))
def test_fault_that_does_nothing_is_inconclusive(tmp_path, kind):
    patch = NOTHING[kind] + "    Fault.verify_timeout_seconds = 2.0\n"
    patch += "    Fault.apply = do_nothing\n" if DO_NOTHING in patch else IN_RANKS + IDLE
    run = run_fault(tmp_path, kind=kind, on="rank=1", at="step=10", patch=patch)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5), run.summary["reasons"]
    (incident,) = run.summary["incidents"]
    assert (incident["verified"], incident["evidence"]) == (False, None)
    assert "its effect was not seen" in run.summary["reasons"][0]
    assert run.summary["steps_committed"] == STEPS
    assert run.of("residue")[0].fields["undo_pending"] == []


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
