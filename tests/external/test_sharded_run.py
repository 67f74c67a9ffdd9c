"""A sharded job from the fault to the report: every look at its ranks finds other sums, and all of it is analysed."""

import sys

import pytest

from chaos.host.run_files import EVENTS_FILE
from harness.judging.summarize import summarize
from harness.run.execute import JUNIT_FILE, REPORT_FILE
from harness.store.log import read_events
from tests.external.jobs import SCRIPTS
from tests.harness.counting import operations, peak_bytes
from tests.integration.runs import run_chaos

pytestmark = pytest.mark.nightly

STEPS, STEP_SECONDS = 100, 0.1
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_a_sharded_job_that_is_looked_at_in_every_step_has_its_report(tmp_path, monkeypatch):
    """FSDP2: each rank holds its own half of every parameter."""
    # torchrun (2.13) gives a second attempt the first one's addresses without it.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    command = [*TORCHRUN, "--max-restarts", "2", str(SCRIPTS / "dcp.py"), str(STEPS), str(STEP_SECONDS)]
    finished = run_chaos(tmp_path, "kill-process", "--at", "step=90", "--on", "rank=1", command=command)
    summary = finished.summary
    assert (summary["verdict"], finished.exit_code) == ("pass", 0), summary["reasons"]
    assert (summary["steps_committed"], summary["attempts"]) == (STEPS, 2)
    # Checkpoints are written at every fourth step.
    assert summary["steps_lost"] == summary["steps_repeated"] > 0
    looks = {(event.pid, event.step) for event in finished.of("state_checksums")}
    assert len({step for _, step in looks}) > 64
    assert {REPORT_FILE, JUNIT_FILE, "summary.json"} <= {path.name for path in finished.folder.iterdir()}
    log = read_events(finished.folder / EVENTS_FILE).events
    state = log.state
    replicas = state.timeline.replicas
    assert replicas is not None and replicas.differences == () and replicas.failure is None
    events = list(log)
    # Some fifty operations and two hundred bytes for each event and each sum of a tensor.
    assert operations(lambda: summarize(events)) < 500 * state.size
    assert peak_bytes(lambda: summarize(events)) < 2_000 * state.size
