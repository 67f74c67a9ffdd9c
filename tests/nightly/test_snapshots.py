"""What snapshots in memory must bear: deaths at any moment, and the death of the tool."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.integration.runs import PATIENT, ChaosRun, assert_holders_agree, paced, processes_of_run, read_run
from tests.integration.test_snapshots import MAX_DEVIATION_RATIO, run

pytestmark = pytest.mark.nightly

NUM_KILLS, STEPS_BETWEEN, EVERY_STEPS = 10, 8, 2
GONE_SECONDS = 15.0
SNAPSHOTS = ("--snapshot-every", "1", "--snapshot-protection", "xor")
# Nobody protects anew what nodes had that were lost.
NEVER_AGAIN = """
import sys
if "harness.backends.forkserver" in sys.orig_argv:
    from mecefo_runtime.membership.reprotection import Reprotection
    Reprotection.look = lambda self, is_whole: None
"""


def test_ten_times_all_but_the_snapshot_processes_dies_and_each_time_the_job_goes_on(tmp_path):
    generator = random.Random(14)
    phases = ("data", "forward", "backward", "reduce", "optimizer", "commit")
    steps = [STEPS_BETWEEN * (number + 1) + generator.randrange(STEPS_BETWEEN // 2) for number in range(NUM_KILLS)]
    faults = [f"kind: kill-job, at: {{step: {step}, phase: {generator.choice(phases)}}}" for step in steps]
    num_steps = STEPS_BETWEEN * (NUM_KILLS + 2)
    finished = run(tmp_path, *faults, steps=num_steps, every=EVERY_STEPS, patch=PATIENT + paced(0.15))
    restored = finished.of("snapshot_restored")
    assert len(restored) == NUM_KILLS and not finished.of("checkpoint_restored")
    # Two intervals: the one under way, and the one that is not agreed on yet. A step waits behind its commit here, and
    # snapshots are protected meanwhile: with the next commit they are agreed on.
    lost = [(step, step - 1 - (one.step or 0)) for step, one in zip(steps, restored, strict=True)]
    assert max(num for _, num in lost) <= 2 * EVERY_STEPS, lost
    assert finished.summary["steps_committed"] == num_steps
    assert finished.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    assert_holders_agree(finished)


def test_without_protection_anew_a_second_node_is_one_too_many(tmp_path):
    """The control of the run in which nodes are lost one after the other."""
    finished = run(
        tmp_path,
        "kind: kill-node, on: node=1, at: {step: 33}, repair: 4steps",
        "kind: kill-node, on: node=3, at: {step: 47}, repair: 4steps",
        "kind: kill-job, at: {step: 58, phase: backward}",
        nodes=4,
        gpus=1,
        every=30,
        steps=60,
        patch=PATIENT + paced(0.15) + NEVER_AGAIN,
    )
    assert not finished.of("snapshots_protected") and not finished.of("snapshot_restored")
    (failed,) = finished.of("job_failed")
    assert "every rank" in failed.fields["reason"]


def test_nothing_is_left_after_the_death_of_the_tool(tmp_path):
    """Two of them at the same time: the other one goes on to its end."""
    job = (*SNAPSHOTS, "--nodes", "2", "--gpus-per-node", "2", "--dilation", "off", "--no-twin")
    short = ["run", "kill-job", "--at", "step=10", "--steps", "40", *job]
    long = ["run", "kill-job", "--at", "step=4000", "--steps", "5000", *job]
    with ChaosRun(tmp_path / "killed", long) as killed, ChaosRun(tmp_path / "other", short) as other:
        killed.wait_for("step_committed", step=10)
        os.kill(killed.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while left := [one for one in processes_of_run(killed.mark) if one.pid != killed.process.pid]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        assert other.wait() in (0, 1), other.stderr
        assert read_run(other.folder, 0).of("snapshot_restored")
