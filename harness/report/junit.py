"""The verdict as JUnit XML, which every CI system shows: a test case for each gate and for each fault."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from harness.analysis.words import one_line
from harness.judging.summary import GateResult, IncidentSummary, Summary
from harness.report import wording

_BAD = ("failure", "error")
_PROPERTIES = (
    *("verdict", "exit_code", "status", "seed", "experiment_hash", "strategy", "steps_planned", "steps_committed"),
    *("steps_lost", "samples_lost", "throughput_drop_ratio", "loss_deviation_ratio", "goodput_ratio"),
)
_STOPPED = ("halted", "interrupted", "aborted")
"""How a run ends that was not allowed to come to its end: what was not reached by then is skipped, no error."""


def render(summary: Summary) -> str:
    """One test suite as text: a case for each gate and each fault, and one for the verdict where they do not show it.

    What could not be decided is an error: a run that proves nothing must not look green. The elements are those that
    Jenkins' schema of JUnit's reports knows (junit-10.xsd of its xUnit plug-in).
    """
    return _text(_suite(summary))


def render_all(runs: Sequence[Summary], gates_decided_by: str, together: Summary) -> str:
    """Several runs as text: a test suite for each, see `render`, and one for what they come to `together`.

    Their names have to differ. `gates_decided_by` says what decides the gates that were asked for, instead of one run.
    """
    suites = ElementTree.Element("testsuites")
    suites.extend(_suite(summary, gates_decided_by) for summary in runs)
    suites.append(_suite(together, is_set=True))
    return _text(suites)


def _text(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(summary: Summary, gates_decided_by: str | None = None, *, is_set: bool = False) -> ElementTree.Element:
    name = one_line(summary.name or "run")
    verdict = summary.verdict
    is_stopped = verdict == "halted" or summary.status in _STOPPED
    suite = ElementTree.Element("testsuite", name=f"chaos.{name}", time=_seconds(summary.wall_clock_seconds))
    properties = ElementTree.SubElement(suite, "properties")
    for key in _PROPERTIES:
        if (value := getattr(summary, key)) is not None:
            ElementTree.SubElement(properties, "property", name=key, value=one_line(value))
    for gate in summary.gates:
        _gate(suite, name, gate, is_stopped, None if gate.builtin else gates_decided_by)
    for incident in summary.incidents:
        _incident(suite, name, incident, is_stopped)
    told = any(case.find(tag) is not None for case in suite.iter("testcase") for tag in _BAD)
    # A verdict beyond the gates and faults (a dirty host, an interrupt) needs a case of its own to be seen.
    if verdict not in ("pass", "fail") or (verdict == "fail" and not told) or suite.find("testcase") is None:
        case = _case(suite, name, "run", "verdict")
        if verdict != "pass":
            meaning, reasons = (None, summary.reasons) if is_set else wording.verdict_sentences(summary)
            sentences = [*([] if meaning is None else [meaning]), *reasons]
            tag = "failure" if verdict == "fail" else "error"
            _result(case, tag, ": ".join((verdict, *sentences[:1])), sentences[1:])
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _gate(suite: ElementTree.Element, name: str, gate: GateResult, is_stopped: bool, decided_by: str | None) -> None:
    case = _case(suite, name, "gates", one_line(gate.expression))
    value, reason = wording.gate_value(gate), one_line(gate.reason or "")
    passed = gate.passed
    if decided_by:
        word = wording.gate_word(gate)
        _result(case, "skipped", f"{decided_by}; in this run alone: {word}, {value}")
    elif passed is True:
        ElementTree.SubElement(case, "system-out").text = f"value: {value}"
    elif passed is False:
        wanted = f", and the gate wants {one_line(gate.expression)}"
        _result(case, "failure", f"{reason or f'the value is {value}'}{wanted}")
    elif is_stopped:
        _result(case, "skipped", f"the run was stopped before this could be decided{f': {reason}' if reason else ''}")
    else:
        _result(case, "error", f"cannot be decided: {reason or 'its figure was not measured'}")


def _incident(suite: ElementTree.Element, name: str, incident: IncidentSummary, is_stopped: bool) -> None:
    case = _case(suite, name, "faults", wording.incident_title(incident))
    case.set("time", _seconds(wording.recovery_seconds(incident)))
    open_tag = "skipped" if is_stopped else "error"
    failure = wording.recovery_words(incident)
    if not incident.verified:
        _result(case, open_tag, wording.effect_words(incident))
    elif failure:
        _result(case, open_tag if wording.has_recovered(incident) is None else "failure", failure)
    else:
        restored = incident.state_restored
        said = [wording.effect_words(incident), *([] if restored is None else [wording.state_words(restored)])]
        ElementTree.SubElement(case, "system-out").text = "\n".join(said)


def _case(suite: ElementTree.Element, name: str, group: str, title: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"chaos.{name}.{group}", name=title, time="0.000")


def _result(case: ElementTree.Element, tag: str, message: str, more: Sequence[str] = ()) -> None:
    element = ElementTree.SubElement(case, tag, message=one_line(message))
    if more:
        element.text = "\n".join(map(one_line, more))


def _seconds(value: float | None) -> str:
    return f"{value or 0.0:.3f}"
