"""Steps and states that the ranks of a command reported, by attempt and rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis.command.attempts import AttemptsOfProcesses
from mecefo_runtime.system.command_records import (
    CheckpointBegun,
    SamplerSeen,
    StateChecksums,
    StateLoaded,
    StepsCounted,
    StepSeen,
    TrainingEntered,
)
from mecefo_runtime.system.job_records import AttemptStarted, CheckpointWritten
from mecefo_runtime.system.record import Record

Place = tuple[int, int]
"""Attempt and rank."""


@dataclass(slots=True)
class Observed:
    """Steps of one job, and the states that its ranks began with, saved and loaded."""

    steps: dict[Place, dict[int, StepSeen]] = field(default_factory=dict)
    sums: dict[Place, dict[int, StateChecksums]] = field(default_factory=dict)
    entered: dict[Place, TrainingEntered] = field(default_factory=dict)
    counted: dict[Place, StepsCounted] = field(default_factory=dict)
    samplers: dict[Place, SamplerSeen] = field(default_factory=dict)
    saves: dict[Place, list[CheckpointBegun]] = field(default_factory=dict)
    loads: dict[int, list[StateLoaded]] = field(default_factory=dict)
    # By path, and by device and inode: the step after which a file or folder was saved last, and when.
    saved_after: dict[object, list[tuple[float, int]]] = field(default_factory=dict)
    world_sizes: dict[int, int | None] = field(default_factory=dict)
    _settings: dict[Place, Mapping[int, str]] = field(default_factory=dict)

    @property
    def attempts(self) -> list[int]:
        """Those of which steps were seen."""
        return sorted({attempt for attempt, _ in self.steps})

    def ranks(self, attempt: int) -> list[int]:
        """Those of which steps were seen in it."""
        return sorted(rank for number, rank in self.steps if number == attempt)

    def groups(self, attempt: int, rank: int) -> Mapping[int, str]:
        """Settings of its parameter groups by step; events have them only when they change."""
        place = attempt, rank
        if place not in self._settings:
            current, found = "", {}
            for step, seen in sorted(self.steps.get(place, {}).items()):
                current = seen.groups or current
                found[step] = current
            self._settings[place] = found
        return self._settings[place]

    def step_loaded(self, attempt: int) -> int | None:
        """The step after which the checkpoint was saved that an attempt loaded; None: not known, or several."""
        found = {step for load in self.loads.get(attempt, ()) if load.error is None for step in self._steps_of(load)}
        return found.pop() if len(found) == 1 else None

    def _steps_of(self, load: StateLoaded) -> Iterable[int]:
        for key in ((load.device, load.inode), load.path):
            if key is None or key == (None, None):
                continue
            saves = self.saved_after.get(key, [])
            index = bisect_right(saves, (load.monotonic_seconds, -1))
            if index:
                return [saves[index - 1][1]]
        return ()


def observe(records: Sequence[Record], saved: Iterable[CheckpointWritten] = ()) -> Observed:
    """Read the records of a job, by time; `saved` are those of its checkpoints."""
    found, belongs = Observed(), AttemptsOfProcesses(records)
    for record in records:
        if isinstance(record, AttemptStarted):
            found.world_sizes[record.attempt_number] = record.world_size
            continue
        rank = record.rank
        if rank is None or not isinstance(record, _OBSERVED):
            continue
        attempt = belongs.of(record.pid, record.monotonic_seconds) or record.attempt
        place = attempt, rank
        match record:
            case StepSeen(step=int(step)):
                found.steps.setdefault(place, {})[step] = record
            case StateChecksums(step=int(step)):
                found.sums.setdefault(place, {})[step] = record
            case TrainingEntered():
                found.entered.setdefault(place, record)
            case StepsCounted():
                found.counted.setdefault(place, record)
            case SamplerSeen():
                found.samplers[place] = record
            case CheckpointBegun(step=int()):
                found.saves.setdefault(place, []).append(record)
            case StateLoaded():
                found.loads.setdefault(attempt, []).append(record)
            case _:
                pass
    for written in saved:
        if written.step is not None:
            for path, *place_of_file in written.saved:
                for key in (path, tuple(place_of_file[:2])):
                    found.saved_after.setdefault(key, []).append((written.monotonic_seconds, written.step))
    for times in found.saved_after.values():
        times.sort()
    return found


_OBSERVED = (StepSeen, StateChecksums, TrainingEntered, StepsCounted, SamplerSeen, CheckpointBegun, StateLoaded)
