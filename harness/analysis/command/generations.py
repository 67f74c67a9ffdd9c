"""Two generations of one job at once: processes of an earlier attempt that are there while a later one trains.

A launcher that is killed leaves its ranks running. If its scheduler starts the job again, both train and save. Which
processes belong to which attempt, and when they trained, saved and ended, is in the log: all figures are of that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import median

from mecefo_runtime.system.command_records import StateChecksums
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CheckpointWritten,
    ProcessExited,
    ProcessStarted,
    StepCommitted,
)
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected

WITHOUT_SAVES_SECONDS = 5.0
"""Where no interval between saves was seen, an older rank that trains for longer than this is a violation."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What `ranks` of earlier attempts did after the first step of attempt `attempt` began, at `since_seconds`.

    `earlier` is the newest of their attempts. They were alive for `alive_seconds` more and trained for
    `training_seconds`: until the last step that one of them is known to have taken. `steps` is how many steps they
    took meanwhile, `saves` how many checkpoints they saved; `interval_steps` is how many steps lie between two saves of
    the job, None where that was not seen.
    """

    attempt: int
    earlier: int
    ranks: tuple[int, ...]
    since_seconds: float
    alive_seconds: float
    training_seconds: float = 0.0
    steps: int = 0
    saves: int = 0
    interval_steps: int | None = None

    @property
    def is_violation(self) -> bool:
        """Whether an older rank saved, or trained for longer than one interval between two saves.

        The step in flight is not counted: nothing but its end can stop a rank that is in it.
        """
        if self.saves:
            return True
        if self.interval_steps is None:
            return self.steps > 1 and self.training_seconds > WITHOUT_SAVES_SECONDS
        return self.steps > max(1, self.interval_steps)


@dataclass(slots=True)
class _Process:
    """A rank's process in one attempt; a process that replaced itself (`os.execv`) is one in each."""

    pid: int
    rank: int | None
    attempt: int
    since: float
    until: float = inf
    # When each step ended, and its number.
    steps: list[tuple[float, int]] = field(default_factory=list)
    saves: list[CheckpointWritten] = field(default_factory=list)
    first_began: float = inf


def find_overlaps(
    main: Sequence[Record], committed: Iterable[StepCommitted], saves: Iterable[CheckpointWritten], ended_seconds: float
) -> tuple[Overlap, ...]:
    """One for each attempt that replaced processes which were still alive, in the order of the attempts.

    Args:
        main: the records of the job by time, without those of steps and checkpoints.
        committed: its steps, those of all attempts.
        saves: what its ranks saved.
        ended_seconds: the end of the job (CLOCK_MONOTONIC).

    torchft restarts replica groups one by one while the others train: its jobs have none.
    """
    worlds = {one.attempt_number: one.world_size for one in main if isinstance(one, AttemptStarted)}
    if len(worlds) < 2:
        return ()
    steps = sorted(committed, key=lambda one: one.committed_seconds)
    if any(one.replica is not None for one in steps):
        return ()
    processes = _processes(main)
    _add_work(processes, main, steps, saves)
    ordered = sorted((one for some in processes.values() for one in some), key=lambda one: one.attempt)
    attempts = _Attempts.of(ordered, worlds)
    replaced: dict[int, list[_Process]] = {}
    for one in ordered:
        attempt = attempts.replacing(one)
        if attempt is not None and one.until > attempts.began[attempt]:
            replaced.setdefault(attempt, []).append(one)
    interval, ends = _interval_steps(ordered), _first_ends(main)
    found = (
        _overlap(attempt, earlier, attempts.began[attempt], interval, ends, ended_seconds)
        for attempt, earlier in sorted(replaced.items())
    )
    return tuple(one for one in found if one is not None)


def _processes(main: Iterable[Record]) -> Mapping[int, list[_Process]]:
    """By pid, in the order of their beginnings: a pid may be given to another process later."""
    found: dict[int, list[_Process]] = {}
    for record in main:
        match record:
            case ProcessStarted(role="rank", started_pid=int(pid), rank_attempt=int(attempt)):
                own = found.setdefault(pid, [])
                if own:
                    own[-1].until = min(own[-1].until, record.monotonic_seconds)
                own.append(_Process(pid, record.started_rank, attempt, record.monotonic_seconds))
            case ProcessExited(role="rank", exited_pid=int(pid)) if pid in found:
                found[pid][-1].until = min(found[pid][-1].until, record.monotonic_seconds)
            case _:
                pass
    return found


def _add_work(
    processes: Mapping[int, list[_Process]],
    main: Iterable[Record],
    steps: Iterable[StepCommitted],
    saves: Iterable[CheckpointWritten],
) -> None:
    ended: dict[tuple[int, int], float] = {}
    for step in steps:
        if (one := _at(processes, step.pid, step.committed_seconds)) is not None and step.step is not None:
            one.steps.append((step.committed_seconds, step.step))
            ended.setdefault((one.attempt, step.step), step.committed_seconds)
            began = step.committed_seconds if step.began_monotonic is None else step.began_monotonic
            one.first_began = min(one.first_began, max(began, one.since))
    for look in main:
        if isinstance(look, StateChecksums) and look.step is not None:
            # Only rank 0 reports its steps; what the others hold after a step shows that they took it. The last look is
            # that at the end of a process, which may be long after its last step.
            own = _at(processes, look.pid, look.monotonic_seconds)
            if own is not None and own.rank:
                at = ended.get((own.attempt, look.step), look.monotonic_seconds)
                own.steps.append((min(at, look.monotonic_seconds), look.step))
    for save in saves:
        if (one := _at(processes, save.pid, save.monotonic_seconds)) is not None:
            one.saves.append(save)
    for one in (one for some in processes.values() for one in some):
        one.steps.sort()
        one.saves.sort(key=lambda save: save.monotonic_seconds)
        if one.until == inf:
            # Who was not seen to end was there as long as it did anything.
            signs = [*(at for at, _ in one.steps[-1:]), *(save.monotonic_seconds for save in one.saves[-1:])]
            one.until = max([one.since, *signs])


