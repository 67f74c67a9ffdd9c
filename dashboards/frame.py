"""The frame of a dashboard: its variables, which choose a data source and runs, and what is marked in its charts."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard

from dashboards.panels import ORANGE, PURPLE, RED
from dashboards.queries import DATASOURCE, of_ranks, of_run

OWN_TAG = "mecefo-chaos"


def new_dashboard(uid: str, title: str, description: str, *, shown: str, refresh: str) -> build.Dashboard:
    """An empty dashboard with the variables that choose a data source and runs, showing the last `shown`."""
    return (
        build.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([OWN_TAG])
        .editable()
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time(f"now-{shown}", "now")
        .refresh(refresh)
        .timepicker(build.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m", "1h"]))
        .link(
            build.DashboardLink("Chaos and training")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([OWN_TAG])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_label_variable("experiment", "Experiment", "label_values(training_step, experiment)"))
        .with_variable(
            _label_variable("instance", "Run", 'label_values(training_step{experiment=~"$experiment"}, instance)')
        )
    )


def faults_in_force() -> build.AnnotationQuery:
    """Marks the time for which a fault is active, and one that was over between two scrapes at its verification."""
    labels = "experiment, instance, fault"
    verified = _grown(of_run("chaos_faults_total", outcome="verified"))
    return _annotation(
        "Faults",
        f"{_above_zero(of_run('chaos_fault_active'), labels)} or sum by ({labels}) ({verified}) > 0",
        title="{{fault}}",
        text="active in {{experiment}} ({{instance}})",
        labels="fault,experiment",
        color=RED,
    )


def memberships() -> build.AnnotationQuery:
    """Marks new memberships: losses, takeovers, ranks that came back."""
    return _annotation(
        "Memberships",
        f"sum by (experiment, instance, reason) ({_grown(of_run('training_regroups_total'))}) > 0",
        title="regrouped: {{reason}}",
        text="a new membership of {{experiment}} ({{instance}})",
        labels="reason,experiment",
        color=PURPLE,
    )


def alerts_firing() -> build.AnnotationQuery:
    """Marks the time for which one of our alerts (docker/prometheus/rules) is firing."""
    firing = of_ranks("ALERTS", alertstate="firing", alertname="~(Training|Chaos).+")
    return _annotation(
        "Alerts",
        _above_zero(firing, "alertname, severity, experiment, instance"),
        title="{{alertname}}",
        text="{{severity}}, {{experiment}} ({{instance}})",
        labels="alertname,severity",
        color=ORANGE,
    )


def _above_zero(selector: str, labels: str) -> str:
    """Where a gauge is above 0, or was since the point before: points can be further apart than it lasted."""
    now, since = f"max by ({labels}) ({selector})", f"max by ({labels}) (max_over_time({selector}[$__interval]))"
    return f"{now} > 0 or {since} > 0"


def _grown(selector: str) -> str:
    """What a counter of a run that goes on grew by since the point before; all of it, if it was not there then.

    Of a run that is shown again, `chaos serve`, nothing grows: when it was, its first point cannot say.
    """
    goes_on = f"max_over_time({of_run('training_running')}[1m]) == 1"
    return f"({selector} - {selector} offset $__interval or {selector}) and on (experiment, instance) {goes_on}"


class PrometheusAnnotation(dashboard.AnnotationQuery):
    """An annotation query with the keys that Grafana's Prometheus data source reads and the SDK's model lacks."""

    def __init__(self, *, title_format: str, text_format: str, tag_keys: str, step: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.extra = {"titleFormat": title_format, "textFormat": text_format, "tagKeys": tag_keys, "step": step}

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {**super().to_json(), **self.extra}


class _AnnotationBuilder(build.AnnotationQuery):
    def __init__(self, annotation: PrometheusAnnotation) -> None:
        self._internal = annotation


def _annotation(name: str, expression: str, *, title: str, text: str, labels: str, color: str) -> build.AnnotationQuery:
    """A mark wherever the expression is above 0, over all of the time that it is. `labels` become tags."""
    return _AnnotationBuilder(
        PrometheusAnnotation(
            name=name,
            datasource=DATASOURCE,
            icon_color=color,
            expr=expression,
            title_format=title,
            text_format=text,
            tag_keys=labels,
            # Grafana 11 makes one region of points that are no further apart than this.
            step="10s",
        )
    )


def _label_variable(name: str, label: str, expression: str) -> build.QueryVariable:
    return (
        build.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": expression, "refId": f"variable-{name}"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Also right for a Prometheus that scrapes without our file of targets, and so without its labels.
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
