"""Queries: which series of which runs."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# A variable, so that the dashboards can be imported beside any Prometheus.
DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")


def of_run(metric: str, **labels: str) -> str:
    """The selector of a job's `metric` in the runs that the dashboard's variables choose.

    `labels` have the value that is given; `~` before it makes it a pattern, `!` excludes it.
    """
    return _selector(metric, {**labels, "experiment": "~$experiment", "instance": "~$instance"})


def of_ranks(metric: str, **labels: str) -> str:
    """The same for what is not the job's own: what the ranks serve, each at its own address, and alerts."""
    return _selector(metric, {**labels, "experiment": "~$experiment"})


def query(expression: str, legend: str = "", *, is_instant: bool = False) -> prometheus.Dataquery:
    """A query over the time that is shown; with `is_instant` for its end only, as table rows."""
    target = prometheus.Dataquery().expr(expression).legend_format(legend or "__auto")
    if is_instant:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.range()


def speed(window: str) -> str:
    """Work per second of each run, in the best unit that its job reports: the label `unit` says which.

    A training script of one's own may report no tokens and no samples; steps are always known.
    """
    parts = (
        f'label_replace(rate({of_run(f"training_{unit}_total")}[{window}]), "unit", "{unit}", "", "")'
        for unit in ("tokens", "samples", "steps")
    )
    return " or ignoring(unit) ".join(parts)


def _selector(metric: str, labels: Mapping[str, str]) -> str:
    operators = {"~": "=~", "!": "!="}
    matchers = [f'{label}{operators.get(value[0], "=")}"{value.lstrip("~!")}"' for label, value in labels.items()]
    return f"{metric}{{{','.join(matchers)}}}"
