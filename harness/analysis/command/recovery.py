"""The phases of a recovery in which the launcher of a command starts its ranks again.

Each phase ends at a moment that was observed on the last rank that came to it, and begins at the moment before. Where
one of the two was not observed, or they came in another order, the phase is left out: its time is `unobserved`. So the
phases add up to the time from the fault to the next committed step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from mecefo_runtime.system.command_records import ProcessGroupFormed, RankRaised, StateLoaded, TrainingEntered
from mecefo_runtime.system.job_records import CulpritNamed, ProcessExited, ProcessStarted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected

LAUNCH_PHASES = (
    "reaction",
    "teardown",
    "failed_attempts",
    "launch",
    "start",
    "imports",
    "process_group",
    "model",
    "load",
    "resumed_step",
)
"""In order: the fault to the first reaction of a survivor or the launcher; to the end of the last old process; attempts
in between that came to no step; to the first new process; to the last one; to the last call of `init_process_group`; to
its last return; to the first read of a saved state (where none is read, to the first pass); to the end of the last
read; to the next committed step."""
UNOBSERVED = "unobserved"


@dataclass(slots=True)
class _Rank:
    """A process of a rank in one attempt; a process that replaced itself (`os.execv`) is one in each."""

    pid: int
    rank: int | None
    attempt: int
    since: float
    until: float = inf


@dataclass(slots=True)
class _Start:
    """What the processes of one attempt did."""

    processes: list[_Rank] = field(default_factory=list)
    groups: list[ProcessGroupFormed] = field(default_factory=list)
    loads: list[StateLoaded] = field(default_factory=list)
    entered: list[TrainingEntered] = field(default_factory=list)


class Recoveries:
    """What the log of a command's job says of how its ranks were started; `main` holds its records by time."""

    def __init__(self, main: Iterable[Record]) -> None:
        self._starts: dict[int, _Start] = {}
        self._reactions: list[tuple[float, int | None, Record]] = []
        newest: dict[int, _Rank] = {}
        for record in main:
            match record:
                case ProcessStarted(role="rank", started_pid=int(pid), rank_attempt=int(attempt)):
                    if pid in newest:
                        newest[pid].until = min(newest[pid].until, record.monotonic_seconds)
                    newest[pid] = _Rank(pid, record.started_rank, attempt, record.monotonic_seconds)
                    self._starts.setdefault(attempt, _Start()).processes.append(newest[pid])
                case ProcessExited(role="rank"):
                    if record.exited_pid in newest:
                        newest[record.exited_pid].until = record.monotonic_seconds
                    self._reactions.append((record.monotonic_seconds, record.exited_rank, record))
                case RankRaised(is_injected=False):
                    self._reactions.append((record.monotonic_seconds, record.rank, record))
                case CulpritNamed():
                    self._reactions.append((record.monotonic_seconds, None, record))
                case ProcessGroupFormed() | StateLoaded() | TrainingEntered() if record.pid in newest:
                    self._add(self._starts[newest[record.pid].attempt], record)

    @staticmethod
    def _add(start: _Start, record: ProcessGroupFormed | StateLoaded | TrainingEntered) -> None:
        match record:
            case TrainingEntered():
                start.entered.append(record)
            case ProcessGroupFormed(error=None, began_monotonic=float(), seconds=float()):
                start.groups.append(record)
            case StateLoaded(error=None, began_monotonic=float(), seconds=float()):
                start.loads.append(record)

    def phases_seconds(
        self, injection: Injected, struck: float, committed: float | None, new_attempt: int | None
    ) -> Mapping[str, float]:
        """How long each phase took, from the fault to the step that `new_attempt` committed then.

        Empty where it was no start of the ranks that led to it.
        """
        attempt = max((n for n, one in self._starts.items() if one.processes[0].since <= struck), default=None)
        start = self._starts.get(-1 if new_attempt is None else new_attempt)
        if start is None or committed is None or attempt is None or new_attempt is None or new_attempt <= attempt:
            return {}
        between = [number for number in self._starts if attempt < number < new_attempt]
        old = self._starts.get(attempt, _Start()).processes
        old_ended = max((one.until for one in old), default=inf)
        failed = [one.until for number in between for one in self._starts[number].processes]
        began = [one.since for one in start.processes]
        moments: dict[str, float | None] = {
            "reaction": self._first_reaction(injection, struck),
            "teardown": old_ended,
            "failed_attempts": max(failed) if failed else None,
            "launch": min(began),
            "start": max(began),
            **_of_new_processes(start, committed),
            "resumed_step": committed,
        }
        wanted = [phase for phase in LAUNCH_PHASES if phase != "failed_attempts" or between]
        return _cut(struck, [(phase, moments.get(phase)) for phase in wanted])

    def _first_reaction(self, injection: Injected, struck: float) -> float | None:
        """When a rank raised or ended, or the launcher named one; not the end of a rank that the fault killed."""
        taken = set(injection.ranks) if injection.is_loss else set()
        for at, rank, record in self._reactions:
            is_taken = isinstance(record, ProcessExited | RankRaised) and (rank is None or rank in taken)
            if at >= struck and not is_taken:
                return at
        return None


def _of_new_processes(start: _Start, committed: float) -> dict[str, float | None]:
    """When the last rank had come to each moment between the start of its process and its first step."""
    first_groups: dict[int, ProcessGroupFormed] = {}
    for group in start.groups:
        first_groups.setdefault(group.pid, group)
    called = [one.began_monotonic or 0.0 for one in first_groups.values()]
    formed = [(one.began_monotonic or 0.0) + (one.seconds or 0.0) for one in first_groups.values()]
    entered = {one.pid: one.monotonic_seconds for one in reversed(start.entered)}
    reads = [
        (began, began + (one.seconds or 0.0))
        for one in start.loads
        if (began := one.began_monotonic or 0.0) >= max(formed, default=0.0)
        and began + (one.seconds or 0.0) <= min(entered.get(one.pid, inf), committed)
    ]
    found: dict[str, float | None] = {
        "imports": max(called, default=None),
        "process_group": max(formed, default=None),
        "model": max(entered.values(), default=None),
    }
    if reads:
        found |= {"model": min(began for began, _ in reads), "load": max(ended for _, ended in reads)}
    return found


def _cut(struck: float, moments: Sequence[tuple[str, float | None]]) -> dict[str, float]:
    """The phases between two moments that are both known, and neither before the other nor after the last one.

    Where no saved state was read, the phase after the load begins at the moment before it.
    """
    names = dict(moments)
    known = [("", struck), *((phase, at) for phase, at in moments if phase != "load" or at is not None)]
    last = names["resumed_step"]
    assert last is not None
    found: dict[str, float] = {}
    reached = struck
    for (_, since), (phase, until) in pairwise(known):
        if until is None or not reached <= until <= last:
            continue
        if since is not None and since == reached:
            found[phase] = until - since
        reached = until
    rest = (last - struck) - sum(found.values())
    if len(found) < len(known) - 1:
        found[UNOBSERVED] = max(0.0, rest)
    return found
