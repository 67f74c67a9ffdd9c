"""Ranks that die of no fault of the run: they are told from the fault that the run is about."""

from __future__ import annotations

import os
import signal

import pytest

from mecefo_runtime.system.events import BASELINE_JOB
from tests.integration.runs import (
    PATIENT,
    SMALL,
    ChaosRun,
    Finished,
    assert_nothing_left,
    assert_sound,
    assert_time_adds_up,
    paced,
    read_run,
)

pytestmark = pytest.mark.integration

STEPS = 120
SLOW = ("run", "slow-rank", "--on", "rank=1", "--at", "step=10", "--steps", str(STEPS), *SMALL, "--json")


def run_and_kill(folder, *arguments: str, rank: int, after: str, steps: int) -> Finished:
    """A run, another rank of which is killed so many steps after the event `after`, as the kernel would."""
    with ChaosRun(folder, [*SLOW, *arguments], patch=paced(0.03)) as run:
        run.wait_for(after)
        run.wait_for("step_committed", step=run.newest_step() + steps)
        started = run.wait_for("process_started", started_rank=rank)
        os.kill(started.fields["started_pid"], signal.SIGKILL)
        exit_code = run.wait()
        finished = read_run(run.folder, exit_code, run.stderr)
        assert_nothing_left(run, finished.events)
    return finished


@pytest.mark.nightly
def test_a_rank_that_is_killed_when_the_fault_is_over_is_charged_to_nobody(tmp_path):
    run = run_and_kill(tmp_path, "--for", "10steps", rank=3, after="undone", steps=8)
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    assert_sound(run, STEPS)
    (loss,) = run.summary["unplanned_losses"]
    assert (loss["ranks"], loss["exit_codes"], loss["mixed_with"]) == ([3], [-signal.SIGKILL], [])
    assert any("Rank 3 was lost" in caveat for caveat in run.summary["caveats"])
    (incident,) = run.summary["incidents"]
    # As if nothing had happened: the slow rank was lost to nobody, and there were steps after it.
    assert (incident["diagnosis"]["score"], incident["detection_seconds"]) == ("none", None)
    assert incident["phases_seconds"]["rejoin"] is None
    assert run.summary["false_accusations"] == 0
    assert run.summary["num_steps_after"] >= 5
    assert run.summary["badput_seconds"]["unplanned"] > 0
    assert incident["badput_seconds"]["unplanned"] == 0


@pytest.mark.nightly
def test_a_rank_that_is_killed_under_a_fault_of_another_leaves_the_run_inconclusive(tmp_path):
    run = run_and_kill(tmp_path, "--for", "60steps", rank=3, after="verified", steps=2)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5)
    assert any("Rank 3 was lost" in reason and "incident 0" in reason for reason in run.summary["reasons"])
    assert run.summary["unplanned_losses"][0]["mixed_with"] == [0]


def test_processes_that_are_killed_before_the_fault_and_in_the_baseline_are_told_and_charged_to_nobody(tmp_path):
    """A supervisor, then the coordinator, long before the fault; and a rank of the baseline."""
    small = [option for option in SMALL if option != "--no-twin"]
    fault = ("kill-process", "--on", "rank=3", "--at", "step=60", "--repair", "none", "--steps", "75")
    with ChaosRun(tmp_path, ["run", *fault, *small, "--json"], patch=PATIENT + paced(0.05)) as run:
        run.wait_for("step_committed", step=5)
        os.kill(
            run.wait_for("process_started", role="supervisor", started_node=0).fields["started_pid"], signal.SIGKILL
        )
        run.wait_for("regrouped", reason="loss")
        run.wait_for("step_committed", step=run.newest_step() + 2)
        coordinator = run.wait_for("process_started", role="coordinator")
        os.kill(coordinator.fields["started_pid"], signal.SIGKILL)
        run.wait_for("step_committed", step=5, job=BASELINE_JOB)
        baseline = run.wait_for("process_started", started_rank=2, job=BASELINE_JOB)
        os.kill(baseline.fields["started_pid"], signal.SIGKILL)
        exit_code = run.wait()
        finished = read_run(run.folder, exit_code, run.stderr)
        assert_nothing_left(run, finished.events)
    summary = finished.summary
    assert (summary["verdict"], exit_code) == ("pass", 0), summary["reasons"]
    lost = [(loss["ranks"], loss["role"]) for loss in summary["unplanned_losses"]]
    assert lost == [([0, 1], "supervisor"), ([], "coordinator")]
    assert [loss["mixed_with"] for loss in summary["unplanned_losses"]] == [[], []]
    (incident,) = summary["incidents"]
    assert (incident["diagnosis"]["score"], summary["diagnosis_precision_ratio"]) == ("right", 1.0)
    assert (summary["false_accusations"], incident["badput_seconds"]["unplanned"]) == (0, 0)
    assert summary["badput_seconds"]["unplanned"] > 0
    assert_time_adds_up(summary)
    said = "\n".join(summary["caveats"])
    assert "Ranks 0 and 1 and the supervisor of their node were lost" in said
    assert "The coordinator was lost" in said
    assert "fault-free baseline, which was disturbed itself: rank 2 was lost" in said
    assert (summary["baseline_loss"], summary["loss_deviation_ratio"]) == (None, None)
