"""What a failure costs, and how often to save, whatever the way.

J. W. Young (1974), "A first order approximation to the optimum checkpoint interval".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mecefo_chaos.studies.papers.reft.claims import CHECKPOINT_SECONDS, FAILURES, SAVING_SPEEDUP
from mecefo_chaos.studies.papers.reft.saving import Saving, snapshot_way

_STEP_SECONDS = 1.0


def best_interval_seconds(save_seconds: float, mtbf_seconds: float) -> float:
    """sqrt(2 t_save MTBF)."""
    return math.sqrt(2 * save_seconds * mtbf_seconds)


def waste_per_failure_seconds(interval_seconds: float, stopped_seconds: float, retrieval_seconds: float) -> float:
    """Stopped time, half the interval that is trained again, and the retrieval."""
    return stopped_seconds + interval_seconds / 2 + retrieval_seconds


def waste_ratio(interval_seconds: float, save_seconds: float, mtbf_seconds: float, per_failure_seconds: float) -> float:
    """Of all time: saves, and failures."""
    return save_seconds / interval_seconds + per_failure_seconds / mtbf_seconds


@dataclass(frozen=True, slots=True)
class WasteRow:
    """One way to save under one process of failures. `basis` says where `save_seconds` is from."""

    way: str
    basis: str
    failures: str
    save_seconds: float
    retrieval_seconds: float
    interval_seconds: float
    per_failure_seconds: float
    waste_ratio: float


def waste_rows(saving: Saving | None, restore_seconds: dict[str, float]) -> tuple[WasteRow, ...]:
    """Of what was measured, and of the paper's claim at the scale of SPARe's simulation.

    `restore_seconds` by rung are from the failure until the first step after it: stopped time and retrieval.
    """
    return tuple(_rows(saving, restore_seconds))


def _rows(saving: Saving | None, restore_seconds: dict[str, float]) -> Iterator[WasteRow]:
    ways: list[tuple[str, str, float, float]] = []
    if saving is not None:
        basis = f"measured here, {saving.state_bytes / 2**20:.0f} MiB"
        way = snapshot_way(saving)
        if way is not None and "snapshot" in restore_seconds:
            name, stopped_seconds = way
            ways.append((name, basis, stopped_seconds, restore_seconds["snapshot"]))
        for name, one in saving.asynchronous.items():
            if "checkpoint" in restore_seconds:
                ways.append((name, basis, one.stopped_seconds, restore_seconds["checkpoint"]))
    claimed = CHECKPOINT_SECONDS / SAVING_SPEEDUP
    ways += [
        ("a checkpoint", f"{CHECKPOINT_SECONDS:g} s, as SPARe's simulation has it", CHECKPOINT_SECONDS, 0.0),
        ("REFT as claimed", f"the same, {SAVING_SPEEDUP:g} times faster", claimed, 0.0),
    ]
    for name, basis, save_seconds, seconds in ways:
        for failures in FAILURES:
            # It makes no sense to save more often than there is something new.
            interval_seconds = max(best_interval_seconds(save_seconds, failures.mtbf_seconds), _STEP_SECONDS)
            per_failure = waste_per_failure_seconds(interval_seconds, seconds, 0.0)
            ratio = waste_ratio(interval_seconds, save_seconds, failures.mtbf_seconds, per_failure)
            yield WasteRow(
                name, basis, failures.name, save_seconds, seconds, interval_seconds, per_failure, min(ratio, 1.0)
            )
