"""Resilience over runs: how they have come through their faults so far, and does it get better or worse.

Made of the series of docker/prometheus/rules/runs.yml, which tell runs apart by when they began.
"""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import dashboard as build

from dashboards import frame, panels
from dashboards.panels import BLUE, GREEN, RED, YELLOW, chart, number, states, steps
from dashboards.queries import of_run, query

UID = "mecefo-resilience"

_EACH_RUN = "by (experiment, instance, started)"


def resilience() -> build.Dashboard:
    """The dashboard over many runs: nightly ones, those of a branch, those before and after a change."""
    dashboard = frame.new_dashboard(
        UID,
        "Resilience over runs",
        "How have the runs come through their faults so far, and does it get better or worse? Needs the recording "
        "rules of docker/prometheus/rules/runs.yml.",
        shown="7d",
        refresh="1m",
    )
    dashboard.annotation(frame.alerts_firing())
    _summary(dashboard)
    _runs(dashboard)
    _trends(dashboard)
    return dashboard


def _in_range(metric: str, **labels: str) -> str:
    """The last value of a recorded series of each run in the time that is shown."""
    return f"last_over_time({of_run(metric, **labels)}[$__range])"


def _summary(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("The runs in the time that is shown"))
    passed = _in_range("run:chaos_verdict:last", verdict="pass")
    for panel in (
        number(
            "Runs",
            "That were seen, judged or not.",
            f"count({_in_range('run:chaos_run_start_timestamp_seconds:last')})",
            unit="none",
            thresholds=steps(BLUE),
            is_instant=True,
        ),
        number(
            "Passed",
            "Share of the judged runs. A run that ended before Prometheus saw its verdict is not in it: "
            "`chaos serve RUN` shows it again.",
            f"avg({passed})",
            unit="percentunit",
            thresholds=steps(RED, (0.9, YELLOW), (1, GREEN)),
            is_instant=True,
        ),
        number(
            "Largest throughput drop",
            "Of any run. Which one it was stands in the table.",
            f"max({_in_range('run:chaos_throughput_drop_ratio:last')})",
            unit="percentunit",
            thresholds=steps(GREEN, (0.05, YELLOW), (0.2, RED)),
            is_instant=True,
        ),
        number(
            "Slowest recovery",
            "Of any run, from injection to the first step that began and committed after it.",
            f"max({_in_range('run:chaos_recovery_seconds:max')})",
            unit="s",
            thresholds=steps(GREEN, (10, YELLOW), (60, RED)),
            is_instant=True,
        ),
        number(
            "Steps lost",
            "Of all runs. Other than 0: find the run in the table, and read its report.",
            f"sum({_in_range('run:chaos_steps_lost_total:last')})",
            unit="none",
            thresholds=steps(GREEN, (1, RED)),
            is_instant=True,
        ),
        number(
            "Faults without effect",
            "Not verified, of all runs. These runs prove less than they seem to.",
            f"sum({_in_range('run:chaos_faults_total:last', outcome='unverified')})",
            unit="none",
            thresholds=steps(GREEN, (1, YELLOW)),
            is_instant=True,
        ),
    ):
        dashboard.with_panel(panel)


def _runs(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Each run, and each kind of fault"))
    columns = {
        "Began": f"max {_EACH_RUN} ({_in_range('run:chaos_run_start_timestamp_seconds:last')}) * 1000",
        "Steps": f"max {_EACH_RUN} ({_in_range('run:training_step:last')})",
        "Goodput": f"max {_EACH_RUN} ({_in_range('run:training_goodput_ratio:last')})",
        "Throughput drop": f"max {_EACH_RUN} ({_in_range('run:chaos_throughput_drop_ratio:last')})",
        "Slowest recovery": f"max {_EACH_RUN} ({_in_range('run:chaos_recovery_seconds:max')})",
        "Steps lost": f"max {_EACH_RUN} ({_in_range('run:chaos_steps_lost_total:last')})",
        "Passed": f"max {_EACH_RUN} ({_in_range('run:chaos_verdict:last', verdict='pass')})",
    }
    verdict: Mapping[float, tuple[str, str]] = {1: ("passed", GREEN), 0: ("not passed", RED)}
    dashboard.with_panel(
        panels.table_of(
            "Runs",
            "One line each. No value under Passed: not judged, or judged after the last scrape. What happened in one "
            "stands in its report.html.",
            columns,
            keys={"experiment": "Experiment", "instance": "Address"},
            hidden=("started",),
            units={
                "Began": "dateTimeAsLocal",
                "Goodput": "percentunit",
                "Throughput drop": "percentunit",
                "Slowest recovery": "s",
            },
            meanings={"Passed": verdict},
            width=24,
        )
    )
    recovery = _in_range("run:chaos_recovery_seconds:max")
    dashboard.with_panel(
        panels.table_of(
            "Kinds of faults",
            "Over all runs. The kind with the slowest median recovery is the one to work on.",
            {
                "Verified": f"sum by (fault) ({_in_range('run:chaos_faults_total:last', outcome='verified')})",
                "Median recovery": f"quantile by (fault) (0.5, {recovery})",
                "Slowest recovery": f"max by (fault) ({recovery})",
            },
            keys={"fault": "Fault"},
            units={"Median recovery": "s", "Slowest recovery": "s"},
            width=12,
        )
    )
    dashboard.with_panel(
        panels.table_of(
            "Gates",
            "Share of the runs in which each gate held. One between 0 and 1 flickers: look at the spread of the runs, "
            "and set it outside of the noise.",
            {
                "Held": f"avg by (experiment, gate) ({_in_range('run:chaos_gate_passed:last')})",
                "Runs": f"count by (experiment, gate) ({_in_range('run:chaos_gate_passed:last')})",
            },
            keys={"experiment": "Experiment", "gate": "Gate"},
            units={"Held": "percentunit"},
            width=12,
        )
    )


def _trends(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("From run to run"))
    # A run is short beside the days that are shown: a point for each.
    for panel in (
        chart(
            "Throughput drop",
            "Of each run, while it was there to be scraped. A level that rose between two days: bisect what changed.",
            query(_lately("run:chaos_throughput_drop_ratio:last"), "{{experiment}}"),
            unit="percentunit",
            is_points=True,
        ),
        chart(
            "Recovery",
            "Of the newest incident of each kind. A kind that became slower between two days: bisect what changed.",
            query(f"max by (fault) ({_lately('run:chaos_recovery_seconds:max')})", "{{fault}}"),
            unit="s",
            is_points=True,
        ),
        chart(
            "Goodput",
            "Of each run so far. It falls with the number of faults, too: compare runs of one experiment.",
            query(_lately("run:training_goodput_ratio:last"), "{{experiment}}"),
            unit="percentunit",
            is_points=True,
        ).max(1),
        states(
            "Passed",
            "The judgement of the newest run of each experiment.",
            query(
                f"min by (experiment) ({_lately('run:chaos_verdict:last', verdict='pass')})",
                "{{experiment}}",
            ),
            meaning={0: ("not passed", RED), 1: ("passed", GREEN)},
        ),
    ):
        dashboard.with_panel(panel)


def _lately(metric: str, **labels: str) -> str:
    """The values of runs that were there since the point before, however far apart the points are."""
    return f"last_over_time({of_run(metric, **labels)}[$__rate_interval])"
