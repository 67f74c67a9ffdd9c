"""From which incidents a job has recovered, told step by step without a look at the run as a whole.

What a report says of an incident is measured anew from all of the log. A view that is fed every event of a run cannot
do that for each of them, and needs less: the first step that shows the recovery is the next one that is committed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from heapq import heappop, heappush

from harness.analysis.command.attempts import is_of_launcher
from harness.analysis.incident import MeasuredIncident
from harness.analysis.job_traits import read_traits
from harness.analysis.state import RunState
from harness.analysis.steps import CommittedStep, shows_recovery
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import AttemptStarted, Detected, JobStarted, StepCommitted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.run_records import IncidentsPlanned, Injected, NotDue, Undone, Unverified

_KINDS = frozenset(one.KIND for one in (AttemptStarted, Injected, Unverified, NotDue, Undone, Detected))


class Recoveries:
    """Follows the events of a run, with which `state` is fed before."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._known: set[int] = set()
        # Those that fired and are not recovered from.
        self._open: dict[int, MeasuredIncident] = {}
        # When they were in the way of training, as a heap.
        self._struck: list[tuple[float, int]] = []
        # (attempt, incident) of those that took the launcher of a command away: a step of a later attempt shows the
        # recovery. As a heap.
        self._without_launcher: list[tuple[int, int]] = []
        self._attempt = 0
        # By rank, the incidents that gave it notice, and to which the job has not answered.
        self._noticed: dict[int, list[int]] = {}
        # Those told of after steps that came after them: the first of these may show the recovery.
        self._late: set[int] = set()

    def feed(self, event: Event) -> tuple[MeasuredIncident, ...]:
        """Process one event; returns the incidents from which the job recovered with it."""
        if event.job != MAIN_JOB:
            return ()
        if event.kind == StepCommitted.KIND:
            return self._recovered() if self._struck or self._without_launcher else ()
        if event.kind in _KINDS:
            with suppress(ValueError):  # which the state counts among the unread
                self._note(parse(event))
        return ()

    def _note(self, record: Record) -> None:
        match record:
            case AttemptStarted():
                self._attempt = max(self._attempt, record.attempt_number)
            case Injected() if record.incident not in self._known:
                self._known.add(record.incident)
                begun = self._open[record.incident] = self._begun(record)
                if begun.is_of_launcher:
                    heappush(self._without_launcher, (self._attempt, record.incident))
                elif record.gives_notice:
                    for rank in record.ranks:
                        self._noticed.setdefault(rank, []).append(record.incident)
                else:
                    self._strike(record.incident, record.monotonic_seconds)
            case Unverified() | NotDue():
                self._known.add(record.incident)
                self._open.pop(record.incident, None)
            case Undone() if record.incident in self._open:
                at = record.monotonic_seconds
                self._open[record.incident] = replace(self._open[record.incident], undone=at)
            case Detected():
                at = record.monotonic_seconds
                for number in dict.fromkeys(one for rank in record.lost for one in self._noticed.pop(rank, ())):
                    if number in self._open and self._open[number].detected is None:
                        self._open[number] = replace(self._open[number], detected=at)
                        self._strike(number, at)
            case _:
                pass

    def _strike(self, number: int, at: float) -> None:
        heappush(self._struck, (at, number))
        newest = self._state.newest_step()
        if newest is not None and newest.committed_seconds > at:
            self._late.add(number)

    def _begun(self, record: Injected) -> MeasuredIncident:
        told, plan, job = self._state.first_of(IncidentsPlanned), None, self._state.first_of(JobStarted)
        if record.fault is None or record.target is None:
            plan = next((one for one in (told.incidents if told else ()) if one.incident == record.incident), None)
        return MeasuredIncident(
            incident=record.incident,
            fault=record.fault or (plan.fault if plan else "unknown"),
            target=record.target if record.target is not None or plan is None else plan.target,
            step=record.step,
            phase=record.phase,
            ranks=record.ranks,
            nodes=record.nodes,
            is_loss=record.is_loss,
            is_of_launcher=read_traits(job).restarts_by_launcher and is_of_launcher(record),
            goes_on=record.goes_on,
            gives_notice=record.gives_notice,
            injected=record.monotonic_seconds,
        )

    def _recovered(self) -> tuple[MeasuredIncident, ...]:
        step = self._state.newest_step()
        if step is None or (step.is_left_out and not self._late):
            return ()
        late, self._late = self._late, set()
        measured = {one.incident: one for one in self._state.timeline.incidents} if late else {}
        again = (measured.get(number) for number in late & self._open.keys())
        found = [one for one in again if one is not None and one.committed is not None]
        for one in found:
            del self._open[one.incident]
        shown: list[int] = []
        while self._struck and _is_shown(step, self._struck[0][0]):
            shown.append(heappop(self._struck)[1])
        while self._without_launcher and step.epoch > self._without_launcher[0][0] and not step.is_left_out:
            shown.append(heappop(self._without_launcher)[1])
        for incident in shown:
            if struck := self._open.pop(incident, None):
                at, number, epoch = step.committed_seconds, step.step, step.epoch
                found.append(replace(struck, committed=at, committed_step=number, committed_epoch=epoch))
        return tuple(sorted(found, key=lambda one: one.incident))


def _is_shown(step: CommittedStep, struck: float) -> bool:
    return shows_recovery(step.began_seconds, is_left_out=step.is_left_out, injected_seconds=struck)
