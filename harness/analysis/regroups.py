"""When training was stopped, the source of the state with which it continued, and the times without a coordinator."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis.contained import charge
from harness.analysis.steps import CommittedStep, committed_seconds, num_committed
from mecefo_runtime.job.config import JOB_FAILED
from mecefo_runtime.system.job_records import (
    CheckpointRestored,
    CoordinatorRestarted,
    Detected,
    LayoutTold,
    ProcessExited,
    Regrouped,
    Restarting,
    SnapshotRestored,
)
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected

_FIRST_LAYOUT = "start"
_LOSS = "loss"
# From where state can come, the best first; `start`: from nowhere, all begin with the first step again.
RUNGS = ("peer", "snapshot", "parity", "checkpoint", "start")


@dataclass(frozen=True, slots=True)
class StateRestore:
    """Where the state came from with which training continued after a loss.

    `rung` is the lowest of `RUNGS` that was needed; by rung `sources` has the `pieces` and `num_bytes` that all ranks
    got and the `seconds` of the slowest one (of logs that do not tell it nothing), and `passed_over` why it could not
    serve. It is the state after `step`; of committed steps `steps_lost` are done again. `seconds` is how long the
    slowest rank waited for all that it got.
    """

    at_seconds: float
    rung: str
    step: int
    steps_lost: int
    seconds: float
    sources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stall:
    """From the first sign of a change of membership (a detection, or the layout of a rejoin) to the end of its regroup.

    One stall holds several epochs when a second loss comes before the first regroup is done. `regrouped_seconds` is
    None when the stall ended otherwise: training continued without a regroup, or the job ended. `is_loss` tells a loss
    from a mere rejoin; `is_restart` one after which all ranks were started again. `restore` says where the state came
    from with which training continued after a loss, as far as the log tells.
    """

    began_seconds: float
    ended_seconds: float
    regrouped_seconds: float | None
    transfer_seconds: float
    is_loss: bool
    is_restart: bool = False
    restore: StateRestore | None = None


def read_stalls(
    main: Iterable[Record], steps: Sequence[CommittedStep], ended_seconds: float, newest_seconds: float | None = None
) -> tuple[Stall, ...]:
    """The stalls of a job in the order of time; `main` holds its records by time, `steps` its steps by commit.

    `newest_seconds` is when the last thing was told, of whatever kind; without it when the job ended.
    """
    stalls: list[Stall] = []
    since: float | None = None
    is_loss = is_restart = False
    stored: CheckpointRestored | SnapshotRestored | None = None
    for record in main:
        at = record.monotonic_seconds
        if isinstance(record, CheckpointRestored | SnapshotRestored):
            stored = record
        if not isinstance(record, Detected | LayoutTold | Restarting | Regrouped):
            continue
        if since is not None and (began := _began_between(steps, since, at)) is not None:
            stalls.append(Stall(since, began, None, 0.0, is_loss, is_restart))
            since, is_loss, is_restart = None, False, False
        match record:
            case Detected():
                since, is_loss = at if since is None else since, True
            case Restarting():
                since, is_restart = at if since is None else since, True
            case LayoutTold() if record.reason != _FIRST_LAYOUT:
                since, is_loss = at if since is None else since, is_loss or record.reason == _LOSS
            case Regrouped() if record.reason != _FIRST_LAYOUT:
                began = at - record.group_seconds - record.transfer_seconds if since is None else since
                transfer = min(record.transfer_seconds, at - began)
                is_loss = is_loss or record.reason == _LOSS
                restore = _restore(record, stored, steps) if is_loss or record.rung != "peer" else None
                stalls.append(Stall(began, at, at, transfer, is_loss, is_restart, restore))
                since, is_loss, is_restart, stored = None, False, False, None
            case Regrouped():
                # Of a job that began with what was saved before.
                stored = None
    if since is not None:
        began = _began_between(steps, since, ended_seconds if newest_seconds is None else newest_seconds)
        stalls.append(
            Stall(since, max(since, ended_seconds) if began is None else began, None, 0.0, is_loss, is_restart)
        )
    return tuple(stalls)


def _restore(
    record: Regrouped, told: CheckpointRestored | SnapshotRestored | None, steps: Sequence[CommittedStep]
) -> StateRestore | None:
    """What a regroup says of it; `told` is what was said of stored state before. None: it says nothing."""
    rung = record.rung or _rung_of(told)
    if rung is None:
        return None
    num = num_committed(steps, record.monotonic_seconds)
    newest = steps[num - 1].step if num else 0
    of_stored = None if told is None else told.step
    step = newest if rung == "peer" else record.step or of_stored or 0
    return StateRestore(
        at_seconds=record.monotonic_seconds,
        rung=rung,
        step=step,
        steps_lost=max(0, newest - step),
        seconds=record.transfer_seconds,
        sources=dict(record.sources),
        passed_over=dict(record.passed_over),
    )


def _rung_of(told: CheckpointRestored | SnapshotRestored | None) -> str | None:
    """Of a log whose regroups do not name it."""
    if told is None:
        return None
    if isinstance(told, CheckpointRestored):
        return "checkpoint"
    return "parity" if told.rebuilt_nodes else "snapshot"


class OwnStalls:
    """The stalls that may be of one incident: not those that others brought about, over before it was detected.

    A rank that is slow, or whose numbers are wrong, is lost to nobody; what is affected with it may be. A link that
    comes and goes may be noticed long after a rank that died at the same moment. `causes` are the times at which
    anything was detected, by time; `stalls` are those of the job in their order.
    """

    def __init__(self, detected: float | None, causes: Sequence[float], stalls: Sequence[Stall]) -> None:
        self._detected = detected
        self._causes = causes
        self._stalls = stalls

    def between(self, since: float, until: float) -> Iterator[Stall]:
        """Those that ended in that time."""
        first = bisect_left(self._stalls, since, key=_ended)
        last = bisect_right(self._stalls, until, key=_ended)
        charge(last - first)
        return (self._stalls[index] for index in range(first, last) if self._may_own(self._stalls[index]))

    def _may_own(self, stall: Stall) -> bool:
        if self._detected is not None and self._detected <= stall.ended_seconds:
            return True
        return bisect_left(self._causes, stall.began_seconds) == bisect_right(self._causes, stall.ended_seconds)


def _ended(stall: Stall) -> float:
    return stall.ended_seconds


def coordinator_downs(main: Iterable[Record], ended_seconds: float) -> tuple[tuple[float, float], ...]:
    """The times (from, to) in which the job had no coordinator."""
    downs: list[tuple[float, float]] = []
    since: float | None = None
    for record in main:
        if isinstance(record, CoordinatorRestarted) and since is not None:
            downs.append((since, record.monotonic_seconds))
            since = None
        elif since is None and takes_coordinator(record):
            since = record.monotonic_seconds
    return (*downs, (since, max(since, ended_seconds))) if since is not None else tuple(downs)


def takes_coordinator(record: Record) -> bool:
    """Whether the job has no coordinator from then on: it was affected, or ended otherwise than with the job."""
    if isinstance(record, Injected):
        return "role=coordinator" in str(record.target)
    return isinstance(record, ProcessExited) and record.role == "coordinator" and record.exit not in (0, JOB_FAILED)


def overlaps(
    some: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]
) -> Iterable[tuple[float, float]]:
    """The times (from, to) that are in one of `some` and in one of `others`, in order."""
    left, right = joined_times(some), joined_times(others)
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            yield start, end
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1


def joined_times(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, in order, what overlaps or touches joined, and without those in which no time passes."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted((start, end) for start, end in times if start < end):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _began_between(steps: Sequence[CommittedStep], since: float, until: float) -> float | None:
    """When the first step began that both began and committed in that time: training was not standing still."""
    for index in range(bisect_right(steps, since, key=committed_seconds), len(steps)):
        if steps[index].committed_seconds >= until:
            return None
        if steps[index].began_seconds > since:
            return steps[index].began_seconds
    return None
