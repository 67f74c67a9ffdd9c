"""The report as one HTML file that needs no network and no script: to keep, to mail, to attach to a CI run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.report import svg, wording
from harness.report.curves import trace
from harness.words import count, name_seconds, one_line, speed_text
from mecefo_runtime.events import Event

_TEMPLATE = "report.html.j2"
_PHASE_COLOURS = 8


def render(summary: Mapping[str, Any], events: Iterable[Event], *, folder: Path | None = None) -> str:
    """The whole page. `folder` is where the run's files are, for the command that repeats it."""
    curves = trace(events)
    unit, speeds = wording.speeds(summary)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        summary=summary,
        name=summary.get("name") or "run",
        verdict=str(summary.get("verdict")),
        headline=wording.headline(summary),
        tiles=_tiles(summary),
        incidents=[_incident(index, raw) for index, raw in enumerate(summary.get("incidents") or ())],
        unit=unit,
        speeds={key: speed_text(speed) for key, speed in speeds.items()},
        speed_chart=svg.speed_chart(curves),
        loss_chart=svg.loss_chart(curves),
        has_twin=bool(curves.twin),
        lanes_chart=svg.lanes_chart(curves),
        degraded=any(holding.degraded for lane in curves.lanes.values() for holding in lane),
        times=_times(summary),
        unaccounted_seconds=wording.unaccounted_seconds(summary),
        gates=[
            {
                "expression": gate.get("expression"),
                "value": wording.gate_value(gate),
                "word": wording.gate_word(gate),
                "builtin": bool(gate.get("builtin")),
            }
            for gate in summary.get("gates") or ()
        ],
        repeat=wording.repeat_command(summary, folder),
        folder=folder,
    )


def _clean(value: object) -> object:
    """Everything that the template prints goes through here, so that no control character reaches the page."""
    return value if isinstance(value, Markup) else one_line(value)


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(figure, what it is, half a sentence of what that means), only for what was measured."""
    recoveries = [s for i in summary.get("incidents") or () if (s := wording.recovery_seconds(i)) is not None]
    tiles: list[tuple[str, str, str]] = []
    if recoveries:
        worst = "the longest of them, " if len(recoveries) > 1 else ""
        tiles.append((name_seconds(max(recoveries)), "recovery", f"{worst}from the fault to the next committed step"))
    if summary.get("throughput_drop_ratio") is not None:
        drop = wording.percent(summary["throughput_drop_ratio"], 2)
        tiles.append((drop, "speed drop", "under the fault, against before"))
    if summary.get("steps_lost") is not None:
        committed = count(summary.get("steps_committed") or 0, "step")
        tiles.append((str(summary["steps_lost"]), "steps lost", f"{committed} committed"))
    if summary.get("loss_deviation_ratio") is not None:
        deviation = wording.percent(summary["loss_deviation_ratio"], 2)
        tiles.append((deviation, "loss deviation", "from the same run without faults"))
    if summary.get("goodput_ratio") is not None:
        tiles.append((wording.percent(summary["goodput_ratio"]), "goodput", "share of the time spent on training"))
    return tiles


def _incident(index: int, raw: Mapping[str, Any]) -> dict[str, Any]:
    parts = [
        svg.Part(words, seconds, f"phase-{place % _PHASE_COLOURS}")
        for place, (words, seconds) in enumerate(wording.phase_rows(raw))
    ]
    recovery = wording.recovery_seconds(raw)
    return {
        "title": _sentence(wording.incident_title(index, raw)),
        "verified": bool(raw.get("verified")),
        "effect": _sentence(wording.effect_words(raw)),
        "diagnosis": _sentence(wording.diagnosis_words(raw) or ""),
        "bar": svg.stacked_bar(parts, "The recovery, phase by phase"),
        "rows": [(part.css, part.words, name_seconds(part.seconds)) for part in parts],
        "recovery": None if recovery is None else name_seconds(recovery),
        "how": wording.how_it_recovered(raw),
        "failure": wording.recovery_words(raw),
        "later": [(words, name_seconds(seconds)) for words, seconds in wording.later_rows(raw)],
    }


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _times(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    wall = summary.get("wall_clock_seconds")
    if not wall:
        return None
    rows = wording.time_rows(summary)
    css = [
        f"phase-{index % _PHASE_COLOURS}" if key != "productive" else "part-holds"
        for index, (key, _, _) in enumerate(rows)
    ]
    parts = [svg.Part(words, seconds, colour) for (_, words, seconds), colour in zip(rows, css, strict=True)]
    return {
        "bar": svg.stacked_bar(parts, "How the wall clock was spent"),
        "rows": [(part.css, part.words, name_seconds(part.seconds), f"{part.seconds / wall:.1%}") for part in parts],
        "wall": name_seconds(wall),
    }
