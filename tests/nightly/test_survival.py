"""Further moments at which a job loses a node or its leader."""

import pytest

from tests.integration.runs import PATIENT, SMALL, assert_survived, paced, run_chaos
from tests.integration.test_survival import PATCH, REPAIRED, STEPS

pytestmark = pytest.mark.nightly


def test_first_node_can_be_lost(tmp_path):
    run = run_chaos(tmp_path, "kill-node", "--at", "step=10", "--on", "node=0", *REPAIRED, patch=PATCH)
    assert_survived(run, STEPS, at=10)
    assert (run.one("injected").fields["nodes"], run.one("injected").fields["ranks"]) == ([0], [0, 1])


def test_unrepaired_loss_lasts(tmp_path):
    run = run_chaos(
        tmp_path, "kill-node", "--at", "step=10", "--repair", "none", "--steps", "25", *SMALL, patch=PATIENT
    )
    assert_survived(run, 25, at=10, repaired=False)
    assert run.of("repair_started") == []
    assert len(run.of("regrouped")[-1].fields["members"]) == 2
    assert run.of("layout")[-1].fields["degraded_layers"] > 0


def test_trigger_at_a_time(tmp_path):
    # Training has begun by then on a slow machine, and is not over on a fast one.
    trigger = ("--at", "time=5s", "--on", "rank=2", "--repair", "none", "--steps", "150")
    run = run_chaos(tmp_path, "kill-process", *trigger, *SMALL, patch=PATIENT + paced(0.05))
    assert_survived(run, 150, at=None, repaired=False)
    injected = run.one("injected")
    assert injected.monotonic_seconds - run.of("job_started")[0].monotonic_seconds >= 5.0
    before = max(e.step for e in run.of("step_committed") if e.monotonic_seconds <= injected.monotonic_seconds)
    assert injected.step in (before, before + 1)
