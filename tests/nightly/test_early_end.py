"""Gates that do not end a run, and one that waits for its time."""

import pytest

from tests.integration.runs import run_chaos
from tests.integration.test_early_end import aborted

pytestmark = pytest.mark.nightly


def test_a_recovery_that_does_not_come_ends_the_run_when_its_time_is_over(tmp_path):
    file = tmp_path / "paused.yaml"
    file.write_text(
        "name: paused\njob: {nodes: 2, gpus_per_node: 2, dilation: off, steps: 400, strategy: ndb}\n"
        "faults: [{kind: pause-node, at: step=8, for: 60s}]\n"
        'gates: [{gate: "recovery < 100ms", abort_on_fail: true}]\ntwin: false\n'
    )
    run = run_chaos(tmp_path, str(file))
    event = aborted(run, "recovery < 100ms")
    assert event.fields["value"] > 0.1
    assert "is already" in event.fields["reason"]
    assert "abort_on_fail: true" in (run.folder / "experiment.yaml").read_text()
    # What was stopped goes on before it is ended: it was undone, in order.
    assert run.one("undone").fields["evidence"]


def test_what_holds_ends_nothing(tmp_path):
    file = tmp_path / "holds.yaml"
    gates = (
        "recovery < 10min",
        "steps_lost == 0",
        "samples_lost == 0",
        "wall_clock < 1000 min",
        "step_seconds max < 10min",
    )
    lines = "".join(f"  - {{gate: {gate}, abort_on_fail: true}}\n" for gate in gates)
    file.write_text(
        "name: holds\njob: {nodes: 2, gpus_per_node: 2, dilation: off, steps: 20, strategy: ndb}\n"
        f"faults: [{{kind: kill-node, at: step=8, repair: 5steps}}]\ngates:\n{lines}twin: false\n"
    )
    run = run_chaos(tmp_path, str(file))
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), run.summary["reasons"]
    assert run.of("aborted") == []
    assert all(gate["passed"] for gate in run.summary["gates"])
