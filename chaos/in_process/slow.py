"""What makes a rank slow from inside: a delay before one phase of every step, or compute that is padded more.

Both are on the training thread. Without the padding the stops of a duty cycle would vanish in that of time dilation.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any, Protocol, runtime_checkable

from chaos.in_process.base import InProcessFault

# In a sleep of so long others may time out.
LONG_SECONDS = 1.0


class DelayPhase(InProcessFault):
    """Sleeps before `phase`: `delay_seconds`, give or take up to `jitter_seconds` as `seed` draws it.

    Reports each sleep as it was measured: {step, asked_seconds, slept_seconds, woke_monotonic}. The rank may be ended
    in a long one, so that it is told before, too: {asleep_in, asked_seconds, since_monotonic}.
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
        if asked >= LONG_SECONDS:
            self.report({"asleep_in": step, "asked_seconds": asked, "since_monotonic": began})
        time.sleep(asked)
        woke = time.monotonic()
        self._num_sleeps += 1
        self._slept_seconds += woke - began
        self.report({"step": step, "asked_seconds": asked, "slept_seconds": woke - began, "woke_monotonic": woke})


class Pacer(Protocol):
    """Pads compute segments to `ratio` x `slow_factor` times their CPU time."""

    ratio: float
    slow_factor: float


@runtime_checkable
class Paced(Protocol):
    """A subject of which a pacer pads the compute."""

    pacer: Pacer


class SlowPace(InProcessFault):
    """Pads `factor` times more, where the rank's compute is padded at all; else it does nothing."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Slower from the next compute segment on; says how the compute is padded."""
        self._pacer: Pacer | None = None
        if not isinstance(self.subject, Paced) or not self.subject.pacer.pads:
            return {"padded_ratio": 1.0, "slow_factor": 1.0}
        self._pacer = self.subject.pacer
        self._pacer.slow_factor *= float(self.arguments["factor"])
        return {"padded_ratio": self._pacer.ratio, "slow_factor": self._pacer.slow_factor}

    def lift(self) -> dict[str, Any]:
        """As fast as before."""
        if self._pacer is None:
            return {"slow_factor": 1.0}
        self._pacer.slow_factor /= float(self.arguments["factor"])
        return {"slow_factor": self._pacer.slow_factor}
