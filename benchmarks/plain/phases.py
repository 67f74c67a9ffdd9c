"""Where the time of a rank's steps goes, by phase: for plain ranks, and for ours as a hook of the runtime."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mecefo_runtime.training.inspection import Inspection

# What a step consists of, in its order. `reduce` is the all-reduce of gradients, their norm and, in ours, the commit's
# exchange; `between` is what is neither: the record of the step before, and the zeroing of gradients.
PHASES = ("data", "pipeline", "reduce", "optimizer", "between")
# The runtime's announcements; "backward" comes in the middle of the pipeline.
_ANNOUNCED = {"data": "data", "forward": "pipeline", "reduce": "reduce", "optimizer": "optimizer", "commit": "between"}
# What the hook's environment tells it.
FOLDER_VARIABLE, WINDOW_VARIABLE = "FAULT_FREE_FOLDER", "FAULT_FREE_WINDOW"
HOOK = f"{__name__}:install"


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that are measured: those after `first` (the last one of the warm-up) up to and including `last`."""

    first: int
    last: int

    @property
    def num_steps(self) -> int:
        """Number of measured steps."""
        return self.last - self.first

    @property
    def num_job_steps(self) -> int:
        """Steps that a measured job must have: two more, so that its end stays out of the measure."""
        return self.last + 2


class PhaseClock:
    """Adds up the wall and CPU seconds (all threads) that this process spends in each phase of the window's steps."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._seconds = {phase: [0.0, 0.0] for phase in PHASES}
        self._phase: str | None = None
        self._began = (0.0, 0.0)

    def enter(self, step: int, phase: str) -> None:
        """`phase` of `step` begins, and with it the one before ends."""
        now = (time.monotonic(), time.process_time())
        if self._phase is not None:
            seconds = self._seconds[self._phase]
            seconds[0] += now[0] - self._began[0]
            seconds[1] += now[1] - self._began[1]
        self._phase = phase if self._window.first < step <= self._window.last else None
        self._began = now

    def per_step(self) -> dict[str, tuple[float, float]]:
        """(wall, CPU) seconds of each phase in the mean step."""
        num_steps = self._window.num_steps
        return {phase: (wall / num_steps, cpu / num_steps) for phase, (wall, cpu) in self._seconds.items()}


class PhaseHook:
    """A rank's `PhaseClock` as a hook; writes what it found into `folder` when the window has passed."""

    def __init__(self, rank: int, folder: Path, window: Window) -> None:
        self._file = phases_file(folder, rank)
        self._window = window
        self._clock = PhaseClock(window)

    def expose(self, subject: Inspection) -> None:
        """See `mecefo_runtime.training.hooks.Hook`: times need no tensors."""

    def announce(self, step: int, phase: str) -> None:
        """See `mecefo_runtime.training.hooks.Hook`."""
        if phase in _ANNOUNCED:
            self._clock.enter(step, _ANNOUNCED[phase])
            if step == self._window.last + 1 and phase == "data":
                self._file.write_text(json.dumps(self._clock.per_step()))


def phases_file(folder: Path, rank: int) -> Path:
    """Where the hook of `rank` writes."""
    return folder / f"phases-{rank}.json"


def hook_environment(folder: Path, window: Window) -> Mapping[str, str]:
    """The variables with which a rank of ours measures its phases."""
    return {
        "MECEFO_HOOKS": HOOK,
        FOLDER_VARIABLE: str(folder),
        WINDOW_VARIABLE: f"{window.first} {window.last}",
    }


def install(*, rank: int, node: int, attempt: int) -> PhaseHook:
    """The runtime's hook (see `mecefo_runtime.training.hooks`)."""
    first, last = map(int, os.environ[WINDOW_VARIABLE].split())
    return PhaseHook(rank, Path(os.environ[FOLDER_VARIABLE]), Window(first, last))
