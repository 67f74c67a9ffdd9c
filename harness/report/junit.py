"""The verdict as JUnit XML, which every CI system shows: a test case for each gate and for each fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from harness.report import wording
from harness.words import one_line

_BAD = ("failure", "error")


def render(summary: Mapping[str, Any]) -> str:
    """One test suite as text. What could not be decided is an error: a run that proves nothing must not look green."""
    name = one_line(summary.get("name") or "run")
    verdict = str(summary.get("verdict"))
    suite = ElementTree.Element("testsuite", name=f"chaos.{name}", time=_seconds(summary.get("wall_clock_seconds")))
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("verdict", "exit_code", "seed", "experiment_hash", "steps_committed", "steps_lost", "goodput_ratio"):
        ElementTree.SubElement(properties, "property", name=key, value=one_line(summary.get(key)))
    for gate in summary.get("gates") or ():
        _gate(suite, name, gate, verdict)
    for index, incident in enumerate(summary.get("incidents") or ()):
        _incident(suite, name, index, incident, verdict)
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
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _gate(suite: ElementTree.Element, name: str, gate: Mapping[str, Any], verdict: str) -> None:
    case = _case(suite, name, "gates", one_line(gate.get("expression")))
    value = wording.gate_value(gate)
    passed = gate.get("passed")
    if passed is True:
        ElementTree.SubElement(case, "system-out").text = f"value: {value}"
    elif passed is False:
        _result(case, "failure", f"the value is {value}")
    elif verdict == "halted":
        _result(case, "skipped", "the run was stopped before this could be decided")
    else:
        _result(case, "error", "cannot be decided: its figure was not measured")


def _incident(suite: ElementTree.Element, name: str, index: int, incident: Mapping[str, Any], verdict: str) -> None:
    case = _case(suite, name, "faults", wording.incident_title(index, incident))
    case.set("time", _seconds(wording.recovery_seconds(incident)))
    open_tag = "skipped" if verdict == "halted" else "error"
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
