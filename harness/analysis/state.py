"""The state of a run from its events so far: fed event by event, readable at any time, from a log or a live run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from harness.analysis.collection import without_collection
from harness.analysis.contained import Shared
from harness.analysis.hosts import Hosts
from harness.analysis.job_traits import read_traits
from harness.analysis.ranks import Ranks
from harness.analysis.step_ledger import StepLedger
from harness.analysis.steps import STEPS_BEFORE, CommittedStep, usual_step_seconds
from harness.analysis.timeline import Timeline, Told, read
from harness.analysis.words import num_layers
from mecefo_runtime.system.command_records import CheckpointChecked, CheckpointPointed, StateChecksums
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from mecefo_runtime.system.job_records import (
    CheckpointFailed,
    CheckpointWritten,
    JobStarted,
    LayoutTold,
    ProcessStarted,
    StepCommitted,
)
from mecefo_runtime.system.record import Record, keys_of
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.run_records import Injected, Residue, RunEnded, Warned

R = TypeVar("R", bound=Record)
T = TypeVar("T")


class RunState:
    """The facts of a run, in the order of time whatever the order in which they come, and the figures made of them.

    Feeding costs the same however long the run is. Figures are functions of the facts: they are made when they are
    asked for, again only after something new was fed, and of steps that are long over not again (see `Steps.memo`).
    Whoever reads it beside the thread that feeds it holds `lock` meanwhile.
    An event that makes no sense is counted in `unread`, by its kind, and changes nothing more. `unix_offset_seconds` is
    to be added to a time of the newest event to have Unix time. `ranks` and `hosts` are those of the main job. `size`
    is what there is to look at: its events, of which those with checksums count as many as these are.
    """

    def __init__(self) -> None:
        # Re-entrant, because a signal handler on the feeding thread may have something to say in the middle of a feed.
        self.lock = threading.RLock()
        self.unread: Counter[str] = Counter()
        self.ranks = Ranks()
        self.hosts = Hosts()
        self.unix_offset_seconds = 0.0
        self._steps = {MAIN_JOB: StepLedger(), BASELINE_JOB: StepLedger()}
        self._records: dict[str, list[Record]] = {MAIN_JOB: [], BASELINE_JOB: []}
        # Jobs whose records did not come by time.
        self._unsorted: set[str] = set()
        self._first_of: dict[tuple[type[Record], str], Record] = {}
        self._injected: set[int] = set()
        # What each process of the main job committed and saved: by that the generations of a command are found.
        self._committed: list[StepCommitted] = []
        self._saved: list[CheckpointWritten] = []
        # By step: the longest time that a rank waited for its checkpoint.
        self._waits: dict[int, float] = {}
        # By step: when, and why, a part of its checkpoint was not saved.
        self._unsaved: dict[int, tuple[float, str]] = {}
        self._began_seconds: float | None = None
        self._ended_seconds: float | None = None
        self._newest_seconds: float | None = None
        self._timeline: Timeline | None = None
        self.size = 0

    def feed(self, event: Event) -> Record | None:
        """Process one event; returns its record, or None when it is malformed."""
        with self.lock:
            self.size += 1
            try:
                record = parse(event)
                if record.job == MAIN_JOB:
                    self.ranks.feed(record)
                    self.hosts.feed(record)
            except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
                # Of a damaged log, or of one by another version: no run is to suffer from it.
                self.unread[event.kind] += 1
                return None
            if record.job in self._steps:
                self._take(record)
            return record

    @property
    def timeline(self) -> Timeline:
        """The timeline so far."""
        with self.lock:
            if self._timeline is None:
                main = self._steps[MAIN_JOB]
                waits = ((main.first_of(step), seconds) for step, seconds in self._waits.items())
                since = ((step.committed_seconds, seconds) for step, seconds in waits if step is not None)
                self._timeline = read(
                    Told(
                        records=self._in_order(MAIN_JOB),
                        steps=main.steps,
                        baseline_records=self._in_order(BASELINE_JOB),
                        baseline=self._steps[BASELINE_JOB].steps,
                        first_step_told_seconds=main.first_told_seconds,
                        checkpoints=tuple(sorted((at, at + seconds) for at, seconds in since)),
                        newest_saved_step=max(self._waits.keys() - self._unsaved.keys(), default=None),
                        num_checkpoints=len(self._waits.keys() | self._unsaved.keys()),
                        unsaved_checkpoints=dict(sorted(self._unsaved.items())),
                        began_seconds=self._began_seconds,
                        ended_seconds=self._ended_seconds,
                        newest_seconds=self.newest_seconds,
                        committed=self._committed,
                        saved=self._saved,
                    )
                )
            return self._timeline

    @property
    def num_unread(self) -> int:
        """The number of malformed events."""
        return self.unread.total()

    @property
    def num_records(self) -> int:
        """How many events of the main job there were that figures are made of."""
        first, redone = self.num_steps()
        return len(self._records[MAIN_JOB]) + first + redone

    @property
    def newest_seconds(self) -> float:
        """The time of the newest event (CLOCK_MONOTONIC); 0 before the first."""
        return 0.0 if self._newest_seconds is None else self._newest_seconds

    @property
    def num_checkpoints(self) -> int:
        """Steps of whose checkpoint a part was written."""
        return len(self._waits)

    def of(self, kind: type[R], job: str = MAIN_JOB) -> Iterator[R]:
        """The records of that kind, by time; not those of steps and checkpoints, which are in the timeline."""
        return (record for record in self._in_order(job) if isinstance(record, kind))

    def first_of(self, kind: type[R], job: str = MAIN_JOB) -> R | None:
        """The first record of that kind."""
        found = self._first_of.get((kind, job))
        return found if isinstance(found, kind) else None

    def step(self, number: int, job: str = MAIN_JOB) -> CommittedStep | None:
        """The first record of a step."""
        with self.lock:
            return self._steps[job].first_of(number)

    def num_steps(self, job: str = MAIN_JOB) -> tuple[int, int]:
        """How many steps of a job were committed, and how many were committed again."""
        with self.lock:
            return self._steps[job].num_steps

    def last_steps(self, job: str, number: int) -> Sequence[CommittedStep]:
        """The first records of the last `number` steps of a job."""
        with self.lock:
            return self._steps[job].last(number)

    def usual_step_seconds(self, job: str = MAIN_JOB) -> float | None:
        """The recent median duration of a step of a job; None before the first."""
        return usual_step_seconds(self.last_steps(job, STEPS_BEFORE))

    def newest_step(self, job: str = MAIN_JOB) -> CommittedStep | None:
        """The step of a job that was committed last, also of those that are done again."""
        with self.lock:
            return self._steps[job].newest

    def unit(self, job: str = MAIN_JOB) -> str:
        """What the throughput of a job is counted in; see `steps.WORK_UNITS`."""
        return self._steps[job].unit

    @property
    def degraded_layers(self) -> Mapping[int, int]:
        """How many layers are degraded in each epoch, counted once for each replica that degrades them."""
        return {one.epoch: num_layers(one.layout, "degraded") for one in self.of(LayoutTold) if one.epoch is not None}

    @property
    def num_injected(self) -> int:
        """How many incidents have fired."""
        return len(self._injected)

    def _take(self, record: Record) -> None:
        self._timeline = None
        if record.job == MAIN_JOB:
            self._note_time(record)
        match record:
            case StepCommitted():
                self._steps[record.job].add(record)
                if record.job == MAIN_JOB:
                    self._committed.append(record)
            case CheckpointWritten():
                if record.job == MAIN_JOB and record.step is not None:
                    self._saved.append(record)
                    wait = self._waits.get(record.step, 0.0)
                    self._waits[record.step] = max(wait, record.blocking_seconds)
            case CheckpointFailed():
                if record.job == MAIN_JOB and record.step is not None:
                    self._unsaved.setdefault(record.step, (record.monotonic_seconds, record.reason))
            case Warned():
                pass
            case StateChecksums():
                self.size += len(record.sums) // 8
                self._file(record)
            case _:
                self._file(record)
                known = self._first_of.setdefault((type(record), record.job), record)
                if record.monotonic_seconds < known.monotonic_seconds:
                    self._first_of[type(record), record.job] = record
                if record.job == MAIN_JOB and isinstance(record, Injected):
                    self._injected.add(record.incident)
                if record.job == MAIN_JOB and isinstance(record, ProcessStarted):
                    self._steps[MAIN_JOB].note_process(record)
                elif (
                    record.job == MAIN_JOB
                    and isinstance(record, JobStarted)
                    and read_traits(record).restarts_by_launcher
                ):
                    self._steps[MAIN_JOB].believe_processes()

    def _file(self, record: Record) -> None:
        """Put it among the others, which are put in order when they are read."""
        records = self._records[record.job]
        if records and record.monotonic_seconds < records[-1].monotonic_seconds:
            self._unsorted.add(record.job)
        records.append(record)

    def _in_order(self, job: str) -> list[Record]:
        with self.lock:
            if job in self._unsorted:
                self._records[job].sort(key=_happened)
                self._unsorted.discard(job)
            return self._records[job]

    def _note_time(self, record: Record) -> None:
        at = record.monotonic_seconds
        self.unix_offset_seconds = record.time_seconds - at
        self._newest_seconds = at if self._newest_seconds is None else max(at, self._newest_seconds)
        if not isinstance(record, Residue | RunEnded | CheckpointChecked | CheckpointPointed):
            self._began_seconds = at if self._began_seconds is None else min(at, self._began_seconds)
            self._ended_seconds = at if self._ended_seconds is None else max(at, self._ended_seconds)


def _happened(record: Record) -> float:
    return record.monotonic_seconds


class EventLog(list[Event]):
    """The events of a log in the order of the file. What is computed from all of them is computed once."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__(events)
        self._shared = Shared()
        # Fed with as many of them, as long as nothing failed.
        self._taking = RunState()
        self._num_taken = 0
        self._failure: Exception | None = None

    def take(self, event: Event) -> None:
        """Add an event. Of one of which there are very many only its record is kept, not what was read as well."""
        if self._num_taken == len(self):
            self._feed(event)
        self.append(event)

    @property
    def state(self) -> RunState:
        """The state after all of them."""
        return self.once("state", self._completed)

    def _completed(self) -> RunState:
        if self._num_taken == 0:
            return _fed(self)
        with without_collection():
            for event in self[self._num_taken :]:
                self._feed(event)
        if self._failure is not None:
            raise self._failure
        return self._taking

    def _feed(self, event: Event) -> None:
        self._num_taken += 1
        try:
            record = self._taking.feed(event) if self._failure is None else None
        except Exception as error:  # whoever asks for the state is told
            self._failure = error.with_traceback(None)
            return
        if isinstance(record, StepCommitted | StateChecksums):
            # Nobody else has it yet.
            object.__setattr__(event, "fields", _Fields(record))

    def once(self, what: str, compute: Callable[[], T]) -> T:
        """See `Shared.once`."""
        return self._shared.once(what, compute)


class _Fields(Mapping[str, Any]):
    """The fields of an event, as its record has them."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def __getitem__(self, key: str) -> Any:
        if key not in keys_of(type(self._record)):
            raise KeyError(key)
        return getattr(self._record, key)

    def __iter__(self) -> Iterator[str]:
        return iter(keys_of(type(self._record)))

    def __len__(self) -> int:
        return len(keys_of(type(self._record)))


def state_of(events: Iterable[Event]) -> RunState:
    """The state after all of `events`; of a log, the one that all share."""
    return events.state if isinstance(events, EventLog) else _fed(events)


def _fed(events: Iterable[Event]) -> RunState:
    state = RunState()
    with without_collection():
        for event in events:
            state.feed(event)
    return state


def build(events: Iterable[Event]) -> Timeline:
    """The timeline of a log, whole or cut off; the order of `events` does not matter."""
    return state_of(events).timeline
