"""Which ranks of a command's job an agent speaks for, and which none does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.analysis.command.attempts import Attempt
from mecefo_runtime.system.host import ForeignPid, Host
from mecefo_runtime.system.job_records import ProcessExited, ProcessStarted, RankStarted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import HostLost

# A launcher may say anything.
_MAX_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Observation:
    """The ranks of the attempt in which most of them were not observed; only attempts that came to a step count.

    `silent` are those of which nothing was heard: they run elsewhere, or without our agent. `without_step` did greet,
    and no step of a training was seen in them. `on_lost_hosts` are those whose host's agent was lost while the attempt
    went on.
    """

    num_ranks: int
    silent: tuple[int, ...] = ()
    without_step: tuple[int, ...] = ()
    on_lost_hosts: tuple[int, ...] = ()

    @property
    def num_observed(self) -> int:
        """How many ranks an agent speaks for."""
        others = set(self.on_lost_hosts).difference(self.silent, self.without_step) if self.on_lost_hosts else ()
        return self.num_ranks - len(self.silent) - len(self.without_step) - len(others)


@dataclass(slots=True)
class _OfAttempt:
    world_size: int = 0
    observed: set[int] = field(default_factory=set)
    # When the newest process of a rank began, and ended.
    launched: dict[int, int | None] = field(default_factory=dict)
    ended: dict[int | None, float] = field(default_factory=dict)
    # Since when the host of a rank's process was not observed.
    lost: dict[int, float] = field(default_factory=dict)

    def lose(self, host: Host, since_seconds: float) -> None:
        """The agent of `host` is lost: of the processes that ran there nothing more is known."""
        for rank, pid in self.launched.items():
            if isinstance(pid, ForeignPid) and pid.host == host and pid not in self.ended:
                self.lost.setdefault(rank, since_seconds)


def _on_lost_hosts(attempt: Attempt, told: _OfAttempt) -> tuple[int, ...]:
    """The ranks that were not observed to the end of an attempt that went on without them."""
    last = attempt.last_committed_seconds or 0.0
    return tuple(sorted(rank for rank, since in told.lost.items() if since < last))


def read_observation(main: Sequence[Record], attempts: Sequence[Attempt]) -> Observation | None:
    """Of a job whose records by time are `main`; None where no rank came as far as a step, or none says that it did."""
    own: dict[int, _OfAttempt] = {}
    # By pid: since when the process belongs to which attempt.
    belongs: dict[int | None, list[tuple[float, int]]] = {}
    has_said = False
    for record in main:
        match record:
            case ProcessStarted(role="rank", rank_attempt=int(number), started_rank=int(rank)):
                belongs.setdefault(record.started_pid, []).append((record.monotonic_seconds, number))
                own.setdefault(number, _OfAttempt()).launched[rank] = record.started_pid
            case ProcessExited(role="rank", rank_attempt=int(number)):
                own.setdefault(number, _OfAttempt()).ended[record.exited_pid] = record.monotonic_seconds
            case RankStarted(rank=int(rank)):
                has_said = True
                told = belongs.get(record.pid)
                at = (record.monotonic_seconds, _MAX_RANKS)
                number = record.attempt if told is None else told[max(0, bisect_right(told, at) - 1)][1]
                found = own.setdefault(number, _OfAttempt())
                found.observed.add(rank)
                found.world_size = max(found.world_size, record.world_size or 1)
            case HostLost(lost=(str(name), str(boot))):
                since = record.monotonic_seconds - record.silent_seconds
                for of_attempt in own.values():
                    of_attempt.lose(Host(name, boot), since)
            case _:
                pass
    if not has_said:
        return None
    told_of = [(one, own.get(one.number, _OfAttempt())) for one in attempts if one.last_step is not None]
    # Of as many ranks as a launcher may say there are, names are listed once.
    worst = max(told_of, key=lambda one: _num_unobserved(*one), default=None)
    return None if worst is None else _of_attempt(*worst)


def _num_unobserved(attempt: Attempt, told: _OfAttempt) -> int:
    num_ranks = _num_ranks(attempt, told)
    launched = [rank for rank in told.launched if 0 <= rank < num_ranks and rank not in told.observed]
    num_observed = sum(0 <= rank < num_ranks for rank in told.observed)
    without_step, lost = _without_step(attempt, told, launched), _on_lost_hosts(attempt, told)
    return num_ranks - num_observed - len(launched) + len({*without_step, *lost} if lost else without_step)


def _num_ranks(attempt: Attempt, told: _OfAttempt) -> int:
    return min(_MAX_RANKS, told.world_size or attempt.world_size or 1)


def _without_step(attempt: Attempt, told: _OfAttempt, launched: Sequence[int]) -> list[int]:
    """Of the ranks whose processes are known those that had time for a step: who ended before had none."""
    last = attempt.last_committed_seconds or 0.0
    return [rank for rank in launched if told.ended.get(told.launched[rank], last) >= last]


def _of_attempt(attempt: Attempt, told: _OfAttempt) -> Observation:
    num_ranks = _num_ranks(attempt, told)
    others = [rank for rank in range(num_ranks) if rank not in told.observed]
    launched = [rank for rank in others if rank in told.launched]
    silent = tuple(rank for rank in others if rank not in told.launched)
    lost = tuple(rank for rank in _on_lost_hosts(attempt, told) if rank < num_ranks)
    return Observation(num_ranks, silent, tuple(_without_step(attempt, told, launched)), lost)
