"""The figures of a summary as rows for a reader: what gates can be set on, and the files of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from urllib.parse import quote

from harness.analysis.words import name_seconds
from harness.judging.metrics import METRICS, Metric
from harness.judging.summary import Summary
from harness.report import wording

_FILES: Mapping[str, str] = {
    "events.jsonl": "the event log; every figure is computed from it",
    "summary.json": "every figure",
    "experiment.yaml": "the experiment; `chaos run` repeats it",
    "junit.xml": "the gates as test cases",
    "ledger.jsonl": "changes to the machine, and their undo",
    "logs": "output of the processes",
}


def figures_of_the_run(summary: Summary) -> list[tuple[str, str]]:
    """(name, value) of every figure of the run that a gate can be set on and that was measured."""
    rows = []
    for metric in METRICS.values():
        if not metric.is_per_incident and (values := _values(metric, summary)):
            rows.append((metric.name, figure_text(metric.unit, values[0])))
    return rows


def figures_of_the_incidents(summary: Summary) -> list[tuple[str, str, str, str, int]]:
    """(name, smallest, median, largest, of how many) of every figure that an incident has."""
    rows = []
    for metric in METRICS.values():
        if metric.is_per_incident and (values := _values(metric, summary)):
            low, middle, high = (figure_text(metric.unit, pick(values)) for pick in (min, median, max))
            rows.append((metric.name, low, middle, high, len(values)))
    return rows


def figure_text(unit: str, value: float) -> str:
    """A figure in its unit, as a reader expects it."""
    if unit == "ratio":
        return wording.percent(value, 2)
    return name_seconds(value) if unit == "seconds" else f"{value:,.6g}"


def files(folder: Path | None, page_folder: Path | None) -> list[tuple[str, str, str]]:
    """(name, link from the page, what it is) of the files of a run; the page is in `page_folder`, else beside them."""
    if folder is None:
        return []
    there = Path() if page_folder is None else Path(os.path.relpath(folder, page_folder))
    return [(name, f"./{quote((there / name).as_posix())}", what) for name, what in _FILES.items()]


def _values(metric: Metric, summary: Summary) -> Sequence[float]:
    return [value for value in metric.values(summary) if value is not None]
