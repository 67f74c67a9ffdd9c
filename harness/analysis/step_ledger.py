"""Records of committed steps, in any order of arrival -> the steps of a job."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from harness.analysis.steps import WORK_UNITS, CommittedStep, Steps, committed_seconds
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import ProcessStarted, StepCommitted
from mecefo_runtime.system.records import parse

_BLOCK_STEPS = 256


class StepLedger:
    """The committed steps of one job. Taking in a record costs the same however many there are.

    A record that may repeat an earlier leader's only fills a gap.
    """

    def __init__(self) -> None:
        self.first_told_seconds: float | None = None
        # Those of a step by the time of their commit, what only says again last.
        self._records: dict[int, list[StepCommitted]] = {}
        self._first_of: dict[int, CommittedStep] = {}
        self._redone_of: dict[int, tuple[CommittedStep, ...]] = {}
        self._first: list[CommittedStep] = []
        self._redone: list[CommittedStep] = []
        self._cuts: list[int] = []
        self._memo: dict[Any, Any] = {}
        self._unit = WORK_UNITS[0]
        self._num_records = self._num_with_tokens = self._num_with_samples = 0
        # By pid: since when the process belongs to which epoch, in the order of time.
        self._epochs: dict[int, list[tuple[float, int]]] = {}
        self._believes_processes = False

    def add(self, record: StepCommitted) -> None:
        """Process one record."""
        if record.step is None:
            return
        at = record.monotonic_seconds
        self.first_told_seconds = at if self.first_told_seconds is None else min(at, self.first_told_seconds)
        insort(self._records.setdefault(record.step, []), record, key=_said_first)
        self._num_records += 1
        self._num_with_tokens += record.tokens is not None
        self._num_with_samples += record.samples is not None
        told = (self._num_with_tokens, self._num_with_samples, self._num_records)
        unit = next(unit for unit, number in zip(WORK_UNITS, told, strict=True) if number == self._num_records)
        if unit != self._unit:
            # What is counted differently cannot be compared.
            self._unit = unit
            self._settle_all()
        else:
            self._settle(record.step)

    def note_process(self, record: ProcessStarted) -> None:
        """A process of a rank belongs to an attempt; to several, where it replaces itself (`os.execv`)."""
        if record.role != "rank" or record.started_pid is None or record.rank_attempt is None:
            return
        known = self._epochs.setdefault(record.started_pid, [])
        insort(known, (record.monotonic_seconds, record.rank_attempt), key=lambda since: since[0])
        if self._believes_processes and any(one.pid == record.started_pid for one in self._newest_records()):
            self._settle_all()

    def believe_processes(self) -> None:
        """Of a command's job: what a step says itself of its attempt may be less (a shell loop)."""
        if not self._believes_processes:
            self._believes_processes = True
            self._settle_all()

    def first_of(self, step: int) -> CommittedStep | None:
        """The first record of `step`."""
        return self._first_of.get(step)

    @property
    def num_steps(self) -> tuple[int, int]:
        """How many steps were committed, and how many were committed again."""
        return len(self._first), len(self._redone)

    def last(self, number: int) -> Sequence[CommittedStep]:
        """The first records of the last `number` steps."""
        return self._first[-number:]

    @property
    def newest(self) -> CommittedStep | None:
        """The step that was committed last, also of those that are done again."""
        return max((*self._first[-1:], *self._redone[-1:]), key=committed_seconds, default=None)

    @property
    def unit(self) -> str:
        """What throughput is counted in."""
        return self._unit

    @property
    def steps(self) -> Steps:
        """The steps as they are known."""
        return Steps(tuple(self._first), tuple(self._redone), self._unit, tuple(self._cuts), self._memo)

    def _newest_records(self) -> Iterable[StepCommitted]:
        # A process is told before its steps; who looks further back would do so for each one that is started.
        return [self._records[step.step][0] for step in self._first[-_BLOCK_STEPS:]]

    def _settle_all(self) -> None:
        self._first, self._redone, self._first_of, self._redone_of = [], [], {}, {}
        self._cuts, self._memo = [], {}
        for number in sorted(self._records, key=lambda number: self._records[number][0].committed_seconds):
            self._settle(number)

    def _settle(self, number: int) -> None:
        self._place(number)
        if number + 1 in self._first_of:
            # It begins where this one ends.
            self._place(number + 1)

    def _place(self, number: int) -> None:
        records = self._records[number]
        head, epoch = records[0], self._epoch(records[0])
        by_replica: dict[int | None, list[StepCommitted]] = {}
        for one in records:
            by_replica.setdefault(one.replica, []).append(one)
        # Each replica group tells the step, for its own share of the work.
        shares = [told[0] for told in by_replica.values()]
        first = self._step(head, epoch, is_first=True, shares=shares)
        again = max(by_replica.values(), key=len)[1:]
        redone = tuple(
            self._step(one, own, is_first=False)
            for one in again
            if not one.repeated
            and ((own := self._epoch(one)) > epoch or one.replica is not None or self._went_back(one, records[0]))
        )
        if first != self._first_of.get(number):
            self._replace(self._first_of.get(number), first)
            self._first_of[number] = first
        if redone != self._redone_of.get(number, ()):
            for gone in self._redone_of.get(number, ()):
                self._redone.remove(gone)
            for step in redone:
                insort(self._redone, step, key=committed_seconds)
            self._redone_of[number] = redone

    def _went_back(self, later: StepCommitted, earlier: StepCommitted) -> bool:
        """Whether a script loaded an older state without being started again."""
        return self._believes_processes and later.pid == earlier.pid and later is not earlier

    def _replace(self, old: CommittedStep | None, new: CommittedStep) -> None:
        if old is not None and self._first[-1] is old and not (self._cuts and self._cuts[-1] == len(self._first)):
            # Another replica group tells of the newest step.
            self._first.pop()
            old = None
        elif old is not None:
            self._first.remove(old)
        if old is None and (not self._first or new.committed_seconds >= self._first[-1].committed_seconds):
            self._append(new)
            return
        insort(self._first, new, key=committed_seconds)
        steps, self._first = self._first, []
        self._cuts, self._memo = [], {}
        for step in steps:
            self._append(step)

    def _append(self, step: CommittedStep) -> None:
        while self._cuts and step.previous_seconds < self._first[self._cuts[-1] - 1].committed_seconds:
            self._cuts.pop()
        self._first.append(step)
        if len(self._first) >= (self._cuts[-1] if self._cuts else 0) + _BLOCK_STEPS:
            self._cuts.append(len(self._first))

    def _epoch(self, record: StepCommitted) -> int:
        known = self._epochs.get(record.pid) if self._believes_processes else None
        if not known:
            return record.epoch
        return known[max(0, bisect_right(known, (record.committed_seconds, inf)) - 1)][1]

    def _step(
        self, record: StepCommitted, epoch: int, *, is_first: bool, shares: Sequence[StepCommitted] = ()
    ) -> CommittedStep:
        number, committed = record.step or 0, record.committed_seconds
        # Of a job that had gone back, the step before is the one that its own epoch committed.
        before = next((one for one in reversed(self._redone_of.get(number - 1, ())) if one.epoch == epoch), None)
        if before is None and is_first:
            before = self._first_of.get(number - 1)
        previous = None if before is None else before.committed_seconds
        began = record.began_monotonic
        if began is None:
            began = committed if previous is None else previous
        began = min(began, committed)
        # A step cannot have taken longer than from its beginning when the record before it is newer than that.
        previous = began if previous is None or previous > began else previous
        tokens, samples = (_sum([getattr(one, unit) for one in shares or [record]]) for unit in WORK_UNITS[:2])
        work = {"tokens": tokens, "samples": samples}.get(self._unit)
        return CommittedStep(
            step=number,
            epoch=epoch,
            loss=record.loss,
            work=1.0 if work is None else float(work),
            samples=samples,
            samples_checksum=record.samples_checksum,
            began_seconds=began,
            committed_seconds=committed,
            previous_seconds=previous,
            is_left_out=record.skipped,
            tokens=tokens,
            grad_norm=record.grad_norm,
            learning_rate=record.learning_rate,
        )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _said_first(record: StepCommitted) -> tuple[bool, float]:
    return record.repeated, record.committed_seconds


def read_steps(events: Iterable[Event], job: str, *, is_command: bool = False) -> Steps:
    """The committed steps of `job`; of a command's, what is known of the processes that told them is believed."""
    ledger = StepLedger()
    if is_command:
        ledger.believe_processes()
    for event in events:
        record = parse(event) if event.job == job else None
        if isinstance(record, StepCommitted):
            ledger.add(record)
        elif isinstance(record, ProcessStarted):
            ledger.note_process(record)
    return ledger.steps
