"""Exact takeover: the losses are the fault-free twin's, and those who hold the same layer hold the same parameters."""

import json

import pytest

from mecefo_runtime.events import MAIN_JOB, TWIN_JOB
from mecefo_runtime.layout import Layout
from tests.integration.runs import assert_survived, run_chaos

pytestmark = pytest.mark.integration

# Measured: 4e-7 over 60 steps (float32 sums in another order); a wrong weight of one microbatch gives 1e-2.
MAX_DEVIATION_RATIO = 1e-4
# In the ranks: at the end of the job each tells what it holds, as {unit: [checksum, norm of its parameters]}.
TELL_HOLDINGS = """
import sys

if "harness.backends.forkserver" in sys.orig_argv:
    import json

    from mecefo_runtime.trainer import Trainer

    train = Trainer._train

    def train_and_tell(self):
        is_over = train(self)
        if is_over:
            held = {name: [unit.checksum(), float(unit.parameters.norm())] for name, unit in self._units.items()}
            self._emitter.emit("warning", message=json.dumps(held))
        return is_over

    Trainer._train = train_and_tell
"""


def test_losses_equal_the_twins_through_loss_and_rejoin(tmp_path):
    run = run_chaos(
        tmp_path, "kill-node", "--at", "step=20", "--on", "node=1", "--repair", "10steps", "--steps", "60",
        "--strategy", "exact", "--dilation", "off", "--twin", patch=TELL_HOLDINGS,
    )  # fmt: skip
    assert_survived(run, 60, at=20)
    assert run.of("layout")[1].fields["degraded_layers"] == 0
    assert run.summary["twin_loss"] is not None
    assert run.summary["loss_curve_max_deviation_ratio"] < MAX_DEVIATION_RATIO
    ours, twins = (_holdings(run, job) for job in (MAIN_JOB, TWIN_JOB))
    assert ours.keys() == twins.keys()
    for unit, held in ours.items():
        assert len(held) == 4, f"{unit}: one holder in each replica"
        assert len({checksum for checksum, _ in held}) == 1, f"the holders of {unit} differ"
        assert held[0][1] == pytest.approx(twins[unit][0][1], rel=1e-3)


def _holdings(run, job):
    """For every unit what its holders say of it, all of whom must have spoken."""
    layout = Layout.from_dict(run.of("layout", job)[-1].fields["layout"])
    told = {event.rank: json.loads(event.fields["message"]) for event in run.of("warning", job)}
    assert told.keys() == layout.ranks()
    return {unit: [told[rank][unit] for rank in ranks] for unit, ranks in layout.holders().items()}
