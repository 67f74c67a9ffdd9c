"""Records of committed steps, in any order of arrival -> the steps of a job."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from harness.analysis.steps import WORK_UNITS, CommittedStep, Steps, committed_seconds
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import ProcessStarted, StepCommitted
from mecefo_runtime.system.records import parse

_BLOCK_STEPS = 256
# So many steps are put in their places one by one.
_FEW = 16


class StepLedger:
    """The committed steps of one job. Taking in a record costs the same however many there are.

    Records are only kept as they come; the steps are made of them when somebody asks, at a cost that goes with what is
    new. A record that may repeat an earlier leader's only fills a gap.
    """

    def __init__(self) -> None:
        self.first_told_seconds: float | None = None
        # Those of a step by the time of their commit, what only says again last.
        self._records: dict[int, list[StepCommitted]] = {}
        # Steps of which there are records that have not been looked at; all of them have to be where `_is_stale`.
        self._waiting: set[int] = set()
        self._is_stale = False
        # How many of a step's records were looked at; less than one where they have to be looked at anew.
        self._num_seen: dict[int, int] = {}
        # By step that is told by several replica groups: those that told it, and the shares that are not counted yet.
        self._groups_of: dict[int, set[int | None]] = {}
        self._shares_of: dict[int, list[StepCommitted]] = {}
        self._first_of: dict[int, CommittedStep] = {}
        # The records with which a step was committed again, by time, each with its epoch; and what was made of them.
        self._again_of: dict[int, list[tuple[int, StepCommitted]]] = {}
        self._redone_of: dict[int, list[CommittedStep]] = {}
        self._first: list[CommittedStep] = []
        self._redone: list[CommittedStep] = []
        self._cuts: list[int] = []
        self._memo: dict[Any, Any] = {}
        self._steps: Steps | None = None
        self._unit = WORK_UNITS[0]
        self._num_records = self._num_with_tokens = self._num_with_samples = 0
        # By pid: since when the process belongs to which epoch, in the order of time; and its newest commit.
        self._epochs: dict[int, list[tuple[float, int]]] = {}
        self._last_of_pid: dict[int, float] = {}
        self._believes_processes = False

    def add(self, record: StepCommitted) -> None:
        """Process one record."""
        if record.step is None:
            return
        at, committed = record.monotonic_seconds, record.committed_seconds
        self.first_told_seconds = at if self.first_told_seconds is None else min(at, self.first_told_seconds)
        own = self._records.setdefault(record.step, [])
        is_last = not own or _said_first(record) >= _said_first(own[-1])
        if is_last:
            own.append(record)
        else:
            insort(own, record, key=_said_first)
        groups = self._groups_of.get(record.step)
        if is_last and groups is not None and record.replica not in groups:
            groups.add(record.replica)
            self._shares_of.setdefault(record.step, []).append(record)
        elif not is_last or record.replica is not None:
            self._num_seen[record.step] = 0
            self._groups_of.pop(record.step, None)
        self._last_of_pid[record.pid] = max(committed, self._last_of_pid.get(record.pid, committed))
        self._num_records += 1
        self._num_with_tokens += record.tokens is not None
        self._num_with_samples += record.samples is not None
        unit = WORK_UNITS[2]
        if self._num_with_tokens == self._num_records:
            unit = WORK_UNITS[0]
        elif self._num_with_samples == self._num_records:
            unit = WORK_UNITS[1]
        if unit != self._unit:
            # What is counted differently cannot be compared.
            self._unit = unit
            self._is_stale = True
        self._waiting.add(record.step)
        self._steps = None

    def note_process(self, record: ProcessStarted) -> None:
        """A process of a rank belongs to an attempt; to several, where it replaces itself (`os.execv`)."""
        if record.role != "rank" or record.started_pid is None or record.rank_attempt is None:
            return
        since = record.monotonic_seconds
        known = self._epochs.setdefault(record.started_pid, [])
        told = self._last_of_pid.get(record.started_pid)
        # A process is told before its steps; seldom is it not.
        self._is_stale |= self._believes_processes and told is not None and (not known or told >= since)
        insort(known, (since, record.rank_attempt), key=lambda since: since[0])

    def believe_processes(self) -> None:
        """Of a command's job: what a step says itself of its attempt may be less (a shell loop)."""
        if not self._believes_processes:
            self._believes_processes = True
            self._is_stale = True

    def first_of(self, step: int) -> CommittedStep | None:
        """The first record of `step`."""
        self._settle()
        return self._first_of.get(step)

    @property
    def num_steps(self) -> tuple[int, int]:
        """How many steps were committed, and how many were committed again."""
        self._settle()
        return len(self._first), len(self._redone)

    def last(self, number: int) -> Sequence[CommittedStep]:
        """The first records of the last `number` steps."""
        self._settle()
        return self._first[-number:]

    @property
    def newest(self) -> CommittedStep | None:
        """The step that was committed last, also of those that are done again."""
        self._settle()
        return max((*self._first[-1:], *self._redone[-1:]), key=committed_seconds, default=None)

    @property
    def unit(self) -> str:
        """What throughput is counted in."""
        return self._unit

    @property
    def steps(self) -> Steps:
        """The steps as they are known."""
        self._settle()
        if self._steps is None:
            self._steps = Steps(tuple(self._first), tuple(self._redone), self._unit, tuple(self._cuts), self._memo)
        return self._steps

    # ---- records -> steps ----

    def _settle(self) -> None:
        """Look at the records that came since this was last done."""
        if not self._is_stale and not self._waiting:
            return
        self._steps = None
        # Each step may have to be put in its place among all others: of many that is dearer than to order them anew.
        if self._is_stale or len(self._waiting) > _FEW:
            self._settle_all()
        else:
            for number in sorted(self._waiting, key=self._head_seconds):
                self._place(number)
        self._waiting.clear()
        self._is_stale = False

    def _settle_all(self) -> None:
        self._first_of, self._redone_of, self._again_of, self._num_seen = {}, {}, {}, {}
        self._groups_of, self._shares_of = {}, {}
        self._cuts, self._memo, self._first, self._redone = [], {}, [], []
        ordered = sorted(self._records, key=self._head_seconds)
        for number in ordered:
            self._sort_out(number)
        for number in ordered:
            self._first_of[number] = first = self._first_step(number)
            self._append(first)
        for number in self._again_of:
            self._redone_of[number] = [self._step(one, epoch, is_first=False) for epoch, one in self._again_of[number]]
            self._redone += self._redone_of[number]
        self._redone.sort(key=committed_seconds)

    def _head_seconds(self, number: int) -> float:
        return self._records[number][0].committed_seconds

    def _place(self, number: int) -> None:
        """Put a step in its place of which there are new records, and what follows it."""
        if number in self._groups_of and number in self._shares_of:
            known = self._first_of[number]
            self._first_of[number] = first = self._with_shares(known, self._shares_of.pop(number))
            self._replace(known, first)
            return
        records, seen = self._records[number], self._num_seen.get(number, 0)
        self._sort_out(number)
        if seen:
            # They are all newer than those that are known.
            self._redo(number, len(self._redone_of.get(number, ())))
        else:
            self._put(number)
        following = self._records[number + 1][-1] if number + 1 in self._first_of else None
        # It begins where this one ends.
        if following is not None and (
            following.repeated or following.committed_seconds > records[seen].committed_seconds
        ):
            self._put(number + 1)

    def _put(self, number: int) -> None:
        known, first = self._first_of.get(number), self._first_step(number)
        if first != known:
            self._first_of[number] = first
            self._replace(known, first)
        self._redo(number, 0)

    def _redo(self, number: int, since: int) -> None:
        """Make anew the steps of the records with which one was committed again, from that one on."""
        known, again = self._redone_of.get(number, []), self._again_of.get(number, ())
        for gone in known[since:]:
            del self._redone[_index_of(self._redone, gone)]
        del known[since:]
        for epoch, one in again[since:]:
            known.append(step := self._step(one, epoch, is_first=False))
            insort(self._redone, step, key=committed_seconds)
        if known:
            self._redone_of[number] = known

    def _sort_out(self, number: int) -> None:
        """With which of its records a step was committed again."""
        records, seen = self._records[number], self._num_seen.get(number, 0)
        # Of a step that replica groups tell, what comes later may be of any of them.
        self._num_seen[number] = len(records) if records[0].replica is None else 0
        if len(records) == 1:
            return
        head, epoch = records[0], self._epoch(records[0])
        told = records[max(1, seen) :]
        if seen == 0 and any(one.replica is not None for one in records):
            told = max(_by_replica(records), key=len)[1:]
            self._num_seen[number] = 0
        again = [
            (own, one)
            for one in told
            if not one.repeated
            and ((own := self._epoch(one)) > epoch or one.replica is not None or self._went_back(one, head))
        ]
        if seen:
            self._again_of.setdefault(number, []).extend(again)
        elif again or number in self._again_of:
            self._again_of[number] = again

    def _went_back(self, later: StepCommitted, earlier: StepCommitted) -> bool:
        """Whether a script loaded an older state without being started again."""
        return self._believes_processes and later.pid == earlier.pid and later is not earlier

    def _replace(self, old: CommittedStep | None, new: CommittedStep) -> None:
        """Put `new` in its place, and in order again what comes after it."""
        if old is None and (not self._first or new.committed_seconds >= self._first[-1].committed_seconds):
            self._append(new)
            return
        later = bisect_right(self._first, new.committed_seconds, key=committed_seconds)
        since = later if old is None else min(later, _index_of(self._first, old))
        steps = [step for step in self._first[since:] if step is not old]
        insort(steps, new, key=committed_seconds)
        del self._first[since:]
        while self._cuts and self._cuts[-1] > since:
            self._cuts.pop()
        # What was found out about blocks that stay as they are is still true.
        closed = self._cuts[-1] if self._cuts else 0
        for key in [key for key in self._memo if not _is_of_closed(key, closed)]:
            del self._memo[key]
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

    def _before(self, number: int, epoch: int, committed: float, *, is_first: bool) -> float | None:
        """When the step before was committed, of a job that had gone back by its own epoch; None: nobody knows."""
        again = self._again_of.get(number - 1, ())
        for index in range(bisect_right(again, committed, key=lambda told: told[1].committed_seconds) - 1, -1, -1):
            own, record = again[index]
            if own == epoch:
                return record.committed_seconds
            if own < epoch:
                break
        told = self._records.get(number - 1)
        return told[0].committed_seconds if told and is_first else None

    def _first_step(self, number: int) -> CommittedStep:
        records = self._records[number]
        shares = records[:1]
        self._shares_of.pop(number, None)
        if records[0].replica is not None or (len(records) > 1 and any(one.replica is not None for one in records)):
            # Each replica group tells the step, for its own share of the work.
            shares = [told[0] for told in _by_replica(records)]
            self._groups_of[number] = {one.replica for one in shares}
        return self._step(records[0], self._epoch(records[0]), is_first=True, shares=shares)

    def _with_shares(self, first: CommittedStep, shares: Sequence[StepCommitted]) -> CommittedStep:
        """A step with what further groups of replicas did of it."""
        tokens = _sum([first.tokens, *(one.tokens for one in shares)])
        samples = _sum([first.samples, *(one.samples for one in shares)])
        return replace(first, tokens=tokens, samples=samples, work=self._work(tokens, samples))

    def _work(self, tokens: int | None, samples: int | None) -> float:
        work = {"tokens": tokens, "samples": samples}.get(self._unit)
        return 1.0 if work is None else float(work)

    def _step(
        self, record: StepCommitted, epoch: int, *, is_first: bool, shares: Sequence[StepCommitted] = ()
    ) -> CommittedStep:
        number, committed = record.step or 0, record.committed_seconds
        previous = self._before(number, epoch, committed, is_first=is_first)
        began = record.began_monotonic
        if began is None:
            began = committed if previous is None else previous
        began = min(began, committed)
        # A step cannot have taken longer than from its beginning when the record before it is newer than that.
        previous = began if previous is None or previous > began else previous
        tokens, samples = record.tokens, record.samples
        if len(shares) > 1:
            tokens, samples = _sum([one.tokens for one in shares]), _sum([one.samples for one in shares])
        return CommittedStep(
            step=number,
            epoch=epoch,
            loss=record.loss,
            work=self._work(tokens, samples),
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


def _by_replica(records: Sequence[StepCommitted]) -> Collection[list[StepCommitted]]:
    found: dict[int | None, list[StepCommitted]] = {}
    for one in records:
        found.setdefault(one.replica, []).append(one)
    return found.values()


def _index_of(steps: Sequence[CommittedStep], step: CommittedStep) -> int:
    """Where `step` itself is in `steps`, which are in the order of commit."""
    index = bisect_left(steps, step.committed_seconds, key=committed_seconds)
    while steps[index] is not step:
        index += 1
    return index


def _is_of_closed(key: object, closed: int) -> bool:
    """Whether what is known by `key` is of a block that ends by `closed`; see `Steps.of_blocks`."""
    end = key[2] if isinstance(key, tuple) and len(key) > 2 else None
    return isinstance(end, int) and end <= closed


def _said_first(record: StepCommitted) -> tuple[bool, float]:
    return record.repeated, record.committed_seconds


def read_steps(events: Iterable[Event], job: str, *, restarts_by_launcher: bool = False) -> Steps:
    """The committed steps of `job`; where its launcher starts ranks again, what is known of their processes decides."""
    ledger = StepLedger()
    if restarts_by_launcher:
        ledger.believe_processes()
    for event in events:
        record = parse(event) if event.job == job else None
        if isinstance(record, StepCommitted):
            ledger.add(record)
        elif isinstance(record, ProcessStarted):
            ledger.note_process(record)
    return ledger.steps
