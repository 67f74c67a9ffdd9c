"""The wall clock of a job as stretches from one commit to the next, each shared out among causes when it is over.

What `accounting` does for a whole log, as it goes. News that come late (a fault that is detected, or seen to have taken
effect, some steps after it affected) change the stretches that they are about, as far back as those are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.analysis.accounting import BADPUT_CAUSES, PRODUCTIVE, Claim, Strength, resolve

_MAX_STRETCHES = 256
_MAX_CLAIMS = 256


@dataclass(slots=True)
class Stretch:
    """From one commit (or the start of the job) to the next, in CLOCK_MONOTONIC seconds.

    `began_seconds` is when the step began that committed at its end; None: none did. A slow one ran under a fault.
    """

    start_seconds: float
    end_seconds: float
    began_seconds: float | None
    step: int | None
    is_slow: bool
    claims: list[Claim]
    charges: dict[str, float] = field(default_factory=dict)


class Stretches:
    """Seconds by cause, adding up to the time from the start to the end of the newest stretch.

    Late news can correct `seconds` downwards, which a counter must not be: what `tell` returns never falls.
    `reference_seconds` is what a step takes without a fault: what a slow one takes beyond it is degraded speed.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((PRODUCTIVE, *BADPUT_CAUSES), 0.0)
        self._told = dict(self.seconds)
        self.started_seconds: float | None = None
        self.settled_seconds = 0.0
        self.reference_seconds: float | None = None
        self._kept: deque[Stretch] = deque(maxlen=_MAX_STRETCHES)
        self._ahead: deque[Claim] = deque(maxlen=_MAX_CLAIMS)

    def start(self, at_seconds: float) -> None:
        """The job starts."""
        self.started_seconds = self.settled_seconds = at_seconds

    def claim(self, start: float, end: float, strength: Strength, cause: str) -> None:
        """That time went into `cause`, as far as there is no stronger claim on it."""
        if end <= start:
            return
        claim = Claim(start, end, strength, cause)
        for stretch in self._since(start):
            if stretch.start_seconds < end:
                stretch.claims = [*stretch.claims, claim][-_MAX_CLAIMS:]
                self._charge(stretch)
        if end > self.settled_seconds:
            self._ahead.append(claim)

    def settle(
        self, end: float, claims: Iterable[Claim], began: float | None, step: int | None, *, is_slow: bool
    ) -> None:
        """A stretch is over, at a commit or at the end of the job; `claims` are its step's own."""
        if self.started_seconds is None or end <= self.settled_seconds:
            return
        stretch = Stretch(self.settled_seconds, end, began, step, is_slow, [*claims, *self._ahead])
        self._ahead = deque((claim for claim in self._ahead if claim.end > end), maxlen=_MAX_CLAIMS)
        self.settled_seconds = end
        self._kept.append(stretch)
        self._charge(stretch)

    def slow_down(self, since: float) -> None:
        """A fault that affected then was seen to take effect: the steps that committed since ran under it."""
        for stretch in self._since(since):
            if stretch.began_seconds is not None and not stretch.is_slow:
                stretch.is_slow = True
                self._charge(stretch)

    def tell(self) -> dict[str, float]:
        """Seconds by cause for a reader who asks again and again: none of them is less than what it was told before."""
        self._told = {cause: max(seconds, self._told[cause]) for cause, seconds in self.seconds.items()}
        return self._told

    def around(self, at_seconds: float) -> Stretch | None:
        """The stretch that this time lies in; None when it is not over yet, or kept no longer."""
        return next(
            (one for one in reversed(self._kept) if one.start_seconds < at_seconds <= one.end_seconds),
            None,
        )

    def committed_seconds(self, step: int) -> float | None:
        """When `step` was committed; None when that is kept no longer."""
        return next((stretch.end_seconds for stretch in reversed(self._kept) if stretch.step == step), None)

    def _since(self, start: float) -> list[Stretch]:
        since = []
        for stretch in reversed(self._kept):
            if stretch.end_seconds <= start:
                break
            since.append(stretch)
        return since

    def _charge(self, stretch: Stretch) -> None:
        nothing = Claim(stretch.start_seconds, stretch.end_seconds, Strength.NOTHING, "other")
        for cause, seconds in stretch.charges.items():
            self.seconds[cause] -= seconds
        charges: dict[str, float] = {}
        own = 0.0
        for left, right, claim in resolve(stretch.start_seconds, stretch.end_seconds, [nothing, *stretch.claims]):
            if claim.step is None:
                charges[claim.cause] = charges.get(claim.cause, 0.0) + right - left
            else:
                own += right - left
        allowed = own if not stretch.is_slow or self.reference_seconds is None else min(own, self.reference_seconds)
        charges[PRODUCTIVE] = charges.get(PRODUCTIVE, 0.0) + allowed
        charges["degraded_speed"] = charges.get("degraded_speed", 0.0) + own - allowed
        stretch.charges = charges
        for cause, seconds in charges.items():
            self.seconds[cause] += seconds
