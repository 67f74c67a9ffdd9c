"""`chaos gates`: what a gate can be set on, and what one that is written means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chaos.commands.options import JSON_OPTION
from chaos.commands.output import print_json, print_text
from chaos.errors import UsageError

if TYPE_CHECKING:
    from harness.judging.gates import Gate

_GRAMMAR = "METRIC [min|max|mean|median|pNN] [before|during|after] OPERATOR NUMBER[UNIT]"

_UNITS = {"seconds": " s", "ratio": " (a ratio)", "rate": " per second", "token_rate": " tokens/s"}


@click.command()
@click.argument("expressions", metavar="[GATE]...", nargs=-1)
@JSON_OPTION
def gates(expressions: tuple[str, ...], as_json: bool) -> int:
    """List the metrics that gates can be set on, with their units; or say how each GATE is understood."""
    from harness.judging.gates import Gate, GateError

    try:
        parsed = [Gate.parse(expression) for expression in expressions]
    except GateError as error:
        raise UsageError(str(error)) from error
    if parsed:
        rows = [_meaning(gate) for gate in parsed]
        print_json(rows) if as_json else print_text("\n".join(map(_sentence, rows)))
        return 0
    document = _vocabulary()
    print_json(document) if as_json else print_text(_text(document))
    return 0


def _vocabulary() -> dict[str, Any]:
    from harness.judging.early_end import can_end_early
    from harness.judging.gates import AGGREGATES, BUILTIN_GATES, OPERATORS, UNITS, Gate
    from harness.judging.metric_words import ABOUT, SERIES_ABOUT
    from harness.judging.metrics import METRICS
    from harness.judging.series import PERIODS, SERIES

    return {
        "grammar": _GRAMMAR,
        "aggregates": [*AGGREGATES, "pNN"],
        "periods": list(PERIODS),
        "operators": list(OPERATORS),
        "always": list(BUILTIN_GATES),
        "metrics": [
            {
                "name": metric.name,
                "kind": "incident" if metric.is_per_incident else "run",
                "units": list(UNITS[metric.unit]),
                "abort_on_fail": can_end_early(Gate.parse(f"{metric.name} <= 0")),
                "about": ABOUT[metric.name],
            }
            for metric in METRICS.values()
        ]
        + [
            {
                "name": series.name,
                "kind": "series",
                "units": list(UNITS[series.unit]),
                "abort_on_fail": can_end_early(Gate.parse(f"{series.name} max <= 0")),
                "about": SERIES_ABOUT[series.name],
            }
            for series in SERIES.values()
        ],
    }


def _text(document: dict[str, Any]) -> str:
    headings = {
        "run": "of the run: one figure, no aggregate",
        "incident": "of each incident: the largest, unless an aggregate is written",
        "series": "series: an aggregate is needed; before, during or after the fault may be written",
    }
    lines = [document["grammar"], f"always checked: {', '.join(document['always'])}"]
    for kind, heading in headings.items():
        lines += ["", heading]
        for metric in document["metrics"]:
            if metric["kind"] == kind:
                mark = "*" if metric["abort_on_fail"] else " "
                units = f" [{', '.join(metric['units'])}]" if metric["units"] else ""
                lines.append(f"{mark} {metric['name']:<36}{metric['about']}{units}")
    lines += ["", "* may have abort_on_fail, with < or <=: it is known to fail before the run is over"]
    return "\n".join(lines)


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
