"""One table says what is always checked: the judging applies it, `chaos gates` prints it, and so does the manual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.judging import always_checked
from harness.judging.always_checked import CHECKS, GATES, JOBS, Check, kind_of_job
from harness.judging.summarize import summarize
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.planners import names, stops_on_loss
from tests.harness.analysis.test_attempts import restarted
from tests.harness.judging.test_golden_summaries import LOGS
from tests.harness.report.test_verdict_sentences import LOGS as STORIES
from tests.harness.synthetic import shifted

pytestmark = pytest.mark.unit

MANUAL = (Path(__file__).parents[3] / "docs/reference/measuring.md").read_text()
OF = {3: "any job", 2: "the built-in job", 1: "a command"}


def section() -> list[list[str]]:
    """The cells of the rows of the tables under the heading."""
    text = MANUAL.partition("### Always checked\n")[2].partition("\n### ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() != "of"]


def test_the_manual_has_the_table():
    gates = [[JOBS[job], ", ".join(f"`{gate}`" for gate in expressions)] for job, expressions in GATES.items()]
    checks = [[OF[len(check.jobs)], check.about, ", ".join(check.results)] for check in CHECKS]
    assert section() == [*gates, *checks]


def test_the_command_prints_it(capsys):
    assert run_cli(["gates"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for check in CHECKS:
        assert f"- {check.about} (else {', '.join(check.results)})" in text
    for job, expressions in GATES.items():
        assert f"{JOBS[job]}: {', '.join(f'`{gate}`' for gate in expressions)}" in text
    assert run_cli(["gates", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["always_of_job"] == {job: list(expressions) for job, expressions in GATES.items()}
    assert [(one["check"], one["jobs"]) for one in document["checks"]] == [(c.code, list(c.jobs)) for c in CHECKS]


def test_what_it_prints_fits_a_terminal(capsys):
    assert run_cli(["gates"]) == 0
    always, _, _ = capsys.readouterr().out.partition("\nof the run:")
    assert max(map(len, always.splitlines())) <= 80


def test_the_strategies_that_always_restart_are_named():
    restarting = [name for name in names() if stops_on_loss(name)]
    assert restarting == ["checkpoint", "reft"]
    assert " and ".join(restarting) in JOBS["restarting"]
    assert {kind_of_job("mecefo", name) for name in restarting} == {"restarting"}
    assert kind_of_job("mecefo", "mecefo", went_back=True) == "restarting"
    assert kind_of_job("command", "checkpoint", went_back=True) == "command"


@pytest.mark.parametrize("log", [LOGS["node-loss"], LOGS["restart-of-all-ranks"], LOGS["command"]])
def test_a_run_has_the_gates_of_its_kind(log):
    found = summarize(log())
    kind = kind_of_job(found.runtime, found.strategy)
    assert tuple(gate.expression for gate in found.gates if gate.builtin) == GATES[kind]


def not_finite():
    """A command whose loss is not finite in any step after its restart."""
    return [
        shifted(event, loss=float("nan")) if event.kind == "step_committed" and (event.step or 0) > 15 else event
        for event in restarted()
    ]


def test_a_check_that_the_table_does_not_name_is_not_made(monkeypatch):
    assert summarize(not_finite()).verdict == "fail"
    others = tuple(check for check in CHECKS if check.code not in ("finite_loss", "verified_and_recovered", "gates"))
    monkeypatch.setattr(always_checked, "CHECKS", others)
    assert summarize(not_finite()).verdict == "pass"
    of_the_other_kind = Check("finite_loss", "x", ("built-in",), ("fail",))
    monkeypatch.setattr(always_checked, "CHECKS", (of_the_other_kind,))
    assert summarize(not_finite()).verdict == "pass"
    monkeypatch.setattr(always_checked, "CHECKS", (Check("finite_loss", "x", ("command",), ("fail",)),))
    assert summarize(not_finite()).verdict == "fail"


ALL_LOGS = {**LOGS, **STORIES, "a loss of a command": not_finite}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.code}-{len(check.jobs)}")
def test_a_check_leads_to_no_other_verdict_than_it_names(monkeypatch, check):
    alone = {name: log() for name, log in ALL_LOGS.items() if name != "nothing"}
    monkeypatch.setattr(always_checked, "CHECKS", (check,))
    found = {summarize(events).verdict for events in alone.values()}
    assert found <= {"pass", *check.results}
