"""The events of the log that decided a failed gate, so that a reader of the report can look them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from harness.analysis.contained import charge
from harness.analysis.state import state_of
from harness.judging.gates import OPERATORS, Gate, GateError
from harness.judging.metrics import Metric
from harness.judging.series import NoValue, Series, recorded_of
from harness.judging.summary import GateResult, IncidentSummary, Summary
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event

_MAX_INCIDENTS = 3
"""Of more incidents that fail a gate, the worst are named."""

# By the beginning of a metric's name: the kinds of events that end what it measures of an incident.
_ENDS: Mapping[str, tuple[str, ...]] = {
    "detect": ("detected", "culprit_named"),
    "diagnosis": ("detected", "culprit_named"),
    "isolate": ("isolated",),
    "regroup": ("regrouped",),
    "rejoin": ("rejoined",),
    "repair_wait": ("repair_started",),
    "transfer": ("regrouped",),
    "verify": ("verified",),
}
# By the beginning of a metric's name: the kinds of events, after the first fault, that a figure of the run comes from.
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "badput_": ("injected", "job_ended"),
    "diagnosis_": ("detected", "culprit_named"),
    "diverged_": ("state_checksums", "rank_finished"),
    "false_": ("detected", "culprit_named"),
    "layout_": ("layout",),
    "paid_": ("injected", "rejoined", "job_ended"),
    "samples_": ("layout", "restarting", "checkpoint_restored", "attempt_started", "job_ended"),
    "steps_": ("restarting", "checkpoint_restored", "snapshot_restored", "attempt_started", "job_ended"),
    "throughput_": ("injected", "repair_started", "rejoined", "undone"),
    "unfit_": ("step_unfit",),
    "unplanned_": ("detected", "process_exited"),
}
_MAX_EVENTS = 4


@dataclass(frozen=True, slots=True)
class Deciding:
    """What decided a gate: `words`, such as `incident 2`, and the numbers of its events in the log, from 1."""

    words: str
    events: tuple[int, ...]


def deciding(gate: GateResult, summary: Summary, events: Sequence[Event]) -> list[Deciding]:
    """What decided a failed gate; empty for any other, and where the log has no such event."""
    if gate.passed is not False or gate.value is None:
        return []
    try:
        parsed = Gate.parse(gate.expression)
    except GateError:
        return []
    # Each is looked for in all of the log: not more of them than are told.
    found: Iterator[Deciding]
    if isinstance(parsed.metric, Series):
        found = _of_series(parsed, parsed.metric, events)
    elif parsed.metric.is_per_incident:
        found = _of_incidents(parsed, parsed.metric, summary, events)
    elif parsed.metric.name == "unrecovered_incidents":
        failed = (one for one in summary.incidents if one.verified and one.recovered is False)
        found = (_of_incident(one, "", events) for one in failed)
    else:
        found = iter([_of_run(parsed.metric.name, events)])
    return list(islice((one for one in _charged(found, len(events)) if one.events), _MAX_INCIDENTS))


def _charged(found: Iterator[Deciding], num_events: int) -> Iterator[Deciding]:
    for one in found:
        charge(num_events)
        yield one


def _of_incidents(gate: Gate, metric: Metric, summary: Summary, events: Sequence[Event]) -> Iterator[Deciding]:
    named = [one for one in summary.incidents if one.verified and (one.ranks or not metric.is_membership)]
    values = [(value, one) for value, one in zip(metric.values(summary), named, strict=True) if value is not None]
    beyond = [pair for pair in values if not OPERATORS[gate.comparison](pair[0], gate.threshold)]
    for _, one in sorted(beyond or values, key=lambda pair: abs(pair[0] - gate.threshold), reverse=True):
        yield _of_incident(one, metric.name, events)


def _of_incident(incident: IncidentSummary, metric: str, events: Sequence[Event]) -> Deciding:
    """Its injection, and what ended that which the metric measures: the next committed step, if nothing else."""
    kinds = next((kinds for start, kinds in _ENDS.items() if metric.startswith(start)), ("step_committed",))
    found: list[int] = []
    for number, event in enumerate(events, start=1):
        if event.job != MAIN_JOB:
            continue
        if not found:
            if event.kind == "injected" and event.fields.get("incident") == incident.incident:
                found.append(number)
        elif event.kind in kinds and (event.kind != "step_committed" or event.step == incident.recovery_step):
            found.append(number)
            break
    return Deciding(f"incident {incident.incident}", tuple(found))


def _of_series(gate: Gate, series: Series, events: Sequence[Event]) -> Iterator[Deciding]:
    """The step with the value that is farthest beyond the limit."""
    try:
        recorded = recorded_of(state_of(events))
        step = recorded.extreme_step(series, gate.period, largest=gate.comparison in ("<", "<=", "=="))
    except NoValue:
        return
    if step is not None:
        numbers = (
            number
            for number, event in enumerate(events, start=1)
            if event.kind == "step_committed" and event.job == MAIN_JOB and event.step == step.step
        )
        yield Deciding(f"step {step.step}", tuple(numbers)[:_MAX_EVENTS])


def _of_run(metric: str, events: Sequence[Event]) -> Deciding:
    if "loss" in metric and not metric.startswith(("steps", "samples", "unplanned")):
        last = {
            event.job: number
            for number, event in enumerate(events, start=1)
            if event.kind == "step_committed" and event.job in (MAIN_JOB, BASELINE_JOB)
        }
        return Deciding("the last steps", tuple(sorted(last.values())))
    kinds = next((kinds for start, kinds in _SOURCES.items() if metric.startswith(start)), ("job_ended",))
    injected = next((number for number, event in enumerate(events) if event.kind == "injected"), 0)
    found = [
        number
        for number, event in enumerate(events, start=1)
        if number > injected and event.job == MAIN_JOB and event.kind in kinds
    ]
    # The first ones tell how it began, the last one how it ended.
    return Deciding("", tuple(found if len(found) <= _MAX_EVENTS else [*found[: _MAX_EVENTS - 1], found[-1]]))
