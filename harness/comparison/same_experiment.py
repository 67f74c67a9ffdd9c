"""Whether two samples are runs of the same experiment: by what was written, and by what was drawn from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.errors import UsageError
from chaos.plan.replay import Recorded, drawn_experiment
from harness.comparison.sample import Sample
from harness.store.log import BREAKDOWNS
from mecefo_runtime.system.events import Event

# What of an experiment changes neither what is run nor how it is measured.
_IMMATERIAL = ("name", "gates", "halt")
# What says which faults there are.
_SCHEDULE = ("faults", "profile")
_MAX_NAMED = 4


def drawn_from(events: Sequence[Event]) -> Mapping[str, Any]:
    """The experiment of a run with the incidents that were drawn in place of its schedule; empty if not known."""
    try:
        return drawn_experiment(Recorded.of(events))
    except (UsageError, *BREAKDOWNS):
        # The log ends before the plan, or its plan is damaged: the experiment as written remains to compare.
        return {}


def other_experiment(now: Sample, base: Sample) -> str | None:
    """How the experiments differ, None if they are the same as far as figures are concerned."""
    if now.experiment_hash == base.experiment_hash and now.experiment_hash is not None:
        return None
    if not now.experiment or not base.experiment:
        return f"another experiment ({now.experiment_hash}, not {base.experiment_hash})"
    differing = differences(now.experiment, base.experiment, now.drawn, base.drawn)
    more = f" and {len(differing) - _MAX_NAMED} more" if len(differing) > _MAX_NAMED else ""
    return f"another experiment ({'; '.join(differing[:_MAX_NAMED])}{more})" if differing else None


def differences(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    ours_drawn: Mapping[str, Any] | None = None,
    theirs_drawn: Mapping[str, Any] | None = None,
) -> list[str]:
    """The differences of two experiments that matter to their figures, such as `job.steps: 50, not 80`.

    A replay names what its original left to chance or to the clock. So where what was drawn is known on both sides, a
    setting differs only if it differs as written and as drawn, and schedules that differ as written differ as drawn.
    """
    written = _differing(ours, theirs)
    if not ours_drawn or not theirs_drawn:
        return _named(written)
    drawn = _differing(ours_drawn, theirs_drawn)
    settings = {key: values for key, values in written.items() if not _is_of_schedule(key) and key in drawn}
    has_other_schedule = any(map(_is_of_schedule, written))
    schedule = {key: values for key, values in drawn.items() if _is_of_schedule(key) and has_other_schedule}
    return _named({**settings, **schedule})


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values of both sides, by key, where they differ."""
    one, other = (
        _flat({key: value for key, value in experiment.items() if key not in _IMMATERIAL})
        for experiment in (ours, theirs)
    )
    pairs = {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys()}
    return {key: values for key, values in pairs.items() if values[0] != values[1]}


def _named(differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [f"{key}: {json.dumps(one)}, not {json.dumps(other)}" for key, (one, other) in sorted(differing.items())]


def _is_of_schedule(key: str) -> bool:
    return key.split(".")[0].split("[")[0] in _SCHEDULE


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        parts = [(f"{prefix}.{key}" if prefix else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{prefix}[{index}]", part) for index, part in enumerate(value)]
    else:
        return {prefix: value}
    return {key: leaf for name, part in parts for key, leaf in _flat(part, name).items()}
