"""A delay before one phase of every step, on the training thread: what the rank's own work or its peers wait for."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from chaos.in_process.base import InProcessFault


class DelayPhase(InProcessFault):
    """Sleeps before `phase`: `delay_seconds`, give or take up to `jitter_seconds` as `seed` draws it.

    Reports each sleep as it was measured: {step, asked_seconds, slept_seconds, woke_monotonic}.
    """

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Nothing is slow yet: the rank is held."""
        self._held_at = (step, phase)
        self._rng = Random(self.arguments["seed"])
        self._num_sleeps = 0
        self._slept_seconds = 0.0
        return {"phase": self.arguments["phase"], "delay_seconds": self.arguments["delay_seconds"]}

    def released(self) -> None:
        """Held before the very phase, the rank enters it now."""
        self._sleep(*self._held_at)

    def announced(self, step: int, phase: str) -> None:
        """Sleep if it is the phase."""
        self._sleep(step, phase)

    def lift(self) -> dict[str, Any]:
        """No further sleep."""
        return {"num_sleeps": self._num_sleeps, "slept_seconds": round(self._slept_seconds, 6)}

    def _sleep(self, step: int, phase: str) -> None:
        if phase != self.arguments["phase"]:
            return
        # By random() alone, of all methods the one that gives the same numbers in every version of Python.
        jitter = (2 * self._rng.random() - 1) * self.arguments["jitter_seconds"]
        asked = max(0.0, self.arguments["delay_seconds"] + jitter)
        began = time.monotonic()
        time.sleep(asked)
        woke = time.monotonic()
        self._num_sleeps += 1
        self._slept_seconds += woke - began
        self.report({"step": step, "asked_seconds": asked, "slept_seconds": woke - began, "woke_monotonic": woke})
