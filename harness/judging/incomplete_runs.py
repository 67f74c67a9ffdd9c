"""Which values of a job that did not complete are final."""

from __future__ import annotations

from collections.abc import Mapping

from harness.analysis.undecided import LEFT_IN_ORDER
from harness.judging.gate_reasons import End
from harness.judging.metrics import Metric
from harness.judging.series import Period, Series
from harness.judging.summary import Summary

_STOPPED: Mapping[str | None, End] = {
    "cut off": "log_cut_off",
    "aborted": "aborted",
    "halted": "halted",
    "interrupted": "interrupted",
}
"""By the status of the run."""


def unfinished(metric: Metric | Series, period: Period | None, summary: Summary) -> End | None:
    """What ended the run before the values of `metric` in `period` were final; None where they are."""
    outcome = summary.job_outcome
    if outcome == "completed":
        is_cut = isinstance(metric, Metric) and metric.is_beside_baseline and summary.baseline_planned
        return "baseline_ended" if is_cut and summary.baseline_outcome != "completed" else None
    is_of_before = metric.is_of_before if isinstance(metric, Metric) else period == "before"
    if is_of_before and any(incident.injected for incident in summary.incidents):
        return None
    if isinstance(metric, Metric) and metric.is_per_incident and _all_affected(summary):
        return None
    if outcome == "failed" and any(incident.undecided == LEFT_IN_ORDER for incident in summary.incidents):
        return LEFT_IN_ORDER
    return "job_failed" if outcome == "failed" else _STOPPED.get(summary.status, "run_ended")


def _all_affected(summary: Summary) -> bool:
    """Whether every fault that was planned has affected, and the job is past it."""
    incidents = summary.incidents
    if not incidents or summary.incidents_not_due:
        return False
    return all(incident.verified and incident.recovered for incident in incidents)
