"""Runs of one experiment, repeated, as CI systems show them: what each has of its own, and what the median decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.words import one_line
from harness.comparison.sample import Run, RunSet
from harness.comparison.verdicts import MedianGate, SetVerdict
from harness.judging.gates import Gate, GateError
from harness.report import github, junit

MEDIAN_DECIDES = "the median over the runs decides"


def junit_of(found: RunSet, verdict: SetVerdict, summaries: Sequence[Mapping[str, Any]]) -> str:
    """A JUnit report with a suite for each run, and one for what is judged on the median over all of them.

    `summaries` are those of the runs that there are, in the order of the rounds.
    """
    return junit.render_all([*_single_runs(found, summaries), as_summary(found, verdict)])


def github_of(found: RunSet, verdict: SetVerdict) -> tuple[str, list[str]]:
    """What a GitHub workflow is told: the summary of the step in Markdown, and its annotations."""
    summary = as_summary(found, verdict)
    runs = [
        (str(run.round), run.verdict, one_line(run.error or (run.folder or "").removeprefix("../../")))
        for sample in found.samples
        for run in sample.runs
    ]
    title = f"{found.name}, {len(runs)} of {found.num_rounds} runs"
    return github.markdown_of_runs({**summary, "name": title}, runs), github.workflow_commands(summary)


def as_summary(found: RunSet, verdict: SetVerdict) -> dict[str, Any]:
    """What the runs come to together, with the keys of a run's summary."""
    return {
        "name": found.name,
        "verdict": verdict.verdict,
        "exit_code": verdict.exit_code,
        "status": found.status,
        "reasons": list(verdict.reasons),
        "gates": [_gate(gate) for gate in verdict.gates],
    }


def _single_runs(found: RunSet, summaries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    told = iter(summaries)
    for run in (run for sample in found.samples for run in sample.runs):
        name = f"{found.name}.run-{run.round}"
        if run.error is not None:
            yield {"name": name, "verdict": run.verdict, "reasons": [run.error]}
        else:
            yield {**_but_gates(next(told), run), "name": name}


def _but_gates(summary: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The summary of a single run as it counts among others: without a word on the gates that were asked for."""
    asked = [gate for gate in summary.get("gates") or () if not gate.get("builtin")]
    expressions = tuple(f"gate '{gate.get('expression')}' " for gate in asked)
    return {
        **summary,
        "verdict": run.verdict_but_gates or summary.get("verdict"),
        "reasons": [reason for reason in summary.get("reasons") or () if not str(reason).startswith(expressions)],
        "gates": [
            gate if gate.get("builtin") else {**gate, "decided_by": MEDIAN_DECIDES}
            for gate in summary.get("gates") or ()
        ],
    }


def _gate(gate: MedianGate) -> dict[str, Any]:
    try:
        unit = Gate.parse(gate.expression).metric.unit
    except GateError:
        unit = None
    reason = gate.reason.removeprefix(f"gate '{gate.expression}' ")
    return {**gate.to_dict(), "reason": reason, "unit": unit}
