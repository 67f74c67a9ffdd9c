"""Further restarts of all ranks."""

from __future__ import annotations

import pytest

from harness.run.restarts import ORDER_AGAIN_SECONDS
from tests.integration.runs import run_chaos
from tests.integration.test_restart import EVERY, JOB, assert_restarted, reason_of_failure

pytestmark = pytest.mark.nightly


def test_before_the_first_checkpoint_they_begin_anew(tmp_path):
    run = run_chaos(tmp_path, "kill-process", "--at", "step=6", "--repair", "200ms", *JOB, "--no-twin")
    assert_restarted(run, at=6, since=0)
    assert not run.of("checkpoint_restored")
    # Said nowhere, and so as often as is usual.
    assert run.of("run_started")[0].fields["experiment"]["job"]["checkpoint"]["every_steps"] == 20


def test_a_rank_that_ends_at_every_start_ends_the_job_and_is_named(tmp_path):
    # Later than it is looked whether all of them run, and before its hello.
    patch = f"""import sys, time
if 'harness.backends.forkserver' in sys.orig_argv:
    from mecefo_runtime.training.trainer import Trainer

    begin = Trainer.__init__

    def fail(self, job, identity, *others):
        if identity.rank == 2 and identity.attempt > 1:
            time.sleep({1.5 * ORDER_AGAIN_SECONDS})
            raise RuntimeError("no memory")
        begin(self, job, identity, *others)

    Trainer.__init__ = fail
"""
    reason = reason_of_failure(tmp_path, patch)
    assert reason.startswith("rank 2 ended 3 times in a row before training could begin")
    assert "The newest checkpoint is of step 8" in reason


def test_one_that_hears_nothing_is_killed(tmp_path):
    run = run_chaos(
        tmp_path, "pause-process", "--at", "step=12", "--for", "30s", *JOB, "--no-twin", "--checkpoint-every", "8"
    )
    assert_restarted(run, at=12, since=EVERY)
    (frozen,) = run.one("injected").fields["ranks"]
    ends = {
        e.fields["exited_rank"]: e.fields["exit"]
        for e in run.of("process_exited")
        if e.fields.get("exited_rank") is not None
    }
    assert frozen in ends


def test_a_rank_that_dies_at_the_same_step_every_time_ends_the_job_and_is_named(tmp_path):
    patch = """import os, sys
if 'harness.backends.forkserver' in sys.orig_argv:
    from mecefo_runtime.step.step import Stepper

    run = Stepper.run

    def fail(self, epoch, step):
        if self._rank == 2 and step == 12 and os.environ["MECEFO_ATTEMPT"] != "1":
            os._exit(9)
        return run(self, epoch, step)

    Stepper.run = fail
"""
    reason = reason_of_failure(tmp_path, patch)
    assert reason.startswith("no step beyond 11 was committed after the last 2 restarts: rank 2 was lost, 2 times")
