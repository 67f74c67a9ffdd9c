"""A check as one HTML page that needs no network and no script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness import report
from harness.report.templates import template
from mecefo_chaos.studies.papers.check import Check
from mecefo_chaos.studies.papers.text import gate_counts, gate_line
from mecefo_chaos.studies.papers.verdicts import gate_word

_HERE = Path(__file__).parent
_REPORT = Path(report.__file__).parent
_STYLES = (_REPORT / "palette.css", _REPORT / "figures.css", _HERE / "page.css")


def render(check: Check[Any]) -> str:
    """The whole page."""
    return template(_HERE, "page.html.j2").render(
        check=check,
        styles=Markup("".join(path.read_text(encoding="utf-8") for path in _STYLES)),
        gate_counts=gate_counts(check.gates),
        gates=[(gate.passed, f"{gate_word(gate.passed)}: {gate_line(gate)}") for gate in check.gates],
        plots=list(check.plots()),
    )
