"""Repeated runs of one experiment in CI formats: the results of each, and the gates on the median."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.analysis.words import one_line
from harness.comparison.sample import Run, RunSet
from harness.comparison.verdicts import MedianGate, SetVerdict, known_outcome
from harness.judging.gate_reasons import gate_text
from harness.judging.gates import Gate, GateError
from harness.judging.summary import UNKNOWN, GateResult, Summary
from harness.judging.verdict import EXIT_CODES, GATE_FAILED, GATE_UNDECIDED
from harness.report import github, junit
from mecefo_runtime.system.reason import Reason

MEDIAN_DECIDES = "the median over the runs decides"


def junit_of(found: RunSet, verdict: SetVerdict, summaries: Sequence[Summary]) -> str:
    """A JUnit report with a suite for each run, and one for what is judged on the median over all of them.

    `summaries` are those of the runs that there are, in the order of the rounds.
    """
    return junit.render_all(list(_single_runs(found, summaries)), MEDIAN_DECIDES, as_summary(found, verdict))


def github_of(found: RunSet, verdict: SetVerdict) -> tuple[str, list[str]]:
    """What a GitHub workflow is told: the summary of the step in Markdown, and its annotations."""
    summary = as_summary(found, verdict)
    runs = [
        (str(run.round), run.verdict, one_line(run.error or (run.folder or "").removeprefix("../../")))
        for sample in found.samples
        for run in sample.runs
    ]
    title = f"{found.name}, {len(runs)} of {found.num_rounds} runs"
    return github.markdown_of_runs(replace(summary, name=title), runs), github.workflow_commands(summary)


def as_summary(found: RunSet, verdict: SetVerdict) -> Summary:
    """What the runs come to together, as the summary of a run: without figures."""
    return replace(
        UNKNOWN,
        name=found.name,
        verdict=verdict.verdict,
        exit_code=verdict.exit_code,
        status=found.status,
        reasons=verdict.reasons,
        reason_codes=verdict.reason_codes,
        gates=tuple(_gate(gate) for gate in verdict.gates),
    )


def _single_runs(found: RunSet, summaries: Sequence[Summary]) -> Iterator[Summary]:
    told = iter(summaries)
    for run in (run for sample in found.samples for run in sample.runs):
        name = f"{found.name}.run-{run.round}"
        if run.error is not None:
            code = EXIT_CODES[known_outcome(run.verdict)]
            why = Reason("no_run", sentence=run.error)
            yield replace(
                UNKNOWN, name=name, verdict=run.verdict, exit_code=code, reasons=(run.error,), reason_codes=(why,)
            )
        else:
            yield replace(_but_gates(next(told), run), name=name)


def _but_gates(summary: Summary, run: Run) -> Summary:
    """The summary of a single run as it counts among others: without a word on the gates that were asked for."""
    asked = {gate.expression for gate in summary.gates if not gate.builtin}
    kept = summary.reasons_without(lambda one: one.code in (GATE_FAILED, GATE_UNDECIDED) and one.get("gate") in asked)
    return replace(
        summary,
        verdict=run.verdict_but_gates or summary.verdict,
        reasons=tuple(sentence for _, sentence in kept),
        reason_codes=tuple(code for code, _ in kept if code is not None),
    )


def _gate(gate: MedianGate) -> GateResult:
    try:
        unit = Gate.parse(gate.expression).metric.unit
    except GateError:
        unit = None
    return GateResult(gate.expression, gate.value, gate.passed, reason=gate_text(gate.why), unit=unit, why=gate.why)
