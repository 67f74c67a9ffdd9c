"""Gates: thresholds that a run must keep, and halt conditions that end it early.

    METRIC [min|max|mean|median|pNN] [before|during|after] OPERATOR NUMBER[UNIT]

as in `throughput_drop <= 4.18%`, `recovery_seconds p95 < 5`, `detection_seconds max < 500ms`, `steps_lost == 0`,
`step_seconds p95 during < 300ms`. A metric may be written without the `_ratio` or `_seconds` at its end. Units: `%` for
ratios; `ms`, `s`, `min` for times (seconds without one); `tokens/s`, `samples/s`, `steps/s` for throughput. A metric
that each incident has stands for its largest value unless an aggregate says otherwise. A series (`series`) has
a value for each step; of one there must be an aggregate, and it may be of the steps before, during or after the fault.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from statistics import fmean, median

from harness.judging.always_checked import GATES, kind_of_job
from harness.judging.gate_reasons import gate_text
from harness.judging.incomplete_runs import unfinished
from harness.judging.metrics import METRICS, Metric, find, nearest
from harness.judging.series import PERIODS, SERIES, NoValue, Period, Recorded, Series
from harness.judging.series import find as find_series
from harness.judging.summary import GateResult, Summary
from harness.judging.units import SCALES
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Aborted

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "mean": fmean,
    "median": median,
}
# More names than that are listed by `chaos gates`, not by a message.
_MAX_LISTED = 12

_NUMBER = r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_GATE = re.compile(
    r"(?P<metric>[A-Za-z][\w-]*)(?P<words>(?: [A-Za-z][\w.]*)*)"
    rf"\s*(?P<operator>[<>=!]=?)\s*{_NUMBER}\s*(?P<unit>[%\w/]*)"
)
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)")
_HALT = re.compile(
    rf"(?P<metric>[A-Za-z][\w-]*)\s*(?:(?P<operator>[<>=!]=?)\s*{_NUMBER}|is\s+(?P<nan>nan))", re.IGNORECASE
)


class GateError(ValueError):
    """A gate or halt condition that cannot be understood, or that could never decide anything."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A parsed gate; `threshold` in base units, `said_unit` as it was written."""

    expression: str
    metric: Metric | Series
    aggregate: str
    comparison: str
    threshold: float
    period: Period | None = None
    said_unit: str = ""

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read a gate.

        Raises:
            GateError: it does not follow the grammar, names an unknown metric, or has a unit that its metric cannot
            have.
        """
        expression = " ".join(text.split())
        match = _GATE.fullmatch(expression)
        if match is None or match["operator"] not in OPERATORS:
            raise GateError(
                f"{expression!r} is no gate: write METRIC [min|max|mean|median|pNN] [before|during|after] OPERATOR "
                f"NUMBER[UNIT] with one of {' '.join(OPERATORS)}, for example 'throughput_drop <= 4.18%'; "
                "`chaos gates` lists the metrics"
            )
        words = match["words"].lower().split()
        series, figure = find_series(match["metric"]), find(match["metric"])
        # Only one of both is called alike: the figure is what stands there without further words.
        metric = figure if series is None or (figure is not None and not words) else series
        if metric is None:
            raise _unknown("metric", match["metric"], [*METRICS, *SERIES], f"{expression!r}: ")
        aggregate, period = _aggregate_and_period(words, metric, expression)
        threshold = _threshold(match, metric)
        return cls(expression, metric, aggregate, match["operator"], threshold, period, match["unit"])

    @property
    def is_of_one_figure(self) -> bool:
        """Whether it is of a figure of the whole run, of which there is one value."""
        return isinstance(self.metric, Metric) and not self.metric.is_per_incident

    @property
    def fails_for_good(self) -> bool:
        """Whether it must fail as soon as it does: no value that comes later takes back that it was beyond."""
        worst = {"max": ("<", "<="), "min": (">", ">=")}
        # Which steps are before or after the faults, and how time is cut into stretches, changes as the run continues.
        may_shift = self.period in ("before", "after") or (
            isinstance(self.metric, Series) and self.metric.of_step is None
        )
        return not self.is_of_one_figure and not may_shift and self.comparison in worst.get(self.aggregate, ())

    def is_decided_by(self, value: float) -> bool:
        """Whether nothing that comes after `value`, which it has so far, can change its answer."""
        if not isinstance(self.metric, Metric) or self.metric.is_per_incident:
            return self.fails_for_good and not self.holds(value)
        return self.metric.only_grows and self._is_beyond(value)

    def is_decided_without_a_rank(self, value: float) -> bool:
        """Whether nothing that an unobserved rank could add to `value` can change its answer."""
        return isinstance(self.metric, Metric) and self.metric.is_count and self._is_beyond(value)

    def _is_beyond(self, value: float) -> bool:
        """Whether no larger value has another answer."""
        return value > self.threshold or (value == self.threshold and self.comparison in ("<", ">="))

    def holds(self, value: float) -> bool:
        """Whether `value`, in base units, keeps it."""
        return OPERATORS[self.comparison](value, self.threshold)

    def result(
        self, value: float | None, passed: bool | None, why: Reason | None = None, *, builtin: bool = False
    ) -> GateResult:
        """The answer that this gate gives."""
        reason, unit = None if why is None else gate_text(why), self.metric.unit
        return GateResult(self.expression, value, passed, builtin, reason, unit, self.comparison, self.threshold, why)


def find_metrics(name: str) -> list[Metric | Series]:
    """What goes by that name, the figure before the series.

    Raises:
        GateError: nothing does.
    """
    found = [metric for metric in (find(name), find_series(name)) if metric is not None]
    if not found:
        raise _unknown("metric", name, [*METRICS, *SERIES])
    return found


def evaluate(gate: Gate, summary: Summary, recorded: Recorded | None = None, *, builtin: bool = False) -> GateResult:
    """Hold `gate` against the figures of a summary, or against the series that were `recorded`.

    A missing value never passes: neither the figure of a run, nor that of any verified incident that ought to have it,
    nor that of any step. Of a job that did not come to its end only what can no longer change has an answer.
    """
    ended = unfinished(gate.metric, gate.period, summary)
    why_open = None if ended is None else Reason("not_final", metric=gate.metric.name, ended=ended)
    try:
        known = _values(gate, summary, recorded)
    except NoValue as missing:
        return gate.result(None, None, why_open or missing.why, builtin=builtin)
    value = known[0] if gate.is_of_one_figure else aggregate(known, gate.aggregate)
    passed = gate.holds(value)
    # Nothing comes after the death of a job that could mend what failed by then.
    is_over = summary.job_outcome == "failed" and not passed
    if why_open is not None and not is_over and not gate.is_decided_by(value):
        return gate.result(None, None, why_open, builtin=builtin)
    if isinstance(gate.metric, Metric) and (unsure := _within_uncertainty(gate, gate.metric, summary, known)):
        return gate.result(None, None, unsure, builtin=builtin)
    if (unobserved := _unobserved(gate.metric, summary)) and not gate.is_decided_without_a_rank(value):
        return gate.result(None, None, unobserved, builtin=builtin)
    return gate.result(value, passed, None if passed else _measured(gate, value), builtin=builtin)


def _within_uncertainty(gate: Gate, metric: Metric, summary: Summary, known: Sequence[float]) -> Reason | None:
    """The reason if the limit lies within the uncertainty of the value."""
    doubts = metric.uncertainties(summary)
    if gate.is_of_one_figure or not any(doubts):
        return None
    # No aggregate decreases when a value increases.
    least, most = (
        aggregate([value + sign * doubt for value, doubt in zip(known, doubts, strict=True)], gate.aggregate)
        for sign in (-1, 1)
    )
    if not least <= gate.threshold <= most:
        return None
    value, doubt = (least + most) / 2, (most - least) / 2
    return Reason(
        "within_uncertainty",
        metric=metric.name,
        aggregate=gate.aggregate,
        value=value,
        uncertainty=doubt,
        threshold=gate.threshold,
        unit=metric.unit,
    )


def _unobserved(metric: Metric | Series, summary: Summary) -> Reason | None:
    """That ranks were not observed, where the value of `metric` depends on all of them."""
    num_ranks, num_observed = summary.num_ranks or 0, summary.num_observed_ranks or 0
    if not isinstance(metric, Metric) or not metric.needs_every_rank or num_observed >= num_ranks:
        return None
    return Reason("ranks_unobserved", metric=metric.name, unobserved=num_ranks - num_observed, ranks=num_ranks)


def _values(gate: Gate, summary: Summary, recorded: Recorded | None) -> Sequence[float]:
    metric = gate.metric
    if isinstance(metric, Series):
        if recorded is None:
            raise NoValue(Reason("no_steps_known", metric=metric.name))
        return recorded.values(metric, gate.period, gate.said_unit)
    values = metric.values(summary)
    known = [value for value in values if value is not None]
    if not values:
        raise NoValue(Reason("no_incident_verified", metric=metric.name))
    if len(known) < len(values):
        because, num_missing = metric.why_no_value(summary), len(values) - len(known)
        raise NoValue(Reason("no_value", metric=metric.name, missing=num_missing, of=len(values), because=because))
    return known


def builtin_gates(runtime: object, strategy: str | None = None, *, went_back: bool = False) -> tuple[str, ...]:
    """What counts, asked for or not, of a job of `runtime` with that `strategy`: what it promises.

    To go back to what was saved loses steps by design: always, with a strategy that stops on a loss, and with the
    others where a job `went_back`, since no living peer had all of the state. For an external job it is only that it
    recovers: which samples its steps used cannot be seen.
    """
    return GATES[kind_of_job(runtime, strategy, went_back=went_back)]


def evaluate_all(
    expressions: Iterable[str],
    summary: Summary,
    builtins: Sequence[str] = GATES["built-in"],
    recorded: Recorded | None = None,
    ended_by: Aborted | None = None,
) -> list[GateResult]:
    """The gates of a run and the built-in ones. One that cannot be evaluated is inconclusive, with the reason.

    `ended_by` tells that the run was aborted: the gate that it names failed while the run continued. What it says
    counts where the analysis has no value.
    """
    asked = list(dict.fromkeys(expressions))
    results: list[GateResult] = []
    for expression in (*asked, *(gate for gate in builtins if gate not in asked)):
        builtin = len(results) >= len(asked)
        try:
            gate = Gate.parse(expression)
            result = evaluate(gate, summary, recorded, builtin=builtin)
            if ended_by is not None and ended_by.gate == gate.expression and result.passed is None:
                result = gate.result(ended_by.value, False, ended_by.because)
            results.append(result)
        except Exception as error:  # a checker that crashes knows nothing: never a pass
            why = Reason("not_evaluated", error=str(error))
            results.append(GateResult(expression, None, None, builtin, gate_text(why), why=why))
    return results


def aggregate(values: Sequence[float], name: str) -> float:
    """One of `AGGREGATES`, or a percentile (`p95`), interpolated linearly between the two nearest values."""
    if name in AGGREGATES:
        return AGGREGATES[name](values)
    ordered = sorted(values)
    position = (len(ordered) - 1) * float(name.removeprefix("p")) / 100
    low, high = ordered[floor(position)], ordered[ceil(position)]
    return low + (high - low) * (position - floor(position))


def _step_throughput(step: StepCommitted) -> float | None:
    seconds = _step_duration(step)
    return step.tokens / seconds if step.tokens is not None and seconds is not None and seconds > 0 else None


def _step_duration(step: StepCommitted) -> float | None:
    return None if step.began_monotonic is None else step.committed_seconds - step.began_monotonic


HALT_METRICS: Mapping[str, Callable[[StepCommitted], float | None]] = {
    "training_loss": lambda step: step.loss,
    "grad_norm": lambda step: step.grad_norm,
    "throughput": _step_throughput,
    "step_seconds": _step_duration,
}
"""What a halt condition can look at, from one committed step of the main job: nats per token, tokens per second,
seconds. One event tells of no other: time is counted from the beginning of the attempt, not from the commit before."""


@dataclass(frozen=True, slots=True)
class HaltCondition:
    """`METRIC is nan` (true of every loss that is no finite number), or `METRIC OPERATOR NUMBER`."""

    text: str
    metric: str
    comparison: str | None
    threshold: float

    @classmethod
    def parse(cls, text: str) -> HaltCondition:
        """Read a halt condition.

        Raises:
            GateError: it does not follow the grammar or names an unknown metric.
        """
        expression = " ".join(text.split())
        match = _HALT.fullmatch(expression)
        if match is None or (match["nan"] is None and match["operator"] not in OPERATORS):
            raise GateError(
                f"{expression!r} is no halt condition: write 'training_loss is nan' or METRIC OPERATOR NUMBER, "
                "for example 'training_loss > 20'"
            )
        name = match["metric"].lower().replace("-", "_")
        name = f"training_{name}" if name == "loss" else name
        if name not in HALT_METRICS:
            raise _unknown("metric of a step", name, list(HALT_METRICS), f"{expression!r}: ")
        return cls(expression, name, match["operator"], _number(match["number"] or "0", expression))

    def check(self, record: Record) -> bool:
        """Whether `record` makes the condition true; only committed steps of the main job can that tell the figure."""
        value = HALT_METRICS[self.metric](record) if isinstance(record, StepCommitted) else None
        if value is None or record.job != MAIN_JOB:
            return False
        return not isfinite(value) if self.comparison is None else OPERATORS[self.comparison](value, self.threshold)


def _aggregate_and_period(words: Sequence[str], metric: Metric | Series, expression: str) -> tuple[str, Period | None]:
    """What the words behind a metric say, in any order."""
    periods = [period for period in PERIODS if period in words]
    names = [word for word in words if word not in PERIODS]
    for name in names:
        if name not in AGGREGATES and not _PERCENTILE.fullmatch(name):
            raise _unknown("aggregate", name, [*AGGREGATES, "p0 to p100", *PERIODS], f"{expression!r}: ")
    if len(names) > 1 or len(words) > len(names) + 1:
        raise GateError(f"{expression!r}: at most one aggregate and one of {', '.join(PERIODS)} at most")
    if isinstance(metric, Series):
        if not names:
            raise GateError(
                f"{expression!r}: {metric.name} has a value for each step: say which is meant, such as "
                f"'{metric.name} max' or '{metric.name} p95'"
            )
        return names[0], periods[0] if periods else None
    if periods:
        raise GateError(f"{expression!r}: {metric.name} has no {periods[0]!r}; what has: {', '.join(SERIES)}")
    if names and not metric.is_per_incident:
        raise GateError(f"{expression!r}: {metric.name} is one figure of the whole run; leave out {names[0]!r}")
    return names[0] if names else "max", None


def _number(text: str, expression: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise GateError(f"{expression!r}: {text} is not a number to compare with")
    return number


def _threshold(match: re.Match[str], metric: Metric | Series) -> float:
    number, unit = _number(match["number"], match.string), match["unit"]
    scales = SCALES[metric.unit]
    if unit not in scales:
        choice = " or ".join(repr(known) if known else "no unit" for known in scales)
        raise GateError(f"{match[0]!r}: {metric.name} cannot be measured in {unit!r}; write {choice}")
    if metric.unit == "ratio" and not unit and abs(number) > 1:
        raise GateError(
            f"{match[0]!r}: {metric.name} is a ratio and {number:g} is {number:.0%} of it; did you mean {number:g}%?"
        )
    return number / scales[unit]


def _measured(gate: Gate, value: float) -> Reason:
    return Reason(
        "beyond_limit",
        metric=gate.metric.name,
        value=value,
        comparison=gate.comparison,
        threshold=gate.threshold,
        unit=gate.metric.unit,
        aggregate=None if gate.is_of_one_figure else gate.aggregate,
        period=gate.period,
    )


def _unknown(what: str, name: str, known: list[str], where: str = "") -> GateError:
    guess = nearest(name, known)
    others = (
        f"did you mean {guess!r}?"
        if guess
        else (f"there are {', '.join(known)}" if len(known) <= _MAX_LISTED else "`chaos gates` lists them")
    )
    return GateError(f"{where}there is no {what} {name!r}; {others}")
