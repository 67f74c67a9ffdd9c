"""One incident as it was measured: when each of its phases came, and what follows from that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class MeasuredIncident:
    """One planned firing of a fault and when each of its phases was reached (CLOCK_MONOTONIC seconds; None: never).

    `detected` is the first detection that names a rank of this incident; `isolated` and `regrouped` are those of the
    regroup that led to `committed`, the first committed step whose attempt began after the injection: a step that was
    in flight and committed nevertheless is no recovery, and neither is one that was left out as rejected, which taught
    the model nothing (`is_left_out`: there were such steps, and no other). `progressed` is when the first step
    committed after it that had not been committed before, later than `committed` in a job that had gone back.
    `restored` is when throughput was back (see `RESTORED_RATIO`). `lifted` is when the fault ended: its repair began,
    one that lost nobody was undone (or, over in an instant, those were back whom the job had given up for it), the
    coordinator was back, a command's job, which nobody repairs, was at work again, or a job that had started all its
    ranks again was where it had been.
    """

    incident: int
    fault: str
    target: Any
    step: int | None
    phase: str | None
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    evidence: Any = None
    reason: str | None = None
    is_undone: bool = False
    held: float | None = None
    released: float | None = None
    injected: float | None = None
    verified: float | None = None
    detected: float | None = None
    isolated: float | None = None
    regrouped: float | None = None
    committed: float | None = None
    committed_step: int | None = None
    committed_epoch: int | None = None
    progressed: float | None = None
    restored: float | None = None
    repair_started: float | None = None
    rejoined: float | None = None
    lifted: float | None = None
    transfer_seconds: float = 0.0
    is_left_out: bool = False

    @property
    def recovery_seconds(self) -> float | None:
        """Injected -> committed."""
        return _difference(self.injected, self.committed)

    @property
    def progress_seconds(self) -> float | None:
        """Injected -> progressed."""
        return _difference(self.injected, self.progressed)

    @property
    def detection_seconds(self) -> float | None:
        """Injected -> detected: a fault can be noticed by the job before the injector has verified it."""
        return _difference(self.injected, self.detected)

    @property
    def phases_seconds(self) -> dict[str, float | None]:
        """How long each phase took, None where it was not reached.

        `verify` injected -> verified, `detect` verified -> detected (0 when the coordinator was quicker than the
        injector's own check), `isolate` detected -> isolated, `regroup` isolated -> regrouped without the transfer of
        state, `transfer`, `first_step` regrouped -> committed, `restore` committed -> restored, `rejoin` injected ->
        rejoined.
        """
        detect = _difference(self.verified, self.detected)
        regroup = _difference(self.isolated, self.regrouped)
        transfer = None if regroup is None else min(self.transfer_seconds, max(0.0, regroup))
        return {
            "verify": _difference(self.injected, self.verified),
            "detect": None if detect is None else max(0.0, detect),
            "isolate": _difference(self.detected, self.isolated),
            "regroup": None if regroup is None or transfer is None else regroup - transfer,
            "transfer": transfer,
            "first_step": _difference(self.regrouped, self.committed),
            "restore": _difference(self.committed, self.restored),
            "rejoin": _difference(self.injected, self.rejoined),
        }

    @property
    def is_phase_order_valid(self) -> bool:
        """Whether the phases came in the order that makes sense: each not before the one that causes it."""
        # Without a regroup training did not wait for the detection: of a coordinator that lost its links, say.
        change = () if self.regrouped is None else (self.detected, self.isolated, self.regrouped)
        chain = [self.injected, *change, self.committed, self.restored]
        times = [time for time in chain if time is not None]
        is_ascending = all(earlier <= later for earlier, later in pairwise(times))
        has_cause = self.regrouped is None or (self.detected is not None and self.isolated is not None)
        causes_of = (
            (self.held, self.injected),
            (self.injected, self.verified),
            (self.injected, self.detected),
            (self.injected, self.rejoined),
        )
        return is_ascending and has_cause and all(not _is_before(effect, cause) for cause, effect in causes_of)

    def recovered(self, is_over: bool, is_complete: bool) -> bool | None:
        """Whether a step began, was fit and committed after the fault; None when that cannot be known.

        It cannot when the fault never fired, when the run was stopped before it could tell (not `is_over`), or when
        every planned step had already begun (`is_complete`) and none was left to show it.
        """
        if self.committed is not None:
            return True
        if self.injected is None or not is_over:
            return None
        return False if self.is_left_out or not is_complete else None


def _difference(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _is_before(later: float | None, earlier: float | None) -> bool:
    return later is not None and earlier is not None and later < earlier
