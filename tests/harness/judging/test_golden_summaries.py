"""summary.json stays what it is: the whole document of several logs, keys in their order, value by value.

A change that is wanted: `pytest --update-snapshots`, and look at the diff.
"""

import json
from collections.abc import Callable

import pytest

from mecefo_runtime.system.events import Event
from tests.harness.analysis.test_attempts import restarted
from tests.harness.judging.test_restart_figures import log as restarted_as_a_whole
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit

GATES = ["throughput_drop <= 30%", "recovery_seconds p95 < 5", "step_seconds p95 during < 1ms", "nonsense"]


def _poisoned() -> list[Event]:
    return [shifted(e, loss=float("nan")) if e.kind == "step_committed" else e for e in run(baseline=False)]


LOGS: dict[str, Callable[[], list[Event]]] = {
    "node-loss": lambda: run(gates=GATES),
    "two-faults": lambda: run(faults=(Fault(), Fault(step=40, node=2, role="coordinator", kind="kill-coordinator"))),
    "cut-off": lambda: run(cut_off_after_step=30),
    "unverified": lambda: run(faults=(Fault(verified=False),), baseline=False, residue=(4711,)),
    "job-failed": lambda: run(faults=(Fault(recovers=False),), job_fails=True),
    "loss-not-finite": _poisoned,
    "restart-of-all-ranks": restarted_as_a_whole,
    "command": restarted,
    "nothing": list,
}


@pytest.mark.parametrize("name", LOGS)
def test_a_summary_is_what_it_was(name, snapshot):
    snapshot.check(f"{name}.json", json.dumps(summarized(LOGS[name]()), indent=1) + "\n")
