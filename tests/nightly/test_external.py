"""Further ends of external jobs."""

import pytest

from tests.integration.runs import ChaosRun, run_chaos
from tests.integration.test_external import FOLLOWER, TORCHRUN, TRAINING

pytestmark = pytest.mark.nightly


def test_the_store_is_whoever_listens_for_the_ranks(tmp_path):
    command = (*TORCHRUN, "--nproc-per-node", "2", TRAINING, "2000", str(tmp_path / "c.pt"))
    with ChaosRun(tmp_path, ["run", "kill-process", "--at", "step=8", "--on", "role=store"], command=command) as run:
        injected = run.wait_for("injected")
        (store,) = injected.fields["processes"]
        # torchrun's own process holds it for its ranks.
        launcher = run.wait_for("process_started", role="launcher")
        assert store["pid"] == launcher.fields["started_pid"]
        assert run.wait() == 1


def test_a_step_that_the_job_does_not_come_to_is_never_fired(tmp_path):
    run = run_chaos(tmp_path, "kill-process", "--at", "step=800", command=(*FOLLOWER, "10"))
    assert run.exit_code == 5
    assert "never fired" in run.one("unverified").fields["reason"]
