"""The tables of metrics: those that Prometheus reads, and the figures that gates use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.exporter.families import FAMILIES as JOB
from harness.judging.metrics import METRICS, Metric
from mecefo_runtime.system.metric_family import Family
from mecefo_runtime.training.exporter import FAMILIES as RANK


def with_tables(page: str) -> str:
    """The page with each table in the place of its mark."""
    for mark, table in TABLES.items():
        if mark in page:
            page = page.replace(mark, table())
    return page


def _families(families: Mapping[str, Family], labels: str) -> str:
    rows = (
        (f"`{name}`", family.kind, ", ".join(f"`{label}`" for label in family.labels), family.text)
        for name, family in families.items()
    )
    return _table(("name", "type", labels, "meaning"), rows)


def _metrics(*, is_per_incident: bool) -> str:
    rows = (
        (f"`{metric.name}`", _unit(metric), metric.better or "", metric.text)
        for metric in METRICS.values()
        if metric.is_per_incident == is_per_incident
    )
    return _table(("metric", "unit", "better", "meaning"), rows)


def _unit(metric: Metric) -> str:
    return {"seconds": "s", "token_rate": "tokens/s"}.get(metric.unit, metric.unit)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = (head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


TABLES: Mapping[str, Callable[[], str]] = {
    "<!-- metrics of the job -->": lambda: _families(JOB, "labels"),
    "<!-- metrics of a rank -->": lambda: _families(RANK, "further labels"),
    "<!-- figures of a run -->": lambda: _metrics(is_per_incident=False),
    "<!-- figures of an incident -->": lambda: _metrics(is_per_incident=True),
}
"""By the mark on a page: what stands in its place."""
