"""What the texts and pages of all papers share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from harness import report
from harness.report.text_table import Table
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.verdicts import Finding, Gate, Open, gate_word

_REPORT = Path(report.__file__).parent
_STYLES = (_REPORT / "palette.css", _REPORT / "figures.css", Path(__file__).with_name("page.css"))
NOT_KNOWN = "-"


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title, and what is to be known of it; the columns `left` are words.

    A part of a table that is too wide for a terminal begins with one of the columns `begins`, if there are any.
    """

    title: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    begins: tuple[int, ...] = ()

    def table(self) -> Table:
        """The table alone."""
        return Table(self.head, self.rows, self.left, self.begins)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Collection[int] | None = None,
    begins: Collection[int] = (),
) -> Iterator[Table]:
    """The table, whose columns `left`, by default the first and the last, are words. `begins`: see `Table`."""
    yield Table(head, rows, (0, len(head) - 1) if left is None else left, begins)


def measured_text(figure: Measured | None, form: str, factor: float = 1.0) -> str:
    """The median, the range where there is one, and n; `factor` is of the unit that is shown."""
    if figure is None:
        return NOT_KNOWN
    median, least, greatest = (format(value * factor, form) for value in (figure.median, figure.least, figure.greatest))
    span = "" if least == greatest else f"{least} to {greatest}, "
    return f"{median} ({span}n {figure.n})"


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Each finding: the verdict, the claim, the figures of the paper and of this check, and the rule."""
    for one in findings:
        yield f"  {one.verdict}: {one.claim}"
        yield f"    paper: {one.paper}"
        yield f"    here: {one.ours}"
        if one.rule:
            yield f"    reproduced if {one.rule}"
        yield f"    {one.reason}"


def gate_line(gate: Gate) -> str:
    """One gate in a line."""
    tail = f" ({gate.reason})" if gate.reason else ""
    return f"{gate_word(gate.passed):<9} {gate.name}: {gate.value}, limit {gate.limit}, n {gate.n}{tail}"


def open_lines(questions: Iterable[Open]) -> Iterator[str]:
    """What cannot be decided, and what would decide it."""
    yield "cannot be decided here"
    for one in questions:
        yield f"  {one.question}"
        yield f"    what would decide it: {one.what_decides}"


def styles() -> Markup:
    """The styles of a page, for its `<style>`."""
    return Markup("".join(path.read_text(encoding="utf-8") for path in _STYLES))
