"""Why a gate failed or is undecided: each code, and its sentence.

A new reason is a line of `GATE_REASONS`, and the place that returns it, in `harness.judging.gates` or `series`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Literal

from harness.judging.resume_words import NOT_COMPARED
from harness.judging.units import Unit, written
from mecefo_runtime.system.reason import Made, Reason, Table

End = Literal[
    "baseline_ended",
    "left_in_order",
    "job_failed",
    "log_cut_off",
    "aborted",
    "halted",
    "interrupted",
    "run_ended",
]
ENDS: Mapping[str, str] = {
    "baseline_ended": "the fault-free baseline ended",
    "left_in_order": "the job left in order",
    "job_failed": "the job failed",
    "log_cut_off": "the log was cut off",
    "aborted": "the run was ended by a gate",
    "halted": "the run was halted",
    "interrupted": "the run was interrupted",
    "run_ended": "the run ended",
}
"""What ended a run before the values of a metric were final, by code."""

Missing = Literal[
    "not_counted",
    "ranks_differ",
    "only_commands",
    "not_recovered",
    "phase_not_observed",
    "hang_rule_silent",
    "no_hang_rule",
    "no_baseline",
    "never_approximates",
    "no_checkpoint_seen",
    "no_checkpoint_read",
    "no_load_seen",
    "batch_unseen",
    "not_preempted",
]
MISSING: Mapping[str, str] = {
    "not_counted": "the ranks were restarted, and neither their parameters nor the optimizer's count of its steps show "
    "where the training continued: chaos.agent.step(number=...) reports it",
    "ranks_differ": "after a restart the ranks continued from different steps: the caveats say which",
    "only_commands": "only a command has attempts",
    "not_recovered": "the job did not recover from it, or that is not known",
    "hang_rule_silent": "the rule did not fire before new progress, matched no line of the log, or is not given",
    "no_hang_rule": "the job has no hang rule, or no line of its log matched it",
    "phase_not_observed": "that phase of its recovery was not observed",
    "no_baseline": "there is no fault-free baseline to compare with, or it was disturbed: the caveats say which",
    "never_approximates": "the strategy of the job never approximates, or no step was committed",
    "no_checkpoint_seen": "no checkpoint was seen being saved",
    **NOT_COMPARED,
    "no_checkpoint_read": "no checkpoint could be read when the job had ended",
    "no_load_seen": "no attempt was seen loading a checkpoint that the job had saved",
    "batch_unseen": "not all ranks showed what their model was called with, or the job is no command",
    "not_preempted": "no preemption was verified, or this was not seen in it",
}
"""Why a run has no value of a metric, by code."""


def gate_text(why: Reason) -> str:
    """The sentence of the answer of a gate."""
    return GATE_REASONS.text(why)


def _not_final(metric: str, ended: str) -> str:
    return f"{ENDS.get(ended, ENDS['run_ended'])} before {metric} was final"


def _no_value(metric: str, missing: int, of: int, because: str | None = None) -> str:
    which = f" for {missing} of {of} incidents" if of > 1 else ""
    why = "" if because is None else f": {MISSING.get(because, because)}"
    return f"{metric} has no value{which}{why}"


def _where(period: str | None) -> str:
    return "in the run" if period is None else f"{period} the fault"


def _no_step(period: str | None = None) -> str:
    return f"no step was committed {_where(period)}"


def _no_value_in_steps(metric: str, missing: int, of: int, period: str | None = None) -> str:
    return f"{metric} has no value for {missing} of {of} steps {_where(period)}"


def _too_long(seconds: float) -> str:
    return f"{seconds:.3g} s are longer than any run: the log's times cannot be right"


def _beyond_limit(
    metric: str,
    value: float | str,
    comparison: str,
    threshold: float,
    unit: Unit,
    aggregate: str | None = None,
    period: str | None = None,
) -> str:
    when = "" if period is None else f" {period} the fault"
    which = metric if aggregate is None else f"{aggregate} of {metric}{when}"
    return f"{which} is {written(float(value), unit)}, {_margin(float(value), comparison, threshold, unit)}"


def _margin(value: float, comparison: str, threshold: float, unit: Unit) -> str:
    """How far a value is beyond the limit of a gate that it fails, such as `4.20 points above the limit`."""
    difference = value - threshold
    if not isfinite(difference):
        return "not a finite number"
    if not difference:
        return "equal to the limit" if comparison in ("<", ">") else "equal to the excluded value"
    side = "above" if difference > 0 else "below"
    apart = f"{abs(difference):.2%}".replace("%", " points") if unit == "ratio" else written(abs(difference), unit)
    return f"{apart} {side} the {'limit' if comparison in ('<', '<=', '>', '>=') else 'required value'}"


def _within_uncertainty(
    metric: str, aggregate: str, value: float, uncertainty: float, threshold: float, unit: Unit
) -> str:
    interval = f"{written(value, unit)} ± {written(uncertainty, unit)}"
    limit = written(threshold, unit)
    return f"{aggregate} of {metric} is {interval} by the clocks of the hosts, which includes the limit, {limit}"


def _certain_to_fail(
    metric: str, value: float | str, unit: Unit, incident: int | None = None, still_running: bool = False
) -> str:
    whose = "" if incident is None else f" of incident {incident}"
    return f"{metric}{whose} is {'already ' if still_running else ''}{written(float(value), unit)}"


def _median(value: float, values: Sequence[float], passed: bool) -> str:
    listed = ", ".join(f"{one:.6g}" for one in values)
    return f"{'holds' if passed else 'fails'} for the median {value:.6g} of {listed}"


def _undecided_in_runs(why: Reason | None = None) -> str:
    return f"is undecided in every run: {None if why is None else gate_text(why)}"


GATE_REASONS = Table(
    {
        "beyond_limit": Made(
            _beyond_limit, "{aggregate} of {metric} {period} the fault is {value}, 4.20 points above the limit"
        ),
        "within_uncertainty": Made(
            _within_uncertainty,
            "{aggregate} of {metric} is {value} ± {uncertainty} by the clocks of the hosts, which includes the limit, "
            "{threshold}",
        ),
        "certain_to_fail": Made(_certain_to_fail, "{metric} of incident {incident} is already {value}"),
        "not_final": Made(_not_final, "the job failed before {metric} was final"),
        "ranks_unobserved": "{metric} needs every rank, and {unobserved} of {ranks} were not observed",
        "no_value": Made(_no_value, "{metric} has no value for {missing} of {of} incidents: {because}"),
        "no_incident_verified": "no verified incident has a value of {metric}",
        "no_fault_verified": "no fault was verified, so nothing is {period} it",
        "no_steps_known": "the steps could not be determined, so {metric} has no value",
        "no_step": Made(_no_step, "no step was committed {period} the fault"),
        "no_value_in_steps": Made(
            _no_value_in_steps, "{metric} has no value for {missing} of {of} steps {period} the fault"
        ),
        "not_finite_in_step": "{metric} is not a finite number in step {step}",
        "other_unit": "the job reports its throughput in {counted}, not in {asked}",
        "times_not_right": Made(_too_long, "{seconds} s are longer than any run: the log's times cannot be right"),
        "no_time_passed": "no time passed in which there could be a throughput",
        "log_in_doubt": "the log is incomplete or contradicts itself, so its figures are not certain",
        "not_evaluated": "could not be evaluated: {error}",
        "median": Made(_median, "fails for the median {value} of {values}"),
        "undecided_in_runs": Made(_undecided_in_runs, "is undecided in every run: {why}"),
    }
)
