"""Gates: thresholds that a run must keep, and halt conditions that end it early.

    METRIC [min|max|mean|median|pNN] OPERATOR NUMBER[UNIT]

as in `throughput_drop <= 4.18%`, `recovery_seconds p95 < 5`, `detection_seconds max < 500ms`, `steps_lost == 0`. A
metric may be written without the `_ratio` or `_seconds` at its end. Units: `%` for ratios; `ms`, `s`, `min` for times
(seconds without one). A metric that each incident has stands for its largest value unless an aggregate says
otherwise.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from statistics import fmean, median
from typing import Any

from harness.attempts import COMMAND_RUNTIME
from harness.metrics import METRICS, Metric, Unit, find, nearest
from mecefo_runtime.events import MAIN_JOB, Event
from mecefo_runtime.planners import stops_on_loss

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
BUILTIN_GATES = ("steps_lost == 0", "samples_lost == 0", "unrecovered_incidents == 0")
"""What counts in every run of our runtime, asked for or not."""
_BUILTIN_GATES_OF_A_COMMAND = ("unrecovered_incidents == 0",)
_BUILTIN_GATES_OF_A_RESTART = ("samples_lost == 0", "unrecovered_incidents == 0")

_SCALES: Mapping[Unit, Mapping[str, float]] = {
    "ratio": {"": 1.0, "%": 100.0},
    "seconds": {"": 1.0, "s": 1.0, "ms": 1000.0, "min": 1 / 60},
    "number": {"": 1.0},
}
_NUMBER = r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_GATE = re.compile(
    rf"(?P<metric>[A-Za-z][\w-]*)(?:\s+(?P<aggregate>[A-Za-z][\w.]*))?\s*(?P<operator>[<>=!]=?)\s*{_NUMBER}\s*(?P<unit>[%\w]*)"
)
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)")
_HALT = re.compile(
    rf"(?P<metric>[A-Za-z][\w-]*)\s*(?:(?P<operator>[<>=!]=?)\s*{_NUMBER}|is\s+(?P<nan>nan))", re.IGNORECASE
)


class GateError(ValueError):
    """A gate or halt condition that cannot be understood, or that could never decide anything."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer of one gate.

    `value` is in base units (ratio, seconds, number); `passed` is None, inconclusive, when there is none. `reason` says
    why it did not pass.
    """

    expression: str
    value: float | None
    passed: bool | None
    builtin: bool = False
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "expression": self.expression,
            "value": self.value,
            "passed": self.passed,
            "builtin": self.builtin,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Gate:
    """A parsed gate; `threshold` in base units."""

    expression: str
    metric: Metric
    aggregate: str
    comparison: str
    threshold: float

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
                f"{expression!r} is no gate: write METRIC [min|max|mean|median|pNN] OPERATOR NUMBER[%|ms|s|min] "
                f"with one of {' '.join(OPERATORS)}, for example 'throughput_drop <= 4.18%'"
            )
        metric = find(match["metric"])
        if metric is None:
            raise _unknown("metric", match["metric"], list(METRICS), expression)
        return cls(
            expression,
            metric,
            _aggregate(match["aggregate"], metric, expression),
            match["operator"],
            _threshold(match, metric),
        )


def evaluate(gate: Gate, summary: Mapping[str, Any], *, builtin: bool = False) -> GateResult:
    """Hold `gate` against the figures of a summary.

    A missing value never passes: neither the figure of a run, nor that of any verified incident that ought to have it.
    """
    values = gate.metric.values(summary)
    known = [value for value in values if value is not None]
    reason = None
    if gate.metric.is_final and summary["status"] == "cut off":
        reason = f"the log was cut off before {gate.metric.name} was final"
    elif not values:
        reason = f"no verified incident has a value of {gate.metric.name}"
    elif len(known) < len(values):
        missing = f" for {len(values) - len(known)} of {len(values)} incidents" if len(values) > 1 else ""
        reason = f"{gate.metric.name} has no value{missing}"
    if reason is not None:
        return GateResult(gate.expression, None, None, builtin, reason)
    value = known[0] if not gate.metric.is_per_incident else aggregate(known, gate.aggregate)
    passed = OPERATORS[gate.comparison](value, gate.threshold)
    return GateResult(gate.expression, value, passed, builtin, None if passed else _measured(gate, value))


def builtin_gates(runtime: object, strategy: str | None = None) -> tuple[str, ...]:
    """What counts, asked for or not, of a job of `runtime` with that `strategy`: what it promises.

    To go back to a checkpoint loses steps by design. Of a command's job it is only that it comes through: which samples
    its steps used nobody can see.
    """
    if runtime != COMMAND_RUNTIME and stops_on_loss(strategy):
        return _BUILTIN_GATES_OF_A_RESTART
    return _BUILTIN_GATES_OF_A_COMMAND if runtime == COMMAND_RUNTIME else BUILTIN_GATES


def evaluate_all(
    expressions: Iterable[str], summary: Mapping[str, Any], builtins: Sequence[str] = BUILTIN_GATES
) -> list[GateResult]:
    """The gates of a run and the built-in ones. One that cannot be evaluated is inconclusive, with the reason."""
    asked = list(dict.fromkeys(expressions))
    results: list[GateResult] = []
    for expression in (*asked, *builtins):
        builtin = len(results) >= len(asked)
        try:
            results.append(evaluate(Gate.parse(expression), summary, builtin=builtin))
        except Exception as error:  # a checker that crashes knows nothing: never a pass
            results.append(GateResult(expression, None, None, builtin, f"could not be evaluated: {error}"))
    return results


def aggregate(values: Sequence[float], name: str) -> float:
    """One of `AGGREGATES`, or a percentile (`p95`), interpolated linearly between the two nearest values."""
    if name in AGGREGATES:
        return AGGREGATES[name](values)
    ordered = sorted(values)
    position = (len(ordered) - 1) * float(name.removeprefix("p")) / 100
    low, high = ordered[floor(position)], ordered[ceil(position)]
    return low + (high - low) * (position - floor(position))


def _step_throughput(event: Event) -> float | None:
    seconds = float(event.fields["committed_monotonic"]) - float(event.fields["began_monotonic"])
    return float(event.fields["tokens"]) / seconds if seconds > 0 else None


def _step_duration(event: Event) -> float | None:
    return float(event.fields["committed_monotonic"]) - float(event.fields["began_monotonic"])


HALT_METRICS: Mapping[str, Callable[[Event], float | None]] = {
    "training_loss": lambda event: float(event.fields["loss"]),
    "grad_norm": lambda event: float(event.fields["grad_norm"]),
    "throughput": _step_throughput,
    "step_seconds": _step_duration,
}
"""What a halt condition can look at, from one committed step of the main job: nats per token, tokens per second,
seconds."""


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
            raise _unknown("metric of a step", name, list(HALT_METRICS), expression)
        return cls(expression, name, match["operator"], _number(match["number"] or "0", expression))

    def check(self, event: Event) -> bool:
        """Whether `event` makes the condition true; only committed steps of the main job can."""
        if event.kind != "step_committed" or event.job != MAIN_JOB:
            return False
        try:
            value = HALT_METRICS[self.metric](event)
        except KeyError:  # a job that does not tell this figure
            return False
        if value is None:
            return False
        return not isfinite(value) if self.comparison is None else OPERATORS[self.comparison](value, self.threshold)


def _aggregate(name: str | None, metric: Metric, expression: str) -> str:
    if name is None:
        return "max"
    name = name.lower()
    if name not in AGGREGATES and not _PERCENTILE.fullmatch(name):
        raise _unknown("aggregate", name, [*AGGREGATES, "p95"], expression)
    if not metric.is_per_incident:
        raise GateError(f"{expression!r}: {metric.name} is one figure of the whole run; leave out {name!r}")
    return name


def _number(text: str, expression: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise GateError(f"{expression!r}: {text} is no number that anything could be compared with")
    return number


def _threshold(match: re.Match[str], metric: Metric) -> float:
    number, unit = _number(match["number"], match.string), match["unit"]
    scales = _SCALES[metric.unit]
    if unit not in scales:
        choice = " or ".join(repr(known) if known else "no unit" for known in scales)
        raise GateError(f"{match[0]!r}: {metric.name} cannot be measured in {unit!r}; write {choice}")
    if metric.unit == "ratio" and not unit and abs(number) > 1:
        raise GateError(
            f"{match[0]!r}: {metric.name} is a ratio and {number:g} is {number:.0%} of it; did you mean {number:g}%?"
        )
    return number / scales[unit]


def _measured(gate: Gate, value: float) -> str:
    which = f"{gate.aggregate} of {gate.metric.name}" if gate.metric.is_per_incident else gate.metric.name
    written = {"ratio": f"{value:.2%}", "seconds": f"{value:.3f} s", "number": f"{value:.6g}"}
    return f"{which} is {written[gate.metric.unit]}"


def _unknown(what: str, name: str, known: list[str], expression: str) -> GateError:
    guess = nearest(name, known)
    hint = f"did you mean {guess!r}? " if guess else ""
    return GateError(f"{expression!r}: there is no {what} {name!r}; {hint}known are: {', '.join(known)}")
