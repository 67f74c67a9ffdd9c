"""`chaos gates`: the metrics that gates can use, and what a gate means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from chaos.errors import UsageError
from chaos.host.terminal import beside, text_columns, wrap
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import JSON_OPTION
from mecefo_chaos.cli.shared.output import print_as_is, print_json, print_text
from mecefo_runtime.system.json_values import to_json

if TYPE_CHECKING:
    from harness.judging.gates import Gate

_NAME = re.compile(r"[A-Za-z][\w-]*")
_GRAMMAR = "METRIC [min|max|mean|median|pNN] [before|during|after] OPERATOR NUMBER[UNIT]"

_UNITS = {"seconds": " s", "ratio": " (a ratio)", "rate": " per second", "token_rate": " tokens/s"}


# Of a job that restarted the checks are those of the built-in job.
_KINDS = ("built-in", "command")
_HEADINGS = {
    "run": "of the run: one figure, no aggregate",
    "incident": "of each incident: the largest, unless an aggregate is written",
    "series": "series: an aggregate is needed; before, during or after the fault may be written",
}
_THRESHOLDS = {"ratio": "5%", "seconds": "5s", "number": "10", "token_rate": "1000tokens/s", "rate": "1000tokens/s"}


@click.command()
@click.argument("expressions", metavar="[GATE|METRIC]...", nargs=-1, shell_complete=completing.METRICS)
@JSON_OPTION
def gates(expressions: tuple[str, ...], as_json: bool) -> int:
    """List the metrics for pass criteria, with units; or explain each GATE or METRIC."""
    rows = [row for expression in expressions for row in _asked(expression.strip())]
    if rows:
        texts = [_sentence(row) if "gate" in row else _metric_text(row) for row in rows]
        print_json(rows) if as_json else print_text("\n".join(texts))
        return 0
    document = _vocabulary()
    print_json(document) if as_json else print_as_is("\n".join(_lines(document, text_columns())))
    return 0


def _asked(expression: str) -> list[dict[str, Any]]:
    """What there is to say of a gate, or of what goes by the name of a metric, which may be two."""
    from harness.judging.gates import Gate, GateError, find_metrics

    try:
        if _NAME.fullmatch(expression):
            names = {metric.name for metric in find_metrics(expression)}
            return [{**row, "example": _example(row)} for row in _metrics() if row["name"] in names]
        return [_meaning(Gate.parse(expression))]
    except GateError as error:
        raise UsageError(str(error)) from error


def _example(row: dict[str, Any]) -> str:
    """A gate on a metric, the way round in which it makes sense."""
    from harness.judging.metrics import METRICS
    from harness.judging.series import SERIES

    if row["kind"] == "series":
        unit = SERIES[row["name"]].unit
        words, is_least = (" min", True) if unit == "rate" else (" max", False)
    else:
        unit, words = METRICS[row["name"]].unit, ""
        is_least = METRICS[row["name"]].better == "higher"
    threshold = "95%" if is_least and unit == "ratio" else _THRESHOLDS[unit]
    return f"{row['name']}{words} {'>=' if is_least else '<='} {threshold}"


def _vocabulary() -> dict[str, Any]:
    from harness.judging.always_checked import CHECKS, GATES, JOBS
    from harness.judging.gates import AGGREGATES, OPERATORS
    from harness.judging.series import PERIODS

    return {
        "grammar": _GRAMMAR,
        "aggregates": [*AGGREGATES, "pNN"],
        "periods": list(PERIODS),
        "operators": list(OPERATORS),
        "always": list(GATES["built-in"]),
        "jobs": dict(JOBS),
        "always_of_job": {job: list(expressions) for job, expressions in GATES.items()},
        "checks": [to_json(check) for check in CHECKS],
        "metrics": _metrics(),
    }


def _metrics() -> list[dict[str, Any]]:
    from harness.judging.early_end import can_end_early
    from harness.judging.gates import Gate
    from harness.judging.metrics import METRICS
    from harness.judging.series import SERIES
    from harness.judging.units import SCALES

    return [
        {
            "name": metric.name,
            "kind": "incident" if metric.is_per_incident else "run",
            "units": [unit for unit in SCALES[metric.unit] if unit],
            "abort_on_fail": can_end_early(Gate.parse(f"{metric.name} <= 0")),
            "about": metric.text,
        }
        for metric in METRICS.values()
    ] + [
        {
            "name": series.name,
            "kind": "series",
            "units": [unit for unit in SCALES[series.unit] if unit],
            "abort_on_fail": can_end_early(Gate.parse(f"{series.name} max <= 0")),
            "about": series.text,
        }
        for series in SERIES.values()
    ]


def _lines(document: dict[str, Any], width: int) -> Iterator[str]:
    yield from wrap(document["grammar"], width)
    yield ""
    for line in _always_lines(document):
        yield from wrap(line, width)
    for kind, heading in _HEADINGS.items():
        yield ""
        yield from wrap(heading, width)
        for metric in document["metrics"]:
            if metric["kind"] == kind:
                mark = "*" if metric["abort_on_fail"] else " "
                yield from beside(f"{mark} {metric['name']}", f"{metric['about']}{_units(metric)}", 38, width)
    yield ""
    yield from wrap("* may have abort_on_fail, with < or <=: it is known to fail before the run has ended", width)


def _always_lines(document: dict[str, Any]) -> Iterator[str]:
    """The gates and checks that hold without being asked for, by the jobs that have them."""
    jobs, checks = document["jobs"], document["checks"]
    yield "always checked, without being asked for:"
    for job, expressions in document["always_of_job"].items():
        # In backquotes a gate is not parted, and can be copied.
        yield f"  {jobs[job]}: {', '.join(f'`{expression}`' for expression in expressions)}"
    of_all = [check for check in checks if len(check["jobs"]) == len(jobs)]
    for heading, own in (
        ("any job", of_all),
        *((jobs[job], [check for check in checks if job in check["jobs"] and check not in of_all]) for job in _KINDS),
    ):
        yield f"besides its gates, {heading} passes only if"
        for check in own:
            yield f"  - {check['about']} (else {', '.join(check['verdicts'])})"


def _units(row: dict[str, Any]) -> str:
    return f" [{', '.join(row['units'])}]" if row["units"] else ""


def _metric_text(row: dict[str, Any]) -> str:
    return (
        f"{row['name']}: {row['about']}{_units(row)}\n    {_HEADINGS[row['kind']]}\n    for example '{row['example']}'"
    )


def _meaning(gate: Gate) -> dict[str, Any]:
    from harness.judging.early_end import can_end_early

    return {
        "gate": gate.expression,
        "metric": gate.metric.name,
        "aggregate": None if gate.is_of_one_figure else gate.aggregate,
        "period": gate.period,
        "comparison": gate.comparison,
        "threshold": gate.threshold,
        "unit": gate.metric.unit,
        "abort_on_fail": can_end_early(gate),
    }


def _sentence(row: dict[str, Any]) -> str:
    what = f"{row['aggregate']} of {row['metric']}" if row["aggregate"] else row["metric"]
    when = f" {row['period']} the fault" if row["period"] else ""
    unit = _UNITS.get(row["unit"], "")
    early = "may" if row["abort_on_fail"] else "may not"
    words = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least", "==": "exactly", "!=": "not"}
    return (
        f"{row['gate']}: {what}{when} must be {words[row['comparison']]} {row['threshold']:g}{unit}; "
        f"{early} have abort_on_fail"
    )
