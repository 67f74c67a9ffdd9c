"""A run once more from its log, and a failed one made small."""

import pytest

from chaos.experiment.reading import load
from chaos.language.target import Target
from tests.integration.runs import SMALL, ChaosRun, assert_sound, paced, read_run, run_chaos

pytestmark = pytest.mark.nightly

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


def test_a_replay_affects_the_same_ranks_at_the_same_steps(tmp_path):
    # Training has begun by then on a slow machine, and is not over on a fast one.
    when = ("--at", "time=4s", "--seed", "5", "--steps", "60")
    first = run_chaos(tmp_path, "kill-process", *when, *SMALL, patch=paced(0.1))
    affected = first.one("injected")
    code, _, stderr = chaos(tmp_path / "again", tmp_path / "out", "replay", "latest", "--json")
    assert code == 0, stderr
    (folder,) = (tmp_path / "out").glob("kill-process-replay/2*")
    again = read_run(folder, code, stderr)
    assert_sound(again, 60)
    assert again.one("injected").step == affected.step
    assert again.one("injected").fields["ranks"] == affected.fields["ranks"]
    code, _, stderr = chaos(tmp_path / "none", tmp_path / "out", "replay", "latest", "--only", "3")
    assert (code, "no incident 3" in stderr) == (4, True)


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


def test_a_run_that_passed_is_not_shrunk(tmp_path):
    run_chaos(tmp_path, "kill-process", "--on", "role=coordinator", "--at", "step=5", "--steps", "12", *SMALL)
    code, _, stderr = chaos(tmp_path / "shrink", tmp_path / "out", "shrink")
    assert (code, "only a run that failed can be shrunk" in stderr) == (4, True)
