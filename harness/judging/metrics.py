"""The figures that gates can be set on: their names, units, and where a summary holds them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.analysis.accounting import BADPUT_CAUSES
from harness.judging.summary import Summary
from harness.judging.units import Unit

_SUFFIXES = ("", "_ratio", "_seconds", "_tokens_per_second")


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a summary. `path` leads to it; with `is_per_incident` it starts at each entry of `incidents`.

    `is_membership` marks phases that only faults on ranks have (the loss of the coordinator regroups nobody).
    `only_grows` marks what never becomes smaller while the job goes on, `is_of_before` what is known for good once
    the first fault has affected, `is_beside_twin` what is taken over the steps that job and twin both committed.
    """

    name: str
    unit: Unit
    path: tuple[str, ...]
    is_per_incident: bool = False
    is_membership: bool = False
    only_grows: bool = False
    is_of_before: bool = False
    is_beside_twin: bool = False

    def values(self, summary: Summary) -> list[float | None]:
        """Its values in `summary`: one for a figure of the run, one for each verified incident that has this phase."""
        if not self.is_per_incident:
            return [_at(summary, self.path)]
        return [
            _at(incident, self.path)
            for incident in summary.incidents
            if incident.verified and (incident.ranks or not self.is_membership)
        ]


def _run(
    name: str,
    unit: Unit,
    *path: str,
    only_grows: bool = False,
    is_of_before: bool = False,
    is_beside_twin: bool = False,
) -> Metric:
    return Metric(
        name, unit, path or (name,), only_grows=only_grows, is_of_before=is_of_before, is_beside_twin=is_beside_twin
    )


def _phase(name: str, *path: str, is_membership: bool = True) -> Metric:
    return Metric(name, "seconds", path or (name,), is_per_incident=True, is_membership=is_membership)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _run("throughput_drop_ratio", "ratio"),
        _run("throughput_drop_whole_run_ratio", "ratio"),
        _run("throughput_noise_ratio", "ratio"),
        *(
            _run(
                f"throughput_{when}_tokens_per_second",
                "token_rate",
                "throughput_tokens_per_second",
                when,
                is_of_before=when == "before",
            )
            for when in ("before", "during", "after")
        ),
        _run("loss_deviation_ratio", "ratio", is_beside_twin=True),
        _run("loss_curve_max_deviation_ratio", "ratio", is_beside_twin=True),
        _run("final_loss", "number", is_beside_twin=True),
        _run("twin_loss", "number", is_beside_twin=True),
        _run("steps_committed", "number", only_grows=True),
        _run("steps_lost", "number", only_grows=True),
        _run("steps_repeated", "number", only_grows=True),
        _run("samples_lost", "number", only_grows=True),
        _run("diverged_units", "number"),
        _run("unrecovered_incidents", "number"),
        _run("layout_changes", "number", only_grows=True),
        _run("degraded_share_ratio", "ratio"),
        _run("unfit_steps", "number", only_grows=True),
        _run("diagnosis_recall_ratio", "ratio"),
        _run("diagnosis_precision_ratio", "ratio"),
        _run("false_accusations", "number"),
        _run("goodput_ratio", "ratio"),
        _run("wall_clock_seconds", "seconds", only_grows=True),
        _run("productive_seconds", "seconds"),
        _run("step_seconds", "seconds", is_of_before=True),
        *(_run(f"badput_{cause}_seconds", "seconds", "badput_seconds", cause) for cause in BADPUT_CAUSES),
        _phase("recovery_seconds", is_membership=False),
        _phase("progress_seconds", is_membership=False),
        _phase("detection_seconds"),
        _phase("diagnosis_seconds"),
        _phase("verify_seconds", "phases_seconds", "verify", is_membership=False),
        _phase("restore_seconds", "phases_seconds", "restore", is_membership=False),
        *(
            _phase(f"{phase}_seconds", "phases_seconds", phase)
            for phase in ("detect", "isolate", "regroup", "transfer", "first_step", "rejoin")
        ),
    )
}

OF_THE_TWIN = ("loss_deviation_ratio", "loss_curve_max_deviation_ratio", "twin_loss")
"""What a run without a fault-free twin has no value of."""


def find(name: str) -> Metric | None:
    """The metric of that name, with or without the unit at its end; None when there is none."""
    name = name.strip().lower().replace("-", "_")
    return next((METRICS[name + suffix] for suffix in _SUFFIXES if name + suffix in METRICS), None)


def nearest(name: str, names: list[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    known = [*names, *(name.removesuffix(suffix) for name in names for suffix in _SUFFIXES if suffix)]
    matches = difflib.get_close_matches(name.strip().lower().replace("-", "_"), known, n=1)
    return matches[0] if matches else None


def _at(values: Any, path: tuple[str, ...]) -> float | None:
    value = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key)
    return None if value is None or isinstance(value, bool) else float(value)
