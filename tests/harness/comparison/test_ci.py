"""Repeated runs as JUnit and in a GitHub workflow: red where the set is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
import xmlschema

from harness.comparison.ci import github_of, junit_of
from harness.comparison.sample import Run
from harness.comparison.verdicts import judge_repetition
from harness.judging.summarize import summarize
from harness.report.junit import render_all
from tests.harness.comparison.samples import run_set, sample
from tests.harness.report.test_junit import schema
from tests.harness.summaries import summary
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit

GATES = ["throughput_drop <= 25%", "recovery < 1"]


def repeated(*logs, **changes):
    """(set, verdict, summaries) of a repetition, of these logs."""
    summaries = [summarize(events) for events in logs]
    runs = [
        replace(Run.of(one, f"../../synthetic/{n}", n), verdict_but_gates=summarize(events, gates=()).verdict)
        for n, (one, events) in enumerate(zip(summaries, logs, strict=True), 1)
    ]
    found = replace(run_set(replace(sample(0.0), runs=runs), kind="repetition"), num_rounds=len(runs), **changes)
    return found, judge_repetition(found), summaries


def outcomes(text):
    """Suite -> case -> failure, error, skipped or ok."""
    schema().validate(text)
    return {
        suite.get("name"): {
            case.get("name"): next((child.tag for child in case if child.tag != "system-out"), "ok")
            for case in suite.iter("testcase")
        }
        for suite in ElementTree.fromstring(text.encode())
    }


SLOW = {"gates": GATES, "degraded_step_seconds": 0.4}


def test_each_run_has_a_suite_and_the_median_one():
    shown = outcomes(junit_of(*repeated(run(gates=GATES), run(gates=GATES), run(**SLOW))))
    assert list(shown) == ["chaos.kill-node.run-1", "chaos.kill-node.run-2", "chaos.kill-node.run-3", "chaos.kill-node"]
    assert shown["chaos.kill-node"] == dict.fromkeys(GATES, "ok")
    for number in (1, 2, 3):
        own = shown[f"chaos.kill-node.run-{number}"]
        # One of them fails a gate that holds for the median: nothing is red.
        assert {own[gate] for gate in GATES} == {"skipped"}
        assert own["steps_lost == 0"] == "ok"
        assert set(own.values()) == {"ok", "skipped"}


def test_what_fails_for_the_median_is_red_once():
    found, verdict, summaries = repeated(run(gates=GATES), run(**SLOW), run(**SLOW))
    assert verdict.exit_code == 1
    text = junit_of(found, verdict, summaries)
    shown = outcomes(text)
    assert shown["chaos.kill-node"] == {GATES[0]: "failure", GATES[1]: "ok"}
    assert not any("failure" in own.values() for name, own in shown.items() if ".run-" in name)
    assert "fails for the median" in text and "in this run alone: FAIL" in text


def test_what_is_wrong_with_one_run_is_red_there_and_over_all():
    shown = outcomes(junit_of(*repeated(run(gates=GATES), run(gates=GATES, faults=(Fault(undone=False),)))))
    assert set(shown["chaos.kill-node.run-1"].values()) == {"ok", "skipped"}
    assert shown["chaos.kill-node.run-2"]["verdict"] == "error"
    assert shown["chaos.kill-node"]["verdict"] == "error"


def test_a_run_that_there_is_not_and_one_that_was_interrupted():
    found, _, summaries = repeated(run(gates=GATES), run(gates=GATES, ended="interrupted"))
    (sampled,) = found.samples
    found = replace(
        found, samples=[replace(sampled, runs=[Run("error", error="no space left"), *sampled.runs])], status="partial"
    )
    found.samples[0].runs[1:] = [replace(one, round=one.round + 1) for one in found.samples[0].runs[1:]]
    shown = outcomes(junit_of(found, judge_repetition(found), summaries))
    assert shown["chaos.kill-node.run-1"] == {"verdict": "error"}
    assert "error" not in shown["chaos.kill-node.run-2"].values()
    assert shown["chaos.kill-node.run-3"]["verdict"] == "error"
    assert shown["chaos.kill-node"]["verdict"] == "error"


def test_the_schema_wants_suites_that_differ():
    with pytest.raises(xmlschema.XMLSchemaValidationError, match="duplicated"):
        schema().validate(render_all([summary()], "the median decides", summary()))


def test_github_is_told_of_the_medians_and_of_each_run():
    text, commands = github_of(*repeated(run(gates=GATES), run(**SLOW), run(**SLOW))[:2])
    assert "chaos: kill-node, 3 of 3 runs - fail" in text
    assert f"| ❌ FAIL | `{GATES[0]}` |" in text and f"| ✅ pass | `{GATES[1]}` |" in text
    assert "| 1 | ✅ pass | synthetic/1 |" in text and "| 3 | ❌ fail | synthetic/3 |" in text
    assert [line.split("::")[1] for line in commands] == ["error title=kill-node%3A gate failed"]
    assert "fails for the median" in commands[0]
    # What a verdict means for one run does not hold for a set, whose summary has no incidents.
    assert "without a fault" not in github_of(*repeated(run(gates=GATES))[:2])[0]
    assert github_of(*repeated(run(gates=GATES), run(**SLOW), run(gates=GATES))[:2])[1] == []
