"""Ranks of a command that failed although the command ended well: nobody started them again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from signal import SIGKILL

from harness.analysis.attribution import Effect
from harness.analysis.command.failure_cause import EXITED, FailureCause, read_cause
from harness.analysis.command.job_length import JobLength
from harness.analysis.steps import CommittedStep
from mecefo_runtime.system.command_records import RankRaised, StepsCounted
from mecefo_runtime.system.job_records import AttemptStarted, ProcessExited, ProcessStarted, RankFinished
from mecefo_runtime.system.record import Record


@dataclass(frozen=True, slots=True)
class FurtherStep:
    """Steps were still to come: the job, or `rank` where that is one, came to `step`; or it should have."""

    step: int
    source: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class EndedRank:
    """A rank of the last attempt that ended otherwise than well and was not started again.

    `step` is the last one that it, or else the job, had committed; `further` says that more were to come, None where
    that is not so, or (not `is_known`) not known. `incident` is the fault that explains it, None where none does.
    """

    rank: int
    exit: int | None
    at_seconds: float
    step: int
    cause: FailureCause
    further: FurtherStep | None
    is_known: bool
    incident: int | None = None


def read_ended_ranks(
    main: Sequence[Record], steps: Sequence[CommittedStep], effects: Mapping[int, Effect], length: JobLength
) -> tuple[EndedRank, ...]:
    """Those of a job that the launcher says has ended well, by time; `main` holds its records by time."""
    processes = _Processes(main)
    committed = sorted((one.committed_seconds, one.step) for one in steps)
    reached = [*accumulate((step for _, step in committed), max)]
    last_step = reached[-1] if reached else 0
    told = _Goals(processes, length, last_step)
    found: list[EndedRank] = []
    for ended in processes.failed():
        rank, at = ended.exited_rank, ended.monotonic_seconds
        assert rank is not None
        raised = processes.raised.get(ended.exited_pid)
        num_before = bisect_right(committed, (at, inf))
        before = reached[num_before - 1] if num_before else 0
        step = raised.last_step if raised is not None and raised.last_step is not None else before
        step = processes.finished.get(ended.exited_pid, step)
        cause = None if raised is None else read_cause([raised])
        further, is_known = told.further(step, rank)
        if (ended.exit or 0) < 0 and ended.exited_pid in processes.finished:
            # Its script was through: libraries may still abort while they are unloaded.
            further, is_known = None, True
        found.append(
            EndedRank(
                rank=rank,
                exit=ended.exit,
                at_seconds=at,
                step=step,
                cause=cause or FailureCause(EXITED, rank, step, exit=ended.exit),
                further=further,
                is_known=is_known,
                incident=_explaining(effects.values(), ended, processes.since_seconds),
            )
        )
    return tuple(found)


class _Processes:
    """The ranks' newest processes, and what became of them; by pid, or by rank."""

    def __init__(self, main: Iterable[Record]) -> None:
        self.since_seconds = 0.0
        self.raised: dict[int | None, RankRaised] = {}
        # The last step of those that came to the end of their script.
        self.finished: dict[int | None, int] = {}
        self.finished_ranks: dict[int, int] = {}
        self._attempt: int | None = None
        self._newest: dict[int | None, ProcessStarted] = {}
        self._exits: list[ProcessExited] = []
        for record in main:
            match record:
                case AttemptStarted():
                    self._attempt, self.since_seconds = record.attempt_number, record.monotonic_seconds
                case ProcessStarted(role="rank"):
                    self._newest[record.started_rank] = record
                case ProcessExited(role="rank", exited_rank=int()):
                    self._exits.append(record)
                case RankRaised() if not record.is_injected:
                    self.raised[record.pid] = record
                case RankFinished(step=int(step)):
                    self.finished[record.pid] = step
                    self.finished_ranks[record.rank or 0] = step

    def failed(self) -> Iterator[ProcessExited]:
        """How the newest process of each rank of the last attempt ended, if not well."""
        for one in self._exits:
            newest = self._newest.get(one.exited_rank)
            is_newest = newest is not None and newest.started_pid == one.exited_pid
            is_last = newest is not None and newest.rank_attempt in (self._attempt, None)
            has_failed = bool(one.exit) or (one.exit is None and one.exited_pid in self.raised)
            if is_newest and is_last and has_failed:
                yield one


class _Goals:
    """What says how far the job came, or should have come; the furthest first."""

    def __init__(self, processes: _Processes, length: JobLength, last_step: int) -> None:
        told = [FurtherStep(one.step, one.source) for one in length.expected if one.source != "step_under_way"]
        told += [FurtherStep(last, "rank", rank) for rank, last in processes.finished_ranks.items()]
        # Of two that say the same, who is known to have come so far says more.
        self._told = sorted([*told, FurtherStep(last_step, "job")], key=lambda one: (-one.step, one.source == "job"))

    def further(self, step: int, rank: int) -> tuple[FurtherStep | None, bool]:
        """What says that steps were to come after `step` of `rank`, and whether it is known where nothing does."""
        others = (one for one in self._told if one.rank != rank)
        first = next(others)
        is_known = first.source != "job" or next(others, None) is not None
        return (first, True) if first.step > step else (None, is_known)


def _explaining(effects: Iterable[Effect], ended: ProcessExited, since_seconds: float) -> int | None:
    """The fault that struck the rank in its last attempt, or that was at work; the one injected last."""
    at = ended.monotonic_seconds
    for effect in sorted(effects, key=lambda effect: effect.injected, reverse=True):
        is_struck = ended.exited_rank in effect.ranks and since_seconds <= effect.injected <= at
        # Wrong numbers make a process fail, soon or late. SIGKILL comes from outside of it.
        is_instant = not effect.is_loss and not effect.goes_on and effect.injected <= at and ended.exit != -SIGKILL
        if is_struck or is_instant or effect.is_at_work(at):
            return effect.incident
    return None


def is_grouped(main: Iterable[Record]) -> bool:
    """Whether the job consists of replica groups, which end and come back each by itself (torchft)."""
    return any(isinstance(record, StepsCounted) and record.count_kept_by == "torchft" for record in main)
