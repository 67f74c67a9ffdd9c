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
