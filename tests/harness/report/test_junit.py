from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema

from harness.judging.summarize import summarize
from harness.judging.summary import UNKNOWN
from harness.report.junit import render
from tests.harness.summaries import EMPTY, incident, summary
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit


@cache
def schema():
    return xmlschema.XMLSchema(Path(__file__).parent / "junit.xsd")


def suite(raw):
    text = render(raw)
    assert text.startswith("<?xml")
    schema().validate(text)
    return ElementTree.fromstring(text.encode("utf-8"))


def outcomes(raw):
    """Name of every test case -> failure, error, skipped or ok."""
    found = suite(raw)
    result = {}
    for case in found.iter("testcase"):
        tags = [child.tag for child in case if child.tag != "system-out"]
        assert len(tags) <= 1
        result[case.get("name")] = tags[0] if tags else "ok"
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(found.get(attribute)) == list(result.values()).count(tag)
    assert int(found.get("tests")) == len(result)
    return result


FAULT = "incident 0: kill-node on node 1 at step 20 (backward)"
GATE = {"expression": "goodput >= 0.9"}


def test_a_case_for_every_gate_and_every_fault():
    assert outcomes(summary()) == {
        "throughput_drop <= 30%": "ok",
        "recovery_seconds p95 < 5": "ok",
        "steps_lost == 0": "ok",
        FAULT: "ok",
    }


def test_times_are_the_ones_measured():
    found = suite(summary())
    assert found.get("time") == "8.000"
    assert [case.get("time") for case in found.iter("testcase")][-1] == "0.190"


def test_a_failed_gate_is_a_failure_with_its_value():
    raw = summary(verdict="fail", gates=[{**GATE, "value": 0.75, "passed": False}])
    assert outcomes(raw) == {"goodput >= 0.9": "failure", FAULT: "ok"}
    assert suite(raw).find(".//failure").get("message") == "the value is 0.75, and the gate wants goodput >= 0.9"


def test_a_gate_that_cannot_be_decided_is_an_error():
    raw = summary(verdict="inconclusive", gates=[{**GATE, "value": None, "passed": None}])
    assert outcomes(raw) == {"goodput >= 0.9": "error", FAULT: "ok", "verdict": "error"}


def test_after_a_halt_what_was_not_reached_is_skipped():
    unreached = incident(verified=False, recovery_seconds=None, recovered=None)
    raw = summary(verdict="halted", gates=[{**GATE, "value": None, "passed": None}], incidents=[unreached])
    assert outcomes(raw) == {"goodput >= 0.9": "skipped", FAULT: "skipped", "verdict": "error"}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"verified": False, "recovery_seconds": None}, "error"),
        ({"recovery_seconds": None, "recovered": False}, "failure"),
        ({"recovery_seconds": None, "recovered": None}, "error"),
    ],
)
def test_a_fault_without_effect_or_recovery(changes, outcome):
    assert outcomes(summary(verdict="fail", gates=[], incidents=[incident(**changes)])) == {FAULT: outcome}


@pytest.mark.parametrize("verdict", ["inconclusive", "halted", "error", "dirty"])
def test_no_other_verdict_than_pass_is_ever_green(verdict):
    found = outcomes(summary(verdict=verdict, reasons=["because"]))
    assert found["verdict"] == "error"
    error = suite(summary(verdict=verdict, reasons=["because", "so"])).find(".//error")
    assert (error.get("message").endswith("because"), error.text) == (
        (True, "so") if verdict == "halted" else (False, "because\nso")
    )


def test_a_failure_that_no_gate_shows_is_still_shown():
    assert outcomes(summary(verdict="fail"))["verdict"] == "failure"


def test_a_run_without_gates_and_faults_has_its_verdict_as_a_case():
    assert outcomes(EMPTY) == {"verdict": "error"}
    assert outcomes(replace(UNKNOWN, verdict="pass")) == {"verdict": "ok"}


def test_control_characters_and_markup_are_harmless():
    evil = "a\x00\x0b\x1b[31m\ufffe\ud800\u202e\u200b<&\"'>]]>\nb"
    raw = summary(
        verdict="dirty",
        name=evil,
        reasons=[evil],
        incidents=[incident(evidence=evil, target=evil)],
        gates=[{"expression": evil, "value": 1, "passed": False}],
    )
    found = suite(raw)
    assert "<&\"'>]]> b" in found.get("name")
    assert "<&\"'>]]> b" in found.find(".//error").text
    assert not set(render(raw)) & {"\u202e", "\u200b"}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"faults": ()},
        {"faults": (Fault(verified=False),)},
        {"faults": (Fault(fires=False), Fault(step=30, node=2))},
        {"faults": (Fault(recovers=False),), "job_fails": True},
        {"faults": (Fault(undone=False),)},
        {"cut_off_after_step": 30},
        {"ended": "halted"},
        {"ended": "interrupted"},
        {
            "gates": [
                "step_seconds p95 < 1ms",
                "goodput > 99%",
                "no gate at all",
                "recovery < 1",
                "recovery < 1",
                "steps_lost == 0",
            ]
        },
        {"residue": (17,)},
    ],
)
def test_the_report_of_a_run_is_one_that_every_reader_of_the_schema_takes(how):
    raw = summarize(run(**how))
    assert len(outcomes(raw)) >= len(raw.gates) + len(raw.incidents)


def test_the_schema_refuses_what_no_reader_takes():
    good = render(summary())
    for wrong in (
        good.replace("<testcase ", "<testcase status='ok' ", 1),
        good.replace('time="8.000"', 'time="8 s"'),
        good.replace("</testsuite>", "<verdict/></testsuite>"),
        good.replace("system-out", "systemout"),
    ):
        assert wrong != good
        assert not schema().is_valid(wrong)


def test_a_gate_says_its_limit_and_why_it_is_open():
    raw = summary(
        verdict="fail",
        gates=[
            {**GATE, "value": 0.75, "passed": False, "reason": "goodput_ratio is 75.00%"},
            {
                "expression": "loss_deviation < 2%",
                "value": None,
                "passed": None,
                "reason": "loss_deviation_ratio has no value",
            },
        ],
    )
    assert suite(raw).find(".//failure").get("message") == "goodput_ratio is 75.00%, and the gate wants goodput >= 0.9"
    assert suite(raw).find(".//error").get("message") == "cannot be decided: loss_deviation_ratio has no value"


def test_what_a_gate_ended_skips_the_rest():
    raw = summary(verdict="fail", status="aborted", gates=[{**GATE, "value": None, "passed": None, "reason": "r"}])
    assert outcomes(raw)["goodput >= 0.9"] == "skipped"
    assert outcomes(raw)["verdict"] == "failure"
