"""Gates that end a real run (`abort_on_fail`), and what a GitHub workflow is told of it."""

import pytest

from tests.integration.runs import SMALL, run_chaos

pytestmark = pytest.mark.integration


def aborted(run, gate):
    """What must hold of every run that `gate` ended; returns the event."""
    assert (run.exit_code, run.summary["verdict"], run.summary["status"]) == (1, "fail", "aborted")
    (event,) = run.of("aborted")
    assert event.fields["gate"] == gate
    assert run.summary["reasons"][0].startswith(f"gate '{gate}' failed: ")
    answers = {one["expression"]: one["passed"] for one in run.summary["gates"]}
    assert answers[gate] is False
    (residue,) = run.of("residue")
    assert (residue.fields["processes"], residue.fields["undo_pending"], residue.fields["left"]) == ([], [], [])
    assert run.of("run_ended")[0].fields["reason"] == "aborted"
    return event


def test_a_value_that_comes_too_late_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    gates = ("--abort-unless", "recovery < 1ms", "--gate", "step_seconds max < 10min")
    run = run_chaos(tmp_path, "kill-node", "--at", "step=8", "--repair", "5steps", "--steps", "400", *SMALL, *gates)
    event = aborted(run, "recovery < 1ms")
    assert run.summary["steps_committed"] < 400
    assert event.fields["value"] > 0.001
    answers = {one["expression"]: one["passed"] for one in run.summary["gates"]}
    # Over the whole run, of which the most did not come.
    assert answers["step_seconds max < 10min"] is answers["steps_lost == 0"] is None
    # On standard error, since standard output is one JSON document, which the run's helper has seen to.
    commands = [line for line in run.stderr.splitlines() if line.startswith("::")]
    assert [line.split(" ", 1)[0] for line in commands] == ["::error", *["::warning"] * 4]
    assert "recovery < 1ms" in commands[0]
    assert "| ❌ FAIL | `recovery < 1ms` |" in (tmp_path / "summary.md").read_text()


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
