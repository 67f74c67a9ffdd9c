"""A rank whose compute is padded by time dilation, and padded more for a time: a slower device among the others.

Without it the stops of a duty cycle would vanish in the padding.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from chaos.in_process.base import InProcessFault


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
