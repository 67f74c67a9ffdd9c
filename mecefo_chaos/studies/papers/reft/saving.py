"""How long saves take by snapshots and by asynchronous checkpoints, as `python -m benchmarks.snapshots` measured it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from chaos.errors import UsageError
from chaos.user_files import read_input
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_runtime.job.config import SnapshotConfig
from mecefo_runtime.system.json_values import JsonTypeError, from_json

FILE = "saving.json"
COMMAND = "python -m benchmarks.snapshots --part saving --saving FILE"
# The protection of a job whose snapshots say nothing of it.
DEFAULT_PROTECTION = SnapshotConfig().protection
# Of the time, for which saves may stop training: the same for every way.
BUDGET_RATIO = 0.01
# How the names of those end in which every rank saves all of it, and not its share.
WHOLE = ", whole state"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to save `bytes_per_rank`: training stops for `stopped_seconds`, all is safe after `total_seconds`.

    Both are medians of `num_saves`; `stopped_each` and `total_each` are all values, in the order of the rounds.
    Files of earlier versions have the medians alone.
    """

    MAY_HAVE_MORE: ClassVar[bool] = True

    bytes_per_rank: int
    stopped_seconds: float
    total_seconds: float
    num_saves: int = 0
    stopped_each: tuple[float, ...] = ()
    total_each: tuple[float, ...] = ()

    @property
    def saves(self) -> tuple[tuple[float, float], ...]:
        """Of each save the seconds stopped and in total; the medians where the file has no other values."""
        each = tuple(zip(self.stopped_each, self.total_each, strict=False))
        return each or ((self.stopped_seconds, self.total_seconds),)

    @property
    def stopped(self) -> Measured | None:
        """The seconds for which a save stops training."""
        return Measured.of(stopped for stopped, _ in self.saves)

    @property
    def total(self) -> Measured | None:
        """The seconds after which everything is safe."""
        return Measured.of(total for _, total in self.saves)

    @property
    def least_interval(self) -> Measured | None:
        """The seconds from one save to the next, within the budget and one save after the other."""
        return Measured.of(max(stopped / BUDGET_RATIO, total) for stopped, total in self.saves)


def times_less(one: Way, other: Way) -> Measured | None:
    """How many times less `one` stops training than `other`, of the same round."""
    return Measured.of(theirs / ours for (ours, _), (theirs, _) in zip(one.saves, other.saves, strict=False))


@dataclass(frozen=True, slots=True)
class Saving:
    """What was measured, when and on what; `methods` by name."""

    MAY_HAVE_MORE: ClassVar[bool] = True

    date: str
    machine: str
    command: str
    state_bytes: int
    methods: Mapping[str, Way] = field(default_factory=dict)

    @property
    def snapshots(self) -> Mapping[str, Way]:
        """Those of this product, by protection."""
        return {name.partition(", ")[2]: way for name, way in self.methods.items() if name.startswith("snapshot,")}

    @property
    def asynchronous(self) -> Mapping[str, Way]:
        """Asynchronous checkpoints."""
        return {name: way for name, way in self.methods.items() if "async" in name}


def snapshot_way(saving: Saving) -> tuple[str, float] | None:
    """(name, seconds stopped) of a snapshot with the default protection."""
    way = saving.snapshots.get(DEFAULT_PROTECTION)
    return None if way is None else (f"a snapshot, {DEFAULT_PROTECTION.upper()}", way.stopped_seconds)


def read_saving(path: Path | None) -> Saving | None:
    """What stands in `path`; without one, what came with this version; None where nothing did.

    Raises:
        UsageError: the file cannot be read, or is not what the benchmark wrote.
    """
    if path is None:
        shipped = files(__package__).joinpath(FILE)
        return _parse(shipped.read_text(encoding="utf-8"), FILE) if shipped.is_file() else None
    try:
        return _parse(read_input(path).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", path=str(path)) from error


def _parse(text: str, path: str) -> Saving:
    try:
        return from_json(Saving, json.loads(text))
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, JsonTypeError) else "it is no JSON"
        raise UsageError(f"is not what `{COMMAND}` wrote: {said}", path=path) from error
