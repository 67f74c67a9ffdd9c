"""Further restarts of all ranks."""

from __future__ import annotations

import pytest

from harness.run.restarts import ORDER_AGAIN_SECONDS
from tests.integration.runs import run_chaos
from tests.integration.test_restart import JOB, assert_restarted, reason_of_failure

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
