"""What the events of a run say so far: fed event by event, asked at any time, the same for a log and for a run."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from harness.analysis.attempts import COMMAND_RUNTIME
from harness.analysis.ranks import Ranks
from harness.analysis.step_ledger import StepLedger
from harness.analysis.timeline import Timeline, Told, read
from mecefo_runtime.system.events import MAIN_JOB, TWIN_JOB, Event
from mecefo_runtime.system.job_records import CheckpointWritten, JobStarted, ProcessStarted, StepCommitted, Warned
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.run_records import Residue, RunEnded

R = TypeVar("R", bound=Record)


class RunState:
    """The facts of a run, in the order of time whatever the order in which they come, and the figures made of them.

    Feeding costs the same however long the run is. Figures are functions of the facts: they are made when they are
    asked for, again only after something new was fed, and of steps that are long over not again (see `Steps.memo`).
    An event that makes no sense is counted in `unread`, by its kind, and changes nothing more. `unix_offset_seconds` is
    to be added to a time of the newest event to have Unix time. `ranks` are those of the main job.
    """

    def __init__(self) -> None:
        self.unread: Counter[str] = Counter()
        self.ranks = Ranks()
        self.unix_offset_seconds = 0.0
        self._steps = {MAIN_JOB: StepLedger(), TWIN_JOB: StepLedger()}
        self._records: dict[str, list[Record]] = {MAIN_JOB: [], TWIN_JOB: []}
        # By step: the longest time that a rank waited for its checkpoint.
        self._waits: dict[int, float] = {}
        self._began_seconds: float | None = None
        self._ended_seconds: float | None = None
        self._newest_seconds: float | None = None
        self._timeline: Timeline | None = None

    def feed(self, event: Event) -> Record | None:
        """Take in one event; returns its record, None where it makes no sense."""
        try:
            record = parse(event)
        except ValueError:
            # Of a damaged log, or of one by another version: no run is to suffer from it.
            self.unread[event.kind] += 1
            return None
        try:
            if record.job == MAIN_JOB:
                self.ranks.feed(record)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # A layout that is none.
            self.unread[event.kind] += 1
            return None
        if record.job in self._steps:
            self._take(record)
        return record

    @property
    def timeline(self) -> Timeline:
        """What happened when, as far as it is known."""
        if self._timeline is None:
            main = self._steps[MAIN_JOB]
            waits = ((main.first_of(step), seconds) for step, seconds in self._waits.items())
            checkpoints = ((one.committed_seconds, one.committed_seconds + s) for one, s in waits if one is not None)
            self._timeline = read(
                Told(
                    records=self._records[MAIN_JOB],
                    steps=main.steps,
                    twin=self._steps[TWIN_JOB].steps,
                    first_step_told_seconds=main.first_told_seconds,
                    checkpoints=tuple(sorted(checkpoints)),
                    began_seconds=self._began_seconds,
                    ended_seconds=self._ended_seconds,
                    newest_seconds=self.newest_seconds,
                )
            )
        return self._timeline

    @property
    def num_unread(self) -> int:
        """How many events made no sense."""
        return self.unread.total()

    @property
    def newest_seconds(self) -> float:
        """When the last thing happened (CLOCK_MONOTONIC); 0 before the first."""
        return 0.0 if self._newest_seconds is None else self._newest_seconds

    @property
    def num_checkpoints(self) -> int:
        """Steps of whose checkpoint a part was written."""
        return len(self._waits)

    def of(self, kind: type[R], job: str = MAIN_JOB) -> Iterator[R]:
        """The records of that kind, by time; not those of steps and checkpoints, which are in the timeline."""
        return (record for record in self._records[job] if isinstance(record, kind))

    def first_of(self, kind: type[R], job: str = MAIN_JOB) -> R | None:
        """The first record of that kind."""
        return next(self.of(kind, job), None)

    def _take(self, record: Record) -> None:
        self._timeline = None
        if record.job == MAIN_JOB:
            self._note_time(record)
        match record:
            case StepCommitted():
                self._steps[record.job].add(record)
            case CheckpointWritten():
                if record.job == MAIN_JOB and record.step is not None:
                    known = self._waits.get(record.step, 0.0)
                    self._waits[record.step] = max(known, record.blocking_seconds)
            case Warned():
                pass
            case _:
                insort(self._records[record.job], record, key=_happened)
                if record.job == MAIN_JOB and isinstance(record, ProcessStarted):
                    self._steps[MAIN_JOB].note_process(record)
                elif record.job == MAIN_JOB and isinstance(record, JobStarted) and record.runtime == COMMAND_RUNTIME:
                    self._steps[MAIN_JOB].believe_processes()

    def _note_time(self, record: Record) -> None:
        at = record.monotonic_seconds
        self.unix_offset_seconds = record.time_seconds - at
        self._newest_seconds = at if self._newest_seconds is None else max(at, self._newest_seconds)
        if not isinstance(record, Residue | RunEnded):
            self._began_seconds = at if self._began_seconds is None else min(at, self._began_seconds)
            self._ended_seconds = at if self._ended_seconds is None else max(at, self._ended_seconds)


def _happened(record: Record) -> float:
    return record.monotonic_seconds


def state_of(events: Iterable[Event]) -> RunState:
    """The state after all of `events`."""
    state = RunState()
    for event in events:
        state.feed(event)
    return state


def build(events: Iterable[Event]) -> Timeline:
    """The timeline of a log, whole or cut off; the order of `events` does not matter."""
    return state_of(events).timeline