def _at(processes: Mapping[int, list[_Process]], pid: int, seconds: float) -> _Process | None:
    own = processes.get(pid)
    if not own:
        return None
    # A process reports itself before its first step, but the clocks of two sockets may cross.
    return own[max(0, bisect_right(own, seconds, key=lambda one: one.since) - 1)]


def _interval_steps(processes: Iterable[_Process]) -> int | None:
    """The usual number of steps between two saves of a process; of one that saved once, until its save."""
    between: list[int] = []
    until_first: list[int] = []
    for one in processes:
        numbers = list(dict.fromkeys(save.step for save in one.saves if save.step is not None))
        between += [later - earlier for earlier, later in pairwise(numbers) if later > earlier]
        if numbers and one.steps:
            until_first.append(numbers[0] - one.steps[0][1] + 1)
    known = between or [steps for steps in until_first if steps > 0]
    return round(median(known)) if known else None


def _first_ends(main: Iterable[Record]) -> list[float]:
    """When faults were injected and ranks or launchers ended, in order."""
    return [
        record.monotonic_seconds
        for record in main
        if isinstance(record, Injected) or (isinstance(record, ProcessExited) and record.role in ("rank", "launcher"))
    ]


@dataclass(frozen=True, slots=True)
class _Attempts:
    """The attempts that came to a step, by number: when the first step of each began, and which of them had a rank."""

    numbers: Sequence[int]
    began: Mapping[int, float]
    worlds: Mapping[int, int | None]
    of_rank: Mapping[int | None, Sequence[int]]

    @classmethod
    def of(cls, processes: Iterable[_Process], worlds: Mapping[int, int | None]) -> _Attempts:
        """`processes` are in the order of their attempts."""
        began: dict[int, float] = {}
        ranks: dict[int | None, list[int]] = {}
        for one in processes:
            began[one.attempt] = min(began.get(one.attempt, inf), one.first_began)
            ranks.setdefault(one.rank, []).append(one.attempt)
        numbers = sorted(number for number, at in began.items() if at < inf)
        of_rank = {rank: [number for number in own if began[number] < inf] for rank, own in ranks.items()}
        return cls(numbers, began, worlds, of_rank)

    def replacing(self, one: _Process) -> int | None:
        """The first attempt that replaced a process: its rank was started again, or is beyond the new world size.

        A rank that was not started again may be a member of the new attempt.
        """
        own = self.of_rank.get(one.rank, ())
        index, following = bisect_right(own, one.attempt), bisect_right(self.numbers, one.attempt)
        found = [own[index]] if index < len(own) else []
        if following < len(self.numbers):
            number = self.numbers[following]
            world_size = self.worlds.get(number)
            if world_size is not None and (one.rank or 0) >= world_size:
                found.append(number)
        return min(found, default=None)


def _overlap(
    attempt: int,
    earlier: Sequence[_Process],
    began: float,
    interval: int | None,
    ends: Sequence[float],
    ended_seconds: float,
) -> Overlap | None:
    """`earlier` are the processes that the attempt replaced and that were still alive when its first step began."""
    # Two that begin side by side, before anything was lost, are two trainings of one command.
    if bisect_left(ends, min(one.since for one in earlier)) == bisect_left(ends, began):
        return None
    trained = [min(one.steps[-1][0], ended_seconds) - began for one in earlier if one.steps]
    return Overlap(
        attempt=attempt,
        earlier=max(one.attempt for one in earlier),
        ranks=tuple(sorted({one.rank for one in earlier if one.rank is not None})),
        since_seconds=began,
        alive_seconds=max(one.until for one in earlier) - began,
        training_seconds=max([0.0, *trained]),
        steps=_num_steps(earlier, began),
        saves=_num_saved(earlier, began),
        interval_steps=interval,
    )


def _num_steps(processes: Sequence[_Process], since: float) -> int:
    """How many steps the one that took most of them took since then.

    Of a rank that shows only some of its steps the numbers tell: how far its attempt had come by then, any rank shows.
    """
    reached: dict[int, int] = {}
    later: list[tuple[int, list[tuple[float, int]]]] = []
    for one in processes:
        index = bisect_right(one.steps, since, key=lambda step: step[0])
        if index:
            reached[one.attempt] = max(one.steps[index - 1][1], reached.get(one.attempt, 0))
        if index < len(one.steps):
            later.append((one.attempt, one.steps[index:]))
    found = 0
    for attempt, steps in later:
        before = reached.get(attempt, steps[0][1] - 1)
        found = max(found, len(steps), max(number for _, number in steps) - before)
    return found


def _num_saved(processes: Sequence[_Process], since: float) -> int:
    """How many checkpoints they saved after that, each once, whose files may be of several ranks.

    A save is reported when the next step begins, which may be later than its end. So it counts if its step ended since
    then. What another thread still wrote had begun before, and does not count.
    """
    ended: dict[tuple[int, int], float] = {}
    for one in processes:
        for at, step in one.steps:
            ended.setdefault((one.attempt, step), at)
    saved: set[tuple[int, int | None]] = set()
    for one in processes:
        for save in one.saves:
            writing = save.writing_seconds or 0.0
            began = ended.get((one.attempt, save.step or 0), save.monotonic_seconds - save.blocking_seconds - writing)
            if began >= since:
                saved.add((one.attempt, save.step))
    return len(saved)
