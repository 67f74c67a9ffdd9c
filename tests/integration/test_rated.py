"""With rated pacing, too, a slow-down shows that a fault caused: padding hides no more than one compute segment."""

from __future__ import annotations

import pytest

from tests.integration.runs import run_chaos

pytestmark = pytest.mark.integration

STEPS = 40
# Far more than two cores need for four ranks, so that the machine's load adds little.
DILATED = ("--nodes", "2", "--gpus-per-node", "2", "--dilation", "12", "--no-twin", "--steps", str(STEPS))


def seconds_by_step(run):
    steps = [event for event in run.events if event.kind == "step_committed"]
    return {e.step: e.fields["committed_monotonic"] - e.fields["began_monotonic"] for e in steps}


def usual_seconds(seconds, before):
    return sorted(seconds[step] for step in range(5, before))[(before - 5) // 2]


@pytest.mark.nightly
def test_a_rank_that_is_three_times_slower_slows_the_job_down(tmp_path):
    fault = ("slow-rank", "--on", "rank=1", "--at", "step=20", "--for", "10steps", "-p", "factor=3")
    run = run_chaos(tmp_path, *fault, *DILATED)
    assert run.summary["pacing"] == "rated"
    seconds = seconds_by_step(run)
    under_fault = sorted(seconds[step] for step in range(22, 29))
    # Its replica waits for it in every microbatch, but while the pipeline fills.
    assert under_fault[3] > 1.5 * usual_seconds(seconds, 20)
    assert run.summary["throughput_drop_ratio"] > 0.3


@pytest.mark.nightly
def test_a_rank_that_hangs_makes_its_step_so_much_longer(tmp_path):
    fault = ("hang-gil", "--on", "rank=1", "--at", "step=20", "--for", "1s")
    run = run_chaos(tmp_path, *fault, *DILATED)
    assert run.summary["pacing"] == "rated"
    seconds = seconds_by_step(run)
    usual = usual_seconds(seconds, 20)
    # All but what one segment takes, which is less than a step.
    assert max(seconds[step] for step in range(20, 23)) > 1.0
    assert usual < 1.0
