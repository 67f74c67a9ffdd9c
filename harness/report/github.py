"""What GitHub shows of a run: a summary of the step in Markdown, and annotations for what failed or is open.

Limits and syntax: https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands (read November
2026): a step's summary holds 1 MiB, a step shows 10 error and 10 warning annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from chaos.user_files import open_output
from harness.analysis.words import name_seconds, one_line
from harness.judging.summary import GateResult, IncidentSummary, Summary
from harness.judging.verdict import GATE_FAILED, GATE_UNDECIDED
from harness.report import wording
from harness.report.reproduction import reproduction

MAX_SUMMARY_BYTES = 1024 * 1024
MAX_ANNOTATIONS = 10
"""Of a kind."""
MAX_ANNOTATION_CHARACTERS = 2000

_CUT = "\n\n*The rest does not fit into a step's summary: see the run's report.*\n"
_SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "❔"}
_GATE_SIGNS = {"pass": "✅", "FAIL": "❌", "undecided": "❔"}


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Whether this is a step of a GitHub workflow, as its runner says."""
    return environment.get("GITHUB_ACTIONS") == "true" or bool(environment.get("GITHUB_STEP_SUMMARY"))


def publish(summary: Summary, folder: Path | None, environment: Mapping[str, str], stream: TextIO) -> None:
    """Append to the step's summary, and print the annotations on `stream`.

    The runner reads annotations from both streams; standard error leaves standard output to the report. That a summary
    cannot be written is said there, and fails nothing: the verdict is the exit code.
    """
    tell(markdown(summary, folder, environment), workflow_commands(summary), environment, stream)


def tell(text: str, commands: Sequence[str], environment: Mapping[str, str], stream: TextIO) -> None:
    """Append `text` to the step's summary, and print `commands` on `stream`; see `publish`."""
    path = environment.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            append(Path(path), text)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            stream.write(f"chaos: cannot write the step's summary {one_line(path)}: {reason}\n")
    else:
        stream.write("chaos: GITHUB_STEP_SUMMARY names no file, so there is no summary of the step\n")
    # A command counts only at the beginning of a line.
    stream.write("".join(f"{line}\n" for line in commands))
    stream.flush()


def append(path: Path, text: str) -> None:
    """Add `text` to the file, cut at the end of a line where the file would become larger than GitHub takes.

    Raises:
        OSError: it cannot be written.
    """
    there = path.stat().st_size if path.exists() else 0
    room = MAX_SUMMARY_BYTES - there
    content = text.encode("utf-8", "replace")
    if len(content) > room:
        content = content[: max(0, room - len(_CUT.encode()))]
        content = content[: content.rfind(b"\n") + 1] + _CUT.encode()
    if len(content) <= room:
        with open_output(path, "ab") as file:
            file.write(content)


def markdown(summary: Summary, folder: Path | None, environment: Mapping[str, str] | None = None) -> str:
    """The summary of a step: verdict, gates, faults, figures, and how to repeat it on another machine."""
    how = reproduction(summary, folder, {"GITHUB_ACTIONS": "true"} | dict(environment or {}))
    lines = [
        *_head(summary, *wording.verdict_sentences(summary)),
        *_gate_table(summary.gates),
        *_incident_table(summary.incidents),
        *_figures(summary),
        "",
        f"To reproduce it, {_text(how.where)}:",
        "",
        "```sh",
        one_line(how.command),
        "```",
        "",
        *(["<details><summary>Caveats</summary>", ""] if summary.caveats else []),
        *(f"- {_text(caveat)}" for caveat in summary.caveats),
        *(["", "</details>", ""] if summary.caveats else []),
    ]
    return "\n".join(lines) + "\n"


def markdown_of_runs(summary: Summary, runs: Sequence[tuple[str, str, str]]) -> str:
    """The summary of a step that ran the same again and again.

    Args:
        summary: what all `runs` come to: name, verdict, reasons, gates.
        runs: number, verdict and place of each, or why there is none.
    """
    rows = [f"| {number} | {_SIGNS.get(verdict, '⛔')} {verdict} | {_text(place)} |" for number, verdict, place in runs]
    table = ["", "| run | alone | |", "|---:|---|---|", *rows] if rows else []
    # What a verdict means for a single run does not hold for a set: its reasons are all that there is to say.
    head = _head(summary, None, summary.reasons)
    return "\n".join([*head, *_gate_table(summary.gates), *table]) + "\n"


