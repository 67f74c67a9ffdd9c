"""A check as text: gates first, then tables, claims, and what is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from harness.report.text_table import Table, laid_out
from mecefo_chaos.studies.papers.check import Check
from mecefo_chaos.studies.papers.verdicts import Finding, Gate, Open, gate_word


def check_text(check: Check[Any], width: int = 80, *, with_details: bool = False) -> str:
    """All of it within `width` cells; tables of details only `with_details`."""
    return "\n".join(laid_out(_parts(check, with_details), width))


def _parts(check: Check[Any], with_details: bool) -> Iterator[str | Table]:
    yield f"{check.paper.name}, {check.paper.source}: {check.paper.subject}"
    yield ""
    yield f"gates: {gate_counts(check.gates)}"
    for gate in check.gates:
        yield f"  {gate_word(gate.passed):<9} {gate_line(gate)}"
    hidden = 0
    for section in check.sections:
        if section.is_detail and not with_details:
            hidden += 1
            continue
        yield ""
        yield f"{section.title}{f' ({section.about})' if section.about else ''}"
        yield section.table()
    yield ""
    yield "claims"
    yield from _finding_lines(check.findings)
    yield ""
    yield from _open_lines(check.paper.open_questions)
    yield ""
    yield from check.notes
    if hidden:
        yield f"{hidden} more tables, with every figure: --tables prints them, and the page of --html has them."


def gate_counts(gates: Iterable[Gate]) -> str:
    """How many pass, fail and are undecided."""
    counts = Counter(gate.passed for gate in gates)
    return f"{counts[True]} pass, {counts[False]} fail, {counts[None]} undecided"


def gate_line(gate: Gate) -> str:
    """One gate in a line, without its verdict."""
    tail = f" ({gate.reason})" if gate.reason else ""
    return f"{gate.name}: {gate.value}, limit {gate.limit}, n {gate.n}{tail}"


def _finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Each finding: the verdict, the claim, the figures of the paper and of this check, and the rule."""
    for one in findings:
        yield f"  {one.verdict}: {one.claim}"
        yield f"    paper: {one.paper}"
        yield f"    here: {one.ours}"
        if one.rule:
            yield f"    reproduced if {one.rule}"
        yield f"    {one.reason}"


def _open_lines(questions: Iterable[Open]) -> Iterator[str]:
    """What cannot be decided, and what would decide it."""
    yield "cannot be decided here"
    for one in questions:
        yield f"  {one.question}"
        yield f"    what would decide it: {one.what_decides}"
