"""The check of a paper as one value, which text, page and JSON show in the same way.

A paper's own folder computes it: its `check` returns the gates, claims and tables, and keeps as `evidence` what they
were computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from markupsafe import Markup

from harness.report.text_table import Table
from mecefo_chaos.studies.papers.verdicts import Finding, Gate, Open, exit_code_of
from mecefo_runtime.system.json_values import to_json

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, what its check is about, and the title of its plots."""

    name: str
    source: str
    subject: str
    plotted: str
    open_questions: tuple[Open, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title, and what is to be known of it; the columns `left` are words.

    A part of a table that is too wide for a terminal begins with one of the columns `begins`, if there are any. A
    table of `is_detail` has figures that other tables sum up: the text has it only on request.
    """

    title: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    begins: tuple[int, ...] = ()
    is_detail: bool = False

    def table(self) -> Table:
        """The table alone."""
        return Table(self.head, self.rows, self.left, self.begins)


@dataclass(frozen=True, slots=True)
class Check(Generic[E]):
    """Everything that is known of the paper's claims. `figures` are the keys that only this paper's JSON has."""

    paper: Paper
    evidence: E
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    plots: Callable[[], Iterable[Markup]]
    figures: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 5: see `exit_code_of`."""
        return exit_code_of(gate.passed for gate in self.gates)

    def document(self) -> dict[str, Any]:
        """One JSON document; ratios are of 1, seconds are the device's unless they are called real."""
        return {
            "paper": self.paper.source,
            "exit_code": self.exit_code,
            "gates": [to_json(gate) for gate in self.gates],
            **self.figures,
            "findings": [asdict(finding) for finding in self.findings],
            "open": [asdict(one) for one in self.paper.open_questions],
            "notes": list(self.notes),
        }
