"""The incidents of a run, event by event: what came of each, and how long each phase of its recovery took.

The rules are those of `timeline`, which reads a whole log. Events of different processes arrive in any order:
an injection is told when it has been applied, and by then the job may have noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis.incident import MeasuredIncident
from harness.analysis.regroups import Stall
from harness.analysis.steps import CommittedStep
from harness.analysis.timeline import RESTORED_RATIO, RESTORED_STEPS
from harness.exporter.badput import Badput
from mecefo_runtime.system.events import Event

_MAX_INCIDENTS = 256
_MAX_STRUCK = 64
_MAX_FAULTS = 64
_OTHER = "other"
_RECENT = 32
OUTCOMES = ("verified", "unverified", "not_due")


@dataclass(slots=True)
class _Open:
    """An incident, its times in `known`, and what of it the timeline does not say."""

    known: MeasuredIncident
    is_loss: bool = False
    goes_on: bool = False
    outcome: str | None = None
    undone: float | None = None
    lifted: float | None = None
    is_active: bool = False
    missing: frozenset[int] = frozenset()
    is_command: bool = False


class Incidents:
    """What is known of every incident; the newest `_MAX_INCIDENTS` are kept. Claims on time go to `badput`.

    By fault: `planned`, `outcomes`, `recoveries` and `undo_failures` count incidents, `newest` is the one that was
    injected last. `fault_work` was done in the `fault_seconds` in which a fault was in force, see `throughput`.
    """

    def __init__(self, badput: Badput) -> None:
        self.planned: dict[str, int] = {}
        self.outcomes: dict[tuple[str, str], int] = {}
        self.recoveries: dict[str, int] = {}
        self.undo_failures: dict[str, int] = {}
        self.newest: dict[str, MeasuredIncident] = {}
        self.undo_pending: frozenset[int] = frozenset()
        self.first_injected: float | None = None
        self.fault_work = 0.0
        self.fault_seconds = 0.0
        self._counted_until = 0.0
        self._badput = badput
        self._incidents: dict[int, _Open] = {}
        # Those that were injected: what the job does can concern them.
        self._affected: deque[_Open] = deque(maxlen=_MAX_STRUCK)
        self._recent: deque[Event | Stall | CommittedStep] = deque(maxlen=_RECENT)
        self._last_steps: deque[CommittedStep] = deque(maxlen=RESTORED_STEPS)

    # ---- what is told of an incident ----

    def plan(self, event: Event) -> None:
        """Incidents are planned."""
        for plan in event.fields.get("incidents", ()):
            number, fault = int(plan["incident"]), self._kind(plan["fault"])
            if number in self._incidents:
                continue
            self._keep(_Open(MeasuredIncident(number, fault, plan.get("target"), plan.get("step"), plan.get("phase"))))
            self.planned[fault] = self.planned.get(fault, 0) + 1
            for outcome in OUTCOMES:
                self.outcomes.setdefault((fault, outcome), 0)
            self.recoveries.setdefault(fault, 0)
            self.undo_failures.setdefault(fault, 0)

    def tell(self, event: Event, is_command: bool) -> None:
        """The injector or the conductor says how far an incident has come."""
        at, number = event.monotonic_seconds, int(event.fields["incident"])
        one = self._incidents.get(number)
        if one is None:
            fault = self._kind(event.fields.get("fault", "unknown"))
            one = _Open(MeasuredIncident(number, fault, event.fields.get("target"), event.step, None))
            self._keep(one)
        one.is_command = is_command
        match event.kind:
            case "held":
                self._badput.hold(number, at, event.step or 0)
            case "released":
                self._badput.let_go(number, at)
            case "injected":
                self._inject(one, event)
            case "verified" | "unverified" | "not_due":
                self._settle(one, event.kind, at)
            case "undone":
                self._undone(one, at)
            case "undo_failed":
                fault = one.known.fault
                self.undo_failures[fault] = self.undo_failures.get(fault, 0) + 1
            case "repair_started":
                self._badput.repairing(number, at)
                self._lift(one, at)

    def _inject(self, one: _Open, event: Event) -> None:
        fields, at = event.fields, event.monotonic_seconds
        ranks = tuple(int(rank) for rank in fields.get("ranks") or ())
        one.known = replace(
            one.known, injected=at, ranks=ranks, target=fields.get("target", one.known.target), step=event.step
        )
        one.is_loss, one.goes_on = bool(fields.get("is_loss")), bool(fields.get("goes_on"))
        one.is_active, one.missing = True, frozenset()
        self.newest[one.known.fault] = one.known
        self._affected.append(one)
        self.undo_pending |= {one.known.incident}
        self.first_injected = at if self.first_injected is None else min(at, self.first_injected)
        for earlier in list(self._recent):
            if isinstance(earlier, CommittedStep):
                self._recover([one], earlier)
            elif isinstance(earlier, Stall):
                self._regroup([one], earlier)
            elif earlier.monotonic_seconds >= at:
                self._job_event(earlier)

    def _settle(self, one: _Open, outcome: str, at: float) -> None:
        if one.outcome is None:
            one.outcome = outcome
            key = (one.known.fault, outcome)
            self.outcomes[key] = self.outcomes.get(key, 0) + 1
        if outcome == "verified":
            self._update(one, verified=at)
            if one.known.injected is not None and one.known.ranks:
                self._badput.stretches.slow_down(one.known.injected)
        else:
            one.is_active = False

    def _undone(self, one: _Open, at: float) -> None:
        self.undo_pending -= {one.known.incident}
        if one.is_loss:
            return
        one.undone = at
        if one.known.detected is None or one.known.rejoined is not None:
            one.lifted = at if one.lifted is None else one.lifted
        if one.goes_on or one.known.committed is not None:
            one.is_active = False

    # ---- what the job does ----

    def on_job_event(self, event: Event) -> None:
        """The job detected, isolated or took back ranks, or got its coordinator back."""
        self._recent.append(event)
        self._job_event(event)

    def on_stall(self, stall: Stall) -> None:
        """A change of membership is over."""
        self._recent.append(stall)
        self._regroup(self._affected, stall)

    def on_commit(self, step: CommittedStep, is_redone: bool) -> None:
        """A step is committed."""
        self._recent.append(step)
        self._recover(self._affected, step)
        if not is_redone:
            if not step.is_left_out:
                self._last_steps.append(step)
                self._restore()
            self._count_under_fault(step)

    def end(self, at: float | None) -> None:
        """The job is over, and with it whatever was in force in it; `at` that time if it stood still until then."""
        if at is not None:
            self._count_seconds(at)
        for one in self._incidents.values():
            one.is_active = False

    @property
    def active(self) -> Mapping[str, int]:
        """How many incidents are in force, by fault; 0 for what is planned and is not."""
        active = dict.fromkeys([*self.planned, *self.newest], 0)
        for one in self._incidents.values():
            active[one.known.fault] = active.get(one.known.fault, 0) + one.is_active
        return active

    @property
    def undetected(self) -> list[float]:
        """When incidents were injected on ranks that nothing noticed and after which nothing was committed."""
        return [
            one.known.injected
            for one in self._affected
            if one.known.injected is not None
            and one.known.ranks
            and one.known.detected is None
            and one.known.committed is None
            and not one.known.is_left_out
        ]

    def is_slow(self, step: CommittedStep) -> bool:
        """Whether `step` ran while a fault on its ranks came or was in force."""
        return any(
            one.known.verified is not None
            and bool(one.known.ranks)
            and one.known.injected is not None
            and one.known.injected < step.committed_seconds
            and (one.lifted is None or step.began_seconds < one.lifted)
            for one in self._affected
        )

    def _count_under_fault(self, step: CommittedStep) -> None:
        """What of the time since the last commit was under a fault, and the share of the step's work that was."""
        committed = step.committed_seconds
        windows = self._count_seconds(committed)
        # As in `throughput`: an attempt that began after a fault came is no step that was in flight then.
        began = max([step.previous_seconds, *(start for start, _ in windows if start <= step.began_seconds)])
        for start, end in windows:
            within = min(committed, end) - max(began, start)
            if within > 0.0:
                self.fault_work += step.work * within / (committed - began)

    def _count_seconds(self, until: float) -> list[tuple[float, float]]:
        windows = self._windows(until)
        self.fault_seconds += sum(end - max(start, self._counted_until) for start, end in windows)
        self._counted_until = max(self._counted_until, until)
        return windows

    def _windows(self, until: float) -> list[tuple[float, float]]:
        """The times from injection to the fault's end, or to `until`, joined and in order."""
        windows: list[tuple[float, float]] = []
        for one in sorted(self._affected, key=lambda one: one.known.injected or 0.0):
            start, end = one.known.injected or 0.0, until if one.lifted is None else min(one.lifted, until)
            if one.outcome == "unverified" or end <= self._counted_until or start >= end:
                continue
            if windows and start <= windows[-1][1]:
                windows[-1] = (windows[-1][0], max(windows[-1][1], end))
            else:
                windows.append((start, end))
        return windows

    def _job_event(self, event: Event) -> None:
        at = event.monotonic_seconds
        match event.kind:
            case "detected":
                lost = frozenset(event.fields.get("lost", ()))
                affected = sorted(self._affected_before(at), key=lambda one: one.known.injected or 0.0, reverse=True)
                later: frozenset[int] = frozenset()
                for one in affected:
                    # Of a cut link the job gives up one end only; whom a later fault took, that one has to bring back.
                    one.missing |= (lost & frozenset(one.known.ranks)) - later
                    later |= frozenset(one.known.ranks) if one.is_loss else frozenset()
                self._assign(event)
            case "isolated":
                for one in self._affected:
                    detected = one.known.detected
                    if detected is not None and one.known.isolated is None and at >= detected:
                        self._update(one, isolated=at)
            case "coordinator_restarted":
                for one in self._affected_before(at):
                    if one.is_loss and not one.known.ranks:
                        self._lift(one, at)
            case "rejoined":
                back = frozenset(event.fields.get("ranks", ()))
                for one in self._affected_before(at):
                    if one.missing & back:
                        one.missing -= back
                        if not one.missing and one.known.rejoined is None:
                            self._update(one, rejoined=at)
                            self._badput.repaired(one.known.incident, at)
                            if not one.goes_on:
                                self._lift(one, at)
                            elif one.undone is not None:
                                # Of one that only cut or froze them the end is its undoing, not that they are back.
                                self._lift(one, one.undone)

    def _affected_before(self, at: float) -> Iterable[_Open]:
        return [one for one in self._affected if one.known.injected is not None and one.known.injected <= at]

    def _assign(self, event: Event) -> None:
        """Which incidents a detection is of; see `harness.analysis.detections`."""
        at = event.monotonic_seconds
        latest_first = sorted(self._affected_before(at), key=lambda one: one.known.injected or 0.0, reverse=True)
        own: list[_Open] = []
        for rank in event.fields.get("lost", ()):
            affected = next((one for one in latest_first if rank in one.known.ranks), None)
            if affected is not None:
                own.append(affected)
        if not own and latest_first and latest_first[0].known.ranks:
            # A later detection of others is none of an incident that the job has recovered from.
            own = [one for one in latest_first[:1] if one.known.committed is None or one.known.committed >= at]
        for one in own:
            if one.known.detected is None and one.known.injected is not None:
                self._update(one, detected=at)
                self._badput.detected(one.known.injected, at)

    def _regroup(self, incidents: Iterable[_Open], stall: Stall) -> None:
        if stall.regrouped_seconds is None or not stall.is_loss:
            return
        times = [one.known.detected for one in self._affected if one.known.detected is not None]
        is_others = any(stall.began_seconds <= at <= stall.ended_seconds for at in times)
        for one in incidents:
            injected, known = one.known.injected, one.known
            if injected is None or injected > stall.ended_seconds or not known.ranks or known.committed is not None:
                continue
            if known.detected is None and is_others:
                continue
            seconds = known.transfer_seconds + stall.transfer_seconds
            self._update(one, regrouped=stall.regrouped_seconds, transfer_seconds=seconds)

    def _recover(self, incidents: Iterable[_Open], step: CommittedStep) -> None:
        for one in incidents:
            injected = one.known.injected
            if injected is None or one.known.committed is not None or step.began_seconds <= injected:
                continue
            if step.is_left_out:
                self._update(one, is_left_out=True)
                continue
            self._update(one, is_left_out=False, committed=step.committed_seconds, committed_step=step.step)
            fault = one.known.fault
            self.recoveries[fault] = self.recoveries.get(fault, 0) + 1
            if one.is_command and one.is_loss and one.known.ranks:
                self._lift(one, step.committed_seconds)
            elif not one.goes_on and not one.is_loss and one.known.incident not in self.undo_pending:
                one.is_active = False

    def _restore(self) -> None:
        before = self._badput.reference_work_per_second
        window = self._last_steps
        if before is None or len(window) < RESTORED_STEPS:
            return
        seconds = sum(step.duration_seconds for step in window)
        if sum(step.work for step in window) < RESTORED_RATIO * before * seconds:
            return
        for one in self._affected:
            injected = one.known.injected
            if injected is not None and one.known.restored is None and window[0].began_seconds > injected:
                self._update(one, restored=window[0].committed_seconds)

    # ---- bookkeeping ----

    def _lift(self, one: _Open, at: float) -> None:
        one.lifted = at if one.lifted is None else one.lifted
        one.is_active = False

    def _update(self, one: _Open, **changes: Any) -> None:
        one.known = replace(one.known, **changes)
        newest = self.newest.get(one.known.fault)
        if newest is not None and newest.incident == one.known.incident:
            self.newest[one.known.fault] = one.known

    def _keep(self, one: _Open) -> None:
        self._incidents[one.known.incident] = one
        if len(self._incidents) > _MAX_INCIDENTS:
            # What has not fired yet is still to come: the oldest that has goes.
            fired = (number for number, known in self._incidents.items() if known.outcome is not None)
            del self._incidents[next(fired, next(iter(self._incidents)))]

    def _kind(self, fault: object) -> str:
        """The fault as a label; a log with more kinds than there can be is not to have a series for each."""
        kind = str(fault)
        return kind if kind in self.planned or len(self.planned) < _MAX_FAULTS else _OTHER
