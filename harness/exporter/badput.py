"""Where the time goes while a job runs: what happens becomes claims on its wall clock, as in `accounting`."""

from __future__ import annotations

from collections import deque
from statistics import median

from harness.analysis.accounting import Claim, Strength, step_cause
from harness.analysis.regroups import Stall
from harness.analysis.steps import CommittedStep, median_step_seconds, median_work_per_second
from harness.exporter.stretches import Stretches

_MAX_OPEN = 64


class Badput:
    """Takes in what happened to one job; all times are CLOCK_MONOTONIC seconds.

    `reference_work_per_second` is the speed before the first fault, None until there is one.
    """

    def __init__(self) -> None:
        self.stretches = Stretches()
        self.reference_work_per_second: float | None = None
        self._has_committed = False
        self._usual_gap_seconds = 0.0
        # When work was lost that may turn out to have been under way: known with the next commit.
        self._losses: deque[float] = deque(maxlen=_MAX_OPEN)
        # (from, to or None) of repairs, by incident, and of the times without a coordinator.
        self._repairs: dict[int, tuple[float, float | None]] = {}
        self._downs: deque[tuple[float, float | None]] = deque(maxlen=_MAX_OPEN)
        self._holds: dict[int, tuple[float, int]] = {}
        self._regrouped_seconds: float | None = None

    def compare_with(self, baseline: tuple[CommittedStep, ...]) -> None:
        """What steps take without a fault."""
        self.stretches.reference_seconds = median_step_seconds(baseline)
        self.reference_work_per_second = median_work_per_second(baseline)
        self._usual_gap_seconds = median([step.began_seconds - step.previous_seconds for step in baseline] or [0.0])

    def commit(self, step: CommittedStep, is_redone: bool, is_slow: bool) -> None:
        """A step is committed."""
        began, committed, previous = step.began_seconds, step.committed_seconds, step.previous_seconds
        if is_redone:
            own = [Claim(previous, committed, Strength.THROWN_AWAY, "repeated_work")]
        else:
            cause, number = step_cause(step), None if step.is_left_out else step.step
            own = [Claim(began, committed, Strength.ATTEMPT, cause, step=number), *self._absences(step)]
            if self._regrouped_seconds is None or not previous < self._regrouped_seconds <= began:
                own.append(Claim(previous, began, Strength.GAP, cause, step=number))
        for since, at_step in self._holds.values():
            # Nothing commits while a rank is held, but it may be held before the last commit was told.
            if at_step > step.step:
                own.append(Claim(since, committed, Strength.HOLD, "injection"))
        if not self._has_committed and self.stretches.started_seconds is not None:
            self._has_committed = True
            own.append(Claim(self.stretches.started_seconds, began, Strength.STARTUP, "startup"))
        self.stretches.settle(committed, own, began, step.step, is_slow=is_slow and not is_redone)
        for _ in range(len(self._losses)):
            self._throw_away(self._losses.popleft())
        self._repairs = {i: (since, until) for i, (since, until) in self._repairs.items() if until is None}
        while self._downs and (self._downs[0][1] or committed) < committed:
            self._downs.popleft()

    def lost(self, at: float) -> None:
        """Ranks were lost then, and with them the work on the step in flight, unless it commits after all."""
        if at <= self.stretches.settled_seconds:
            self._throw_away(at)
        else:
            self._losses.append(at)

    def hold(self, incident: int, at: float, step: int) -> None:
        """A rank is held for an incident, at `step`."""
        if len(self._holds) < _MAX_OPEN:
            self._holds.setdefault(incident, (at, step))

    def let_go(self, incident: int, at: float) -> None:
        """It is held no longer, or what it was held for has happened."""
        held = self._holds.pop(incident, None)
        if held is not None:
            stretch = self.stretches.around(held[0])
            # A step of its own or a later one that has committed since ended the hold, whatever the record says.
            until = at if stretch is None or stretch.step is None or stretch.step < held[1] else stretch.end_seconds
            self.stretches.claim(held[0], min(at, until), Strength.HOLD, "injection")

    def detected(self, injected: float, at: float) -> None:
        """An incident that affected ranks at `injected` was detected."""
        self.stretches.claim(injected, at, Strength.DETECTION, "detection")
        self._without_coordinator(injected, at)
        self.lost(injected)

    def stalled(self, stall: Stall) -> None:
        """Training stood still for a change of membership."""
        since, until, last = stall.began_seconds, stall.ended_seconds, self.stretches.settled_seconds
        if stall.is_loss:
            self.lost(since)
        elif last <= since and self._has_committed:
            # The ranks had stopped at the boundary of a step, to let others in.
            since = last
        if stall.regrouped_seconds is not None:
            self._regrouped_seconds = until
        self.stretches.claim(since, until, Strength.REGROUP, "restart" if stall.is_restart else "regroup")
        self.stretches.claim(until - stall.transfer_seconds, until, Strength.TRANSFER, "transfer")
        self._without_coordinator(since, until)

    def repairing(self, incident: int, at: float) -> None:
        """What an incident took is being started again."""
        if len(self._repairs) < _MAX_OPEN:
            self._repairs[incident] = (at, None)

    def repaired(self, incident: int, at: float) -> None:
        """All of it is back."""
        if incident in self._repairs:
            self._repairs[incident] = (self._repairs[incident][0], at)

    def coordinator_down(self, at: float) -> None:
        """The job has no coordinator."""
        if not self._downs or self._downs[-1][1] is not None:
            self._downs.append((at, None))

    def coordinator_up(self, at: float) -> None:
        """It has one again."""
        if self._downs and self._downs[-1][1] is None:
            self._downs[-1] = (self._downs[-1][0], at)

    def restarted(self, since: float, until: float) -> None:
        """Somebody else's job was between two attempts."""
        self.stretches.claim(since, until, Strength.ABSENCE, "restart")
        self.lost(since)

    def checkpoint(self, step: int, blocking_seconds: float) -> None:
        """Training waited for a checkpoint after `step`."""
        since = self.stretches.committed_seconds(step)
        if since is not None:
            self.stretches.claim(since, since + blocking_seconds, Strength.CHECKPOINT, "checkpoint")

    def end(self, at: float, undetected: list[float]) -> None:
        """The job is over; of the incidents of `undetected`, injected then, nobody noticed and nothing recovered."""
        for injected in undetected:
            self.stretches.claim(injected, at, Strength.DETECTION, "detection")
        own = []
        if not self._has_committed and self.stretches.started_seconds is not None:
            own.append(Claim(self.stretches.started_seconds, at, Strength.STARTUP, "startup"))
        self.stretches.settle(at, own, None, None, is_slow=False)
        for _ in range(len(self._losses)):
            self._throw_away(self._losses.popleft())

    def _throw_away(self, at: float) -> None:
        """The work since the last commit before `at`, unless the step that was in flight then has committed."""
        stretch = self.stretches.around(at)
        if stretch is not None and (stretch.began_seconds is None or stretch.began_seconds > at):
            since = stretch.start_seconds
            if since != self.stretches.started_seconds:
                self.stretches.claim(since, at, Strength.THROWN_AWAY, "repeated_work")
        elif stretch is None and at > self.stretches.settled_seconds:
            self._losses.append(at)

    def _absences(self, step: CommittedStep) -> list[Claim]:
        return [
            Claim(
                max(step.previous_seconds + self._usual_gap_seconds, since),
                min(step.began_seconds, step.began_seconds if until is None else until),
                Strength.ABSENCE,
                "restart",
            )
            for since, until in (*self._repairs.values(), *self._downs)
        ]

    def _without_coordinator(self, since: float, until: float) -> None:
        for down_from, down_to in self._downs:
            start, end = max(since, down_from), until if down_to is None else min(until, down_to)
            self.stretches.claim(start, end, Strength.REGROUP_WITHOUT_COORDINATOR, "restart")
