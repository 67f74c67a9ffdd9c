"""The verdict as JUnit XML, which every CI system shows: a test case for each gate and for each fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from harness.analysis.words import one_line
from harness.report import wording

_BAD = ("failure", "error")
_PROPERTIES = (
    *("verdict", "exit_code", "status", "seed", "experiment_hash", "strategy", "steps_planned", "steps_committed"),
    *("steps_lost", "samples_lost", "throughput_drop_ratio", "loss_deviation_ratio", "goodput_ratio"),
)
_STOPPED = ("halted", "interrupted", "aborted")
"""How a run ends that was not allowed to come to its end: what was not reached by then is skipped, no error."""


def render(summary: Mapping[str, Any]) -> str:
    """One test suite as text: a case for each gate and each fault, and one for the verdict where they do not show it.

    What could not be decided is an error: a run that proves nothing must not look green. The elements are those that
    Jenkins' schema of JUnit's reports knows (junit-10.xsd of its xUnit plug-in).
    """
    return _text(_suite(summary))


def render_all(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Several runs as text: a test suite for each, see `render`. Their names have to differ."""
    suites = ElementTree.Element("testsuites")
    suites.extend(_suite(summary) for summary in summaries)
    return _text(suites)


def _text(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(summary: Mapping[str, Any]) -> ElementTree.Element:
    name = one_line(summary.get("name") or "run")
    verdict = str(summary.get("verdict"))
    is_stopped = verdict == "halted" or summary.get("status") in _STOPPED
    suite = ElementTree.Element("testsuite", name=f"chaos.{name}", time=_seconds(summary.get("wall_clock_seconds")))
    properties = ElementTree.SubElement(suite, "properties")
    for key in _PROPERTIES:
        if summary.get(key) is not None:
            ElementTree.SubElement(properties, "property", name=key, value=one_line(summary[key]))
    for gate in summary.get("gates") or ():
        _gate(suite, name, gate, is_stopped)
    for index, incident in enumerate(summary.get("incidents") or ()):
        _incident(suite, name, index, incident, is_stopped)
    told = any(case.find(tag) is not None for case in suite.iter("testcase") for tag in _BAD)
    # A verdict beyond the gates and faults (a dirty host, an interrupt) needs a case of its own to be seen.
    if verdict not in ("pass", "fail") or (verdict == "fail" and not told) or suite.find("testcase") is None:
        case = _case(suite, name, "run", "verdict")
        if verdict != "pass":
            _result(
                case, "failure" if verdict == "fail" else "error", f"{verdict}: {wording.headline(summary)}", summary
            )
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _gate(suite: ElementTree.Element, name: str, gate: Mapping[str, Any], is_stopped: bool) -> None:
    case = _case(suite, name, "gates", one_line(gate.get("expression")))
    value, reason = wording.gate_value(gate), one_line(gate.get("reason") or "")
    passed = gate.get("passed")
    if gate.get("decided_by"):
        word = wording.gate_word(gate)
        _result(case, "skipped", f"{gate['decided_by']}; in this run alone: {word}, {value}")
    elif passed is True:
        ElementTree.SubElement(case, "system-out").text = f"value: {value}"
    elif passed is False:
        wanted = f", and the gate wants {one_line(gate.get('expression'))}"
        _result(case, "failure", f"{reason or f'the value is {value}'}{wanted}")
    elif is_stopped:
        _result(case, "skipped", f"the run was stopped before this could be decided{f': {reason}' if reason else ''}")
    else:
        _result(case, "error", f"cannot be decided: {reason or 'its figure was not measured'}")


def _incident(suite: ElementTree.Element, name: str, index: int, incident: Mapping[str, Any], is_stopped: bool) -> None:
    case = _case(suite, name, "faults", wording.incident_title(index, incident))
    case.set("time", _seconds(wording.recovery_seconds(incident)))
    open_tag = "skipped" if is_stopped else "error"
    failure = wording.recovery_words(incident)
    if not incident.get("verified"):
        _result(case, open_tag, wording.effect_words(incident))
    elif failure:
        _result(case, open_tag if wording.has_recovered(incident) is None else "failure", failure)
    else:
        ElementTree.SubElement(case, "system-out").text = wording.effect_words(incident)


def _case(suite: ElementTree.Element, name: str, group: str, title: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"chaos.{name}.{group}", name=title, time="0.000")


def _result(case: ElementTree.Element, tag: str, message: str, summary: Mapping[str, Any] | None = None) -> None:
    element = ElementTree.SubElement(case, tag, message=one_line(message))
    reasons = [one_line(reason) for reason in (summary or {}).get("reasons") or ()]
    if reasons:
        element.text = "\n".join(reasons)


def _seconds(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "0.000"
