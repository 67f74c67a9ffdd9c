import io
import re

import pytest

from harness.report import github
from tests.harness.summaries import EMPTY, incident, summary

pytestmark = pytest.mark.unit

FAILED = {
    "expression": "goodput >= 90%",
    "value": 0.75,
    "passed": False,
    "reason": "goodput_ratio is 75.00%",
    "unit": "ratio",
}
OPEN = {
    "expression": "loss_deviation < 2%",
    "value": None,
    "passed": None,
    "reason": "loss_deviation_ratio has no value",
}


def published(raw, environment):
    stream = io.StringIO()
    github.publish(raw, None, environment, stream)
    return stream.getvalue()


def unescaped(line):
    """(kind, title, message) of a workflow command, as the runner reads it."""
    kind, title, message = re.fullmatch(r"::(error|warning) title=([^,:\n\r]*)::([^\n\r]*)", line).groups()
    for code, sign in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        title = title.replace(code, sign)
        message = message.replace(code, sign) if code not in ("%3A", "%2C") else message
    return kind, title, message


def commands(raw):
    return [unescaped(line) for line in github.workflow_commands(raw)]


def test_it_is_asked_for_by_the_runner():
    assert github.is_asked_for({"GITHUB_ACTIONS": "true"})
    assert github.is_asked_for({"GITHUB_STEP_SUMMARY": "/x"})
    assert not github.is_asked_for({"GITHUB_ACTIONS": "false", "GITHUB_STEP_SUMMARY": ""})


def test_a_failed_gate_is_an_error_and_an_open_one_a_warning():
    raw = summary(verdict="fail", gates=[FAILED, OPEN], reasons=["gate 'goodput >= 90%' failed: ..."])
    assert commands(raw) == [
        ("error", "synthetic: gate failed", "goodput >= 90%: goodput_ratio is 75.00%"),
        ("warning", "synthetic: gate undecided", "loss_deviation < 2%: loss_deviation_ratio has no value"),
    ]


def test_a_run_that_passed_is_not_annotated():
    assert commands(summary()) == []


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [("inconclusive", "warning"), ("dirty", "error"), ("halted", "error"), ("error", "error"), ("fail", "error")],
)
def test_every_other_verdict_is_annotated_with_its_reasons(verdict, kind):
    ((found, title, message),) = commands(summary(verdict=verdict, reasons=["one", "two"]))
    assert (found, title, message) == (kind, f"synthetic: {verdict}", "one\ntwo")


def test_not_more_of_a_kind_than_github_shows():
    gates = [{**FAILED, "expression": f"goodput >= {n}%"} for n in range(25)]
    gates += [{**OPEN, "expression": f"loss_deviation < {n}%"} for n in range(12)]
    said = commands(summary(verdict="fail", gates=gates))
    errors, warnings = ([c for c in said if c[0] == kind] for kind in ("error", "warning"))
    assert (len(errors), len(warnings)) == (github.MAX_ANNOTATIONS, github.MAX_ANNOTATIONS)
    assert errors[-1][1] == "and 16 more"
    assert all(f"goodput >= {n}%" in "\n".join(c[2] for c in errors) for n in range(25))


def test_nothing_in_a_run_becomes_a_command_of_its_own():
    evil = "100%\n::error title=x::y\r\n%0A, a: b"
    raw = summary(verdict="fail", name=evil, gates=[{**FAILED, "expression": evil, "reason": evil}], reasons=[evil])
    for line in github.workflow_commands(raw):
        assert "\n" not in line and "\r" not in line
        assert line.count("::") >= 2
    said = published(raw, {})
    assert [line for line in said.splitlines() if line.startswith("::")] == github.workflow_commands(raw)
    assert commands(raw)[0][1].startswith("100% ::error title=x::y")


def test_a_long_message_is_cut():
    ((_, _, message),) = commands(summary(verdict="fail", gates=[{**FAILED, "reason": "x" * 9000}]))
    assert len(message) == github.MAX_ANNOTATION_CHARACTERS


def test_the_summary_says_what_the_report_says(tmp_path):
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    assert published(summary(verdict="fail", gates=[FAILED, OPEN]), {"GITHUB_STEP_SUMMARY": str(file)}).count("::") == 4
    text = file.read_text()
    assert text.startswith("before\n### ❌ chaos: synthetic - fail\n")
    assert "| ❌ FAIL | `goodput >= 90%` | 75.00% |" in text
    assert "| ❔ undecided | `loss_deviation < 2%` | no value |" in text
    assert "incident 0: kill-node on node 1 at step 20 (backward)" in text
    assert "| throughput drop | 26.8% |" in text
    assert "chaos run experiment.yaml" in text


def test_an_empty_summary_is_one_too():
    assert "inconclusive" in github.markdown(EMPTY, None)
    assert [kind for kind, _, _ in commands(EMPTY)] == ["warning"]


def test_markup_in_a_run_is_text():
    evil = "<script>alert(1)</script> **b** `c` | d [e](http://f) @everyone\n# g"
    text = github.markdown(
        summary(name=evil, incidents=[incident(evidence=evil)], gates=[{**FAILED, "expression": evil}]), None
    )
    assert "<script>" not in text.replace("`<script>alert(1)</script>", "")
    assert "\n# g" not in text and "@everyone |" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4) for row in rows), rows


@pytest.mark.parametrize("there", [0, 1, 1024 * 1024 - 200, 1024 * 1024 - 10, 1024 * 1024, 1024 * 1024 + 5])
def test_a_step_never_gets_more_than_github_takes(tmp_path, there):
    file = tmp_path / "summary.md"
    file.write_text("x" * there)
    long = summary(caveats=["ä" * 1000 for _ in range(1000)])
    for _ in range(3):
        published(long, {"GITHUB_STEP_SUMMARY": str(file)})
    size = file.stat().st_size
    assert size <= max(there, github.MAX_SUMMARY_BYTES)
    file.read_text()
    if there == 0:
        assert "The rest does not fit" in file.read_text()


@pytest.mark.parametrize("path", ["/nowhere/summary.md", "/", "a\0b"])
def test_a_summary_that_cannot_be_written_fails_nothing(path):
    assert "cannot write the step's summary" in published(summary(), {"GITHUB_STEP_SUMMARY": path})


def test_without_a_file_there_are_annotations_only():
    said = published(summary(verdict="fail", gates=[FAILED]), {})
    assert "GITHUB_STEP_SUMMARY names no file" in said
    assert "::error title=synthetic%3A gate failed::" in said