def _head(summary: Summary, meaning: str | None, reasons: Sequence[str]) -> list[str]:
    verdict = summary.verdict
    return [
        f"### {_SIGNS.get(verdict, '⛔')} chaos: {_text(summary.name or 'run')} - {verdict}",
        "",
        *([] if meaning is None else [_text(meaning), ""]),
        *(f"- {_text(reason)}" for reason in reasons),
    ]


def workflow_commands(summary: Summary) -> list[str]:
    """The annotations: an error for each failed gate, a warning for each open one, and one for any other verdict."""
    name = one_line(summary.name or "run")
    verdict = summary.verdict
    gates = summary.gates
    errors = [(f"{name}: gate failed", _gate_sentence(gate)) for gate in gates if gate.passed is False]
    warnings = [(f"{name}: gate undecided", _gate_sentence(gate)) for gate in gates if gate.passed is None]
    rest = [reason for _, reason in summary.reasons_without(lambda one: one.code in (GATE_FAILED, GATE_UNDECIDED))]
    if verdict != "pass":
        reasons = "\n".join(one_line(reason) for reason in rest) or wording.headline(summary)
        if verdict == "inconclusive":
            warnings.insert(0, (f"{name}: inconclusive", reasons))
        elif not errors or verdict != "fail":
            errors.insert(0, (f"{name}: {verdict}", reasons))
    return [*_commands("error", errors), *_commands("warning", warnings)]


def command(kind: str, title: str, message: str) -> str:
    """One workflow command on one line; what would end it, or begin another, is escaped as the runner reads it."""
    if len(message) > MAX_ANNOTATION_CHARACTERS:
        message = message[: MAX_ANNOTATION_CHARACTERS - 3] + "..."
    data = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={title}::{data}"


def _commands(kind: str, said: Sequence[tuple[str, str]]) -> list[str]:
    shown = list(said[:MAX_ANNOTATIONS])
    if len(said) > MAX_ANNOTATIONS:
        rest = said[MAX_ANNOTATIONS - 1 :]
        shown[-1] = (f"and {len(rest)} more", "\n".join(message for _, message in rest))
    return [command(kind, title, message) for title, message in shown]


def _gate_sentence(gate: GateResult) -> str:
    return one_line(f"{gate.expression}: {gate.reason or wording.gate_value(gate)}")


def _gate_table(gates: Sequence[GateResult]) -> list[str]:
    if not gates:
        return []
    rows = []
    for gate in gates:
        always = " (always checked)" if gate.builtin else ""
        word = wording.gate_word(gate)
        expression = _code(gate.expression)
        rows.append(f"| {_GATE_SIGNS[word]} {word} | {expression}{always} | {_text(wording.gate_value(gate))} |")
    return ["", "| | gate | value |", "|---|---|---:|", *rows]


def _incident_table(incidents: Sequence[IncidentSummary]) -> list[str]:
    if not incidents:
        return []
    rows = []
    for incident in incidents:
        took = wording.recovery_text(incident)
        recovery = took or wording.recovery_words(incident) or "-"
        if took is not None and incident.state_restored is not None:
            recovery += f", state from {incident.state_restored.rung}"
        title = _text(wording.incident_title(incident))
        rows.append(f"| {title} | {_text(wording.effect_words(incident))} | {_text(recovery)} |")
    return ["", "| fault | effect | recovery |", "|---|---|---:|", *rows]


def _figures(summary: Summary) -> list[str]:
    rows: list[tuple[str, Any, Callable[[Any], str]]] = [
        ("steps committed", summary.steps_committed, str),
        ("throughput drop", summary.throughput_drop_ratio, wording.percent),
        ("outage", summary.outage_seconds or None, name_seconds),
        ("throughput drop while training again", summary.throughput_drop_while_training_ratio, wording.percent),
        ("loss vs. the fault-free baseline", summary.loss_deviation_ratio, wording.percent),
        (
            "goodput",
            summary.goodput_ratio if wording.shows_goodput(summary.wall_clock_seconds) else None,
            wording.percent,
        ),
        ("time of the job", summary.wall_clock_seconds, name_seconds),
        ("approximation", wording.approximation_words(summary), _text),
    ]
    known = [f"| {words} | {write(value)} |" for words, value, write in rows if value is not None]
    return ["", "| figure | |", "|---|---:|", *known] if known else []


def _text(text: object) -> str:
    """`text` as it stands: Markdown and HTML in it would be rendered."""
    escaped = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*_[]#|~!":
        escaped = escaped.replace(sign, f"\\{sign}")
    return escaped.replace("@", "@\u200b")


def _code(text: object) -> str:
    """As code, in a cell of a table: neither a backtick nor a bar may end it."""
    return f"`{one_line(text).replace('`', chr(39)).replace('|', '/')}`"
