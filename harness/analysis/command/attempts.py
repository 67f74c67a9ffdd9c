"""The attempts of an external job: its launcher ends all ranks and starts them again, from a checkpoint or not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf

from harness.analysis.steps import CommittedStep, Steps
from mecefo_runtime.system.command_records import StepsCounted
from mecefo_runtime.system.job_records import AttemptStarted, ProcessExited, ProcessStarted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the ranks, `number` from 1. Times are CLOCK_MONOTONIC seconds; None: never.

    `started_seconds` is when its first rank reported, `ended_seconds` when the first of its ranks ended; between
    `first_began_seconds` and `last_committed_seconds` lie its steps. `is_count_known` is whether the numbers of its
    steps are those of the whole training; None: it came to no step, or the log is of a version that did not say.
    `last_step` is the one that it committed last, and `has_new_step` whether it committed any that no attempt before
    had committed.
    `resumed_after` is the step after which each rank continues that knows it: 0 where it began anew. With
    `is_optimizer_fresh` a rank that continues from a later one did so without the state of its optimizer, whose own
    count before the first step is `optimizer_steps`.
    Its launcher had restarted the ranks `num_restarts` times, and may do so `max_restarts` times; None: not known.
    """

    number: int
    started_seconds: float
    ended_seconds: float | None
    first_began_seconds: float | None
    last_committed_seconds: float | None
    first_step: int | None
    is_count_known: bool | None = None
    world_size: int | None = None
    last_step: int | None = None
    has_new_step: bool = False
    resumed_after: Mapping[int, int] = field(default_factory=dict)
    is_optimizer_fresh: bool = False
    optimizer_steps: int | None = None
    num_restarts: int | None = None
    max_restarts: int | None = None

    @property
    def began_anew(self) -> bool:
        """Whether it is a restart that began the whole training from step 1 again."""
        return self.number > 1 and self.first_step == 1 and self.is_count_known is not False

    @property
    def ranks_differ(self) -> bool:
        """Whether its ranks continue from different steps: the number of none of them is that of the training."""
        return len(set(self.resumed_after.values())) > 1

    @property
    def lost_count(self) -> bool:
        """Whether the numbers of its steps are not known: it may have resumed, and was counted from 1."""
        return self.ranks_differ or (self.is_count_known is False and self.first_step == 1)


def read_attempts(main: Sequence[Record], steps: Steps) -> tuple[Attempt, ...]:
    """The attempts of a job in order; `main` holds its records by time."""
    own: dict[int, list[CommittedStep]] = {}
    for step in steps.every:
        own.setdefault(step.epoch, []).append(step)
    with_new = {step.epoch for step in steps.first}
    exits = _first_exits(main)
    starts = [record for record in main if isinstance(record, AttemptStarted)]
    counted = _counted_by_attempt(main)
    found: list[Attempt] = []
    for record in starts:
        mine = own.get(record.attempt_number, ())
        said = counted.get(record.attempt_number, {})
        # Every rank reports how its steps are counted; the committed steps in the log are the first one's.
        leader = said[min(said)] if said else None
        fresh = next((one for one in said.values() if one.is_optimizer_fresh and one.resumed_after), None)
        found.append(
            Attempt(
                number=record.attempt_number,
                world_size=record.world_size,
                started_seconds=record.monotonic_seconds,
                ended_seconds=exits.get(record.attempt_number),
                first_began_seconds=min((step.began_seconds for step in mine), default=None),
                last_committed_seconds=max((step.committed_seconds for step in mine), default=None),
                first_step=next((step.step for step in mine), None),
                last_step=mine[-1].step if mine else None,
                has_new_step=record.attempt_number in with_new,
                is_count_known=None if leader is None else leader.count_kept_by != "nobody",
                resumed_after=_resumed_after(said),
                is_optimizer_fresh=fresh is not None,
                optimizer_steps=None if fresh is None else fresh.optimizer_steps,
                num_restarts=record.num_restarts,
                max_restarts=record.max_restarts,
            )
        )
    return tuple(found)


class AttemptsOfProcesses:
    """Which attempt a process of a rank belongs to; of several, where it replaces itself (`os.execv`)."""

    def __init__(self, main: Iterable[Record]) -> None:
        self._of: dict[int, list[tuple[float, int]]] = {}
        self._starts: list[tuple[float, int]] = []
        for record in main:
            match record:
                case ProcessStarted(started_pid=int(pid), rank_attempt=int(attempt)):
                    self._of.setdefault(pid, []).append((record.monotonic_seconds, attempt))
                case AttemptStarted():
                    self._starts.append((record.monotonic_seconds, record.attempt_number))
                case _:
                    pass

    def of(self, pid: int, seconds: float) -> int | None:
        """That of the process which had `pid` then; of a process without a start, the attempt that was under way.

        By its process: an old one may still say something when the next attempt has begun.
        """
        own = self._of.get(pid)
        if own is None:
            return self.at(seconds)
        # A rank may report before its start is in the log.
        return own[max(0, bisect_right(own, (seconds, inf)) - 1)][1]

    def at(self, seconds: float) -> int | None:
        """The attempt that began last by then; None before the first."""
        index = bisect_right(self._starts, (seconds, inf)) - 1
        return self._starts[index][1] if index >= 0 else None


