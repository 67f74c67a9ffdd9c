"""Reads dashboards as Grafana would: their queries, and what they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards import DASHBOARDS, as_values
from harness.exporter.families import FAMILIES as JOB
from mecefo_runtime.training.exporter import FAMILIES as RANK

DOCS = Path(__file__).resolve().parents[2] / "docs"

_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})")
_WORD = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Query:
    """A query of a panel or an annotation; `words` are the labels that its texts name."""

    dashboard: str
    title: str
    expression: str
    is_instant: bool
    words: frozenset[str]

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title}: {self.expression}"


def all_queries() -> list[Query]:
    """The queries of all panels and annotations of all dashboards."""
    return [query for name, make in DASHBOARDS.items() for query in _queries(name, as_values(make()))]


def all_panels() -> list[tuple[str, Mapping[str, Any]]]:
    """(dashboard, panel) of all panels that are no headings."""
    panels = [(name, panel) for name, make in DASHBOARDS.items() for panel in as_values(make())["panels"]]
    return [(name, panel) for name, panel in panels if panel["type"] != "row"]


def table_of_metrics() -> set[str]:
    """The names that docs/reference/metrics.md lists."""
    return {*JOB, *RANK}


def selectors(expression: str) -> list[str]:
    """Every selector of series in an expression; ours all have matchers."""
    return ["".join(parts) for parts in _SELECTOR.findall(expression)]


def metrics(expression: str) -> set[str]:
    """The names of the metrics in an expression."""
    return {name for name, _ in _SELECTOR.findall(expression)}


def misspelt(expression: str) -> str:
    """The same expression about metrics that nobody exports."""
    return _SELECTOR.sub(r"\1_misspelt\2", expression)


def asked(expression: str, *, range_seconds: int) -> str:
    """The expression as Grafana asks it, of all runs, at our interval of scrapes."""
    chosen = {
        "$experiment": ".*",
        "$instance": ".*",
        "$__rate_interval": "8s",
        "$__interval": "2s",
        "$__range": f"{range_seconds}s",
    }
    for variable, value in chosen.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, f"a variable that Grafana would not know, or that we do not: {expression}"
    return expression


def _queries(name: str, dashboard: Mapping[str, Any]) -> Iterator[Query]:
    for panel in dashboard["panels"]:
        columns = _label_columns(panel)
        for target in panel.get("targets", ()):
            words = frozenset(_WORD.findall(target["legendFormat"])) | columns
            yield Query(name, panel["title"], target["expr"], target["instant"], words)
    for mark in dashboard["annotations"]["list"]:
        named = [word for key in ("titleFormat", "textFormat") for word in _WORD.findall(mark[key])]
        words = frozenset([*named, *mark["tagKeys"].split(",")])
        yield Query(name, mark["name"], mark["expr"], False, words)


def _label_columns(panel: Mapping[str, Any]) -> frozenset[str]:
    """The labels by which the rows of a panel's queries are joined."""
    found = [transformation["options"] for transformation in panel.get("transformations", ())]
    names = {name for options in found for name in options.get("renameByName", {})}
    hidden = {name for options in found for name in options.get("excludeByName", {})}
    return frozenset(name for name in names | hidden if not name.startswith("Value") and name != "Time")
