"""Snapshots under torchrun: they outlive all ranks, and end with the launcher."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mecefo_runtime.system.events import Event
from tests.integration.runs import paced, processes_of_run
from tests.integration.test_launch import DEADLINE_SECONDS, Torchrun, losses_of

pytestmark = pytest.mark.integration

NUM_STEPS, KILL_STEP = 60, 10
JOB = ("--steps", str(NUM_STEPS), "--seed", "3", "--snapshot-every", "1", "--snapshot-memory-gib", "0.25")
GONE_SECONDS = 15.0
PACED = paced(0.1).replace("harness.backends.forkserver", "mecefo_runtime")


def events_in(log: Path, kind: str) -> list[Event]:
    lines = [line for line in log.read_text().splitlines() if line.startswith('{"time"')]
    return [event for event in map(Event.from_json, (line.encode() for line in lines)) if event.kind == kind]


def test_all_ranks_are_killed_and_those_that_torchrun_starts_go_on_from_memory_and_nothing_is_left(tmp_path: Path):
    log = tmp_path / "coordinator.log"
    options = (*JOB, "--coordinator-log", str(log))
    with Torchrun(tmp_path, *options, ranks=2, restarts=1, patch=PACED) as job:
        job.wait_for_step(KILL_STEP)
        ranks = job.of("rank_started")
        assert len(ranks) == 2
        for rank in ranks:
            # As torchrun does with what it started.
            os.killpg(os.getpgid(rank.pid), signal.SIGKILL)
        job.wait_for_step(2 * KILL_STEP)
        (restored,) = events_in(log, "snapshot_restored")
        # A step takes longer than a snapshot here: at most two intervals are lost.
        assert (restored.step or 0) >= KILL_STEP - 2 and restored.fields["nodes"] == [0]
        committed = job.of("step_committed")
        assert [event.step for event in committed].count(1) == 1, "nothing begins anew"
        first: dict[int | None, float] = {}
        for event in committed:
            assert event.fields["loss"] == pytest.approx(first.setdefault(event.step, event.fields["loss"]), rel=1e-5)
        assert len(processes_of_run(job.mark)) > 3
        job.process.kill()
        job.process.wait(DEADLINE_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS
        while left := processes_of_run(job.mark):
            assert time.monotonic() < deadline, f"left: {left}"
            time.sleep(0.05)
    assert max(losses_of(job)) < NUM_STEPS, "it was ended, and did not end"