def _counted_by_attempt(main: Sequence[Record]) -> Mapping[int, Mapping[int, StepsCounted]]:
    """By attempt and rank, what each rank said of the count of its steps at the first one of that start."""
    belongs = AttemptsOfProcesses(main)
    found: dict[int, dict[int, StepsCounted]] = {}
    for record in main:
        if isinstance(record, StepsCounted):
            number = belongs.of(record.pid, record.monotonic_seconds)
            if number is not None:
                found.setdefault(number, {}).setdefault(record.rank or 0, record)
    return found


def _resumed_after(said: Mapping[int, StepsCounted]) -> Mapping[int, int]:
    """By rank after which step it continues, of those that know it, but for replica groups of torchft.

    That a rank loaded nothing says little where another one did: its state may have come from there.
    """
    known = {rank: one.resumed_after for rank, one in sorted(said.items()) if one.count_kept_by != "torchft"}
    found = {rank: after for rank, after in known.items() if after is not None}
    sure = {rank: after for rank, after in found.items() if not _has_only_loaded_nothing(said[rank])}
    # The first one's numbers are those that the steps have.
    return {rank: after for rank, after in found.items() if rank in sure or rank == min(said)} if sure else found


def _has_only_loaded_nothing(counted: StepsCounted) -> bool:
    return counted.count_kept_by == "nothing_loaded" or (
        counted.count_kept_by == "optimizer" and not counted.optimizer_steps
    )


class Starts:
    """The starts of the attempts of a job; `main` holds its records by time."""

    def __init__(self, main: Iterable[Record]) -> None:
        starts = [(one.monotonic_seconds, one.attempt_number) for one in main if isinstance(one, AttemptStarted)]
        self._times = [at for at, _ in starts]
        self._numbers = list(accumulate((number for _, number in starts), max))

    def recovery_from(self, injected: Injected) -> tuple[float, int]:
        """When at the earliest a step is committed that shows that the job is past a fault, and its least attempt.

        Of most faults it is any step after them. Without its launcher or its store a job is back when a later attempt
        trains: ranks that train on are orphans.
        """
        if not is_of_launcher(injected):
            return -inf, 0
        index = bisect_right(self._times, injected.monotonic_seconds)
        number = self._numbers[index - 1] if index else 0
        following = bisect_right(self._numbers, number)
        return (self._times[following] if following < len(self._times) else inf), number + 1


def is_of_launcher(injected: Injected) -> bool:
    """Whether a fault took the launcher or the store of a command away, and no rank: its ranks may train on.

    So they do in the grace of a preemption, after which only a new start of the command is a recovery.
    """
    if injected.requeue is not None:
        return True
    target = str(injected.target)
    return injected.is_loss and not injected.ranks and ("role=launcher" in target or "role=store" in target)


def attempt_at(attempts: Sequence[Attempt], seconds: float | None) -> int | None:
    """Which attempt was under way then; None before the first, or when `seconds` is None."""
    begun = 0 if seconds is None else bisect_right(attempts, seconds, key=lambda one: one.started_seconds)
    return attempts[begun - 1].number if begun else None


def read_restarts(attempts: Sequence[Attempt], ended_seconds: float) -> tuple[tuple[float, float], ...]:
    """The times (from, to) from the end of an attempt to the first step of the next one that came to a step."""
    restarts: list[tuple[float, float]] = []
    for earlier, later in pairwise(attempts):
        ended = later.started_seconds if earlier.ended_seconds is None else earlier.ended_seconds
        since = max(ended, earlier.last_committed_seconds or ended)
        until = ended_seconds if later.first_began_seconds is None else later.first_began_seconds
        if restarts and earlier.first_began_seconds is None:
            # It was over before it came to a step: all of it was waiting.
            since = restarts.pop()[0]
        restarts.append((since, max(since, until)))
    return tuple(restarts)


def _first_exits(main: Sequence[Record]) -> dict[int, float]:
    """When the first rank of each attempt ended.

    Of several processes of one rank and attempt, such as a wrapper's and the script's, the one that came last counts.
    """
    newest = {
        (record.started_rank, record.rank_attempt): record.started_pid
        for record in main
        if isinstance(record, ProcessStarted) and record.role == "rank"
    }
    found: dict[int, float] = {}
    for record in main:
        if not isinstance(record, ProcessExited) or record.role != "rank" or record.rank_attempt is None:
            continue
        if newest.get((record.exited_rank, record.rank_attempt), record.exited_pid) == record.exited_pid:
            found.setdefault(record.rank_attempt, record.monotonic_seconds)
    return found
