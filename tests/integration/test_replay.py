"""A run once more from its log, and a failed one made small."""

import pytest

from chaos.experiment.reading import load
from chaos.spec.target import Target
from tests.integration.runs import ChaosRun, run_chaos

pytestmark = pytest.mark.integration

# The loss of a rank changes the layout, which the gate forbids; the loss of the coordinator does not.
TWO_FAULTS = """\
name: too-many
job: {nodes: 2, gpus_per_node: 2, data_parallel: 2, pipeline: 2, steps: 24, dilation: "off", strategy: ndb}
twin: false
faults:
  - {kind: kill-process, on: role=coordinator, at: step=6}
  - {kind: kill-process, on: random, at: "step=12,phase=backward", repair: none}
gates: ["layout_changes == 0"]
"""


def chaos(folder, out, *arguments):
    """A subcommand on the runs in `out`; returns (exit code, standard output, standard error)."""
    with ChaosRun(folder, arguments, out=out) as run:
        return run.wait(), run.stdout, run.stderr


def test_a_failed_run_is_made_as_small_as_it_can_be(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(TWO_FAULTS)
    failed = run_chaos(tmp_path / "first", str(path))
    assert (failed.summary["verdict"], failed.exit_code) == ("fail", 1)
    out = tmp_path / "first/out"
    code, stdout, stderr = chaos(tmp_path / "shrink", out, "shrink", "latest", "--max-runs", "6")
    assert code == 0, stderr
    assert "layout_changes == 0" in stderr.splitlines()[0]
    assert stdout.strip() == str(failed.folder / "shrunk.yaml")
    (fault,) = load(failed.folder / "shrunk.yaml").faults
    assert fault.kind == "kill-process"
    assert fault.on == Target(rank=failed.one("injected", 1).fields["ranks"][0])
    assert fault.at.phase == "backward"
    assert fault.at.step < 12
    again = run_chaos(tmp_path / "again", str(failed.folder / "shrunk.yaml"))
    assert (again.summary["verdict"], again.exit_code) == ("fail", 1)
