"""The figures of a preemption: the reach of the notice, what was saved in the grace, and what was lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from signal import SIGKILL, Signals
from statistics import median
from typing import Any

from harness.analysis.command.attempts import Attempt, attempt_at
from harness.analysis.steps import CommittedStep, Steps
from mecefo_runtime.system.command_records import RankRaised, SignalArrived, SignalsWatched
from mecefo_runtime.system.job_records import CheckpointWritten, CommandRequeued, JobEnded, RankFinished
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected, Verified

DATA_WORKER = "DataLoader worker"
"""What PyTorch's DataLoader calls its processes in its exceptions (torch 2.11-2.13)."""
STILL_SECONDS = 2.0
STILL_STEPS = 10
"""A killed rank stood still if it took no step in these last seconds and in the time of this many usual steps."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception of which a rank ended in the grace."""

    rank: int
    exception: str
    message: str = ""

    @property
    def names_data_worker(self) -> bool:
        """Whether it says that a worker process of the DataLoader is gone."""
        return DATA_WORKER in self.message


@dataclass(frozen=True, slots=True)
class Preemption:
    """The figures of one preemption. Times are seconds after the notice; None: it is not known, or never came.

    Every rank is in one of `ranks_left_in_order` (it ended before SIGKILL, without an exception), `ranks_failed` (with
    an exception, or a signal that is not the notice), `ranks_ended_by_signal` (by the notice itself),
    `ranks_killed` (SIGKILL at the end of the grace), `ranks_killed_by_launcher` (SIGKILL before that, the first after
    `launcher_killed_seconds`) and `ranks_ended_unknown`. Of the killed ones `ranks_stood_still` took no step at the
    end. Every rank is in one of `ranks_reached`, `ranks_not_reached` and `ranks_reach_unknown` by the notice.
    `checkpoint_step` is the step of the first checkpoint saved after the notice, after `notice_to_checkpoint_seconds`,
    `newest_checkpoint_step` that of the newest. With `is_requeued` the command was
    started again, and continued after `resumed_after`; `last_step` is what it had committed before.
    """

    signal: str
    deliver: str
    grace_seconds: float
    grace_used_seconds: float | None = None
    notice_to_checkpoint_seconds: float | None = None
    checkpoint_step: int | None = None
    newest_checkpoint_step: int | None = None
    checkpoints_after_notice: int = 0
    last_step: int | None = None
    is_requeued: bool = False
    resumed_after: int | None = None
    steps_lost: int | None = None
    ranks_left_in_order: tuple[int, ...] = ()
    ranks_failed: tuple[int, ...] = ()
    ranks_ended_by_signal: tuple[int, ...] = ()
    ranks_killed: tuple[int, ...] = ()
    ranks_killed_by_launcher: tuple[int, ...] = ()
    ranks_ended_unknown: tuple[int, ...] = ()
    ranks_stood_still: tuple[int, ...] = ()
    ranks_reached: tuple[int, ...] = ()
    ranks_not_reached: tuple[int, ...] = ()
    ranks_reach_unknown: tuple[int, ...] = ()
    launcher_killed_seconds: float | None = None
    raised: tuple[Raised, ...] = ()
    notices_dropped: int = 0

    @property
    def grace_used_ratio(self) -> float | None:
        """The share of the grace that was used."""
        return None if self.grace_used_seconds is None else self.grace_used_seconds / self.grace_seconds


@dataclass(frozen=True, slots=True)
class _Window:
    """From the notice until the command was started again, or the job was over."""

    since: float
    until: float
    is_requeued: bool

    def holds(self, seconds: float) -> bool:
        return self.since <= seconds < self.until


def read_preemptions(
    main: Sequence[Record], saved: Sequence[CheckpointWritten], steps: Steps, attempts: Sequence[Attempt]
) -> Mapping[int, Preemption]:
    """By incident, those whose effect was verified; `main` holds the records of the job by time."""
    notices = {one.incident: one for one in main if isinstance(one, Injected) and one.requeue is not None}
    seen = {one.incident: one.evidence for one in main if isinstance(one, Verified) and one.incident in notices}
    found = {}
    for incident, evidence in seen.items():
        if isinstance(evidence, Mapping) and (parts := list(_parts(evidence))):
            since = notices[incident].monotonic_seconds
            found[incident] = _read(since, parts, main, saved, steps, attempts)
    return found


def _parts(evidence: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What each host has seen."""
    hosts = evidence.get("hosts")
    for part in hosts.values() if isinstance(hosts, Mapping) else (evidence,):
        if isinstance(part, Mapping) and isinstance(part.get("grace_seconds"), int | float):
            yield part


def _read(
    since: float,
    parts: Sequence[Mapping[str, Any]],
    main: Sequence[Record],
    saved: Sequence[CheckpointWritten],
    steps: Steps,
    attempts: Sequence[Attempt],
) -> Preemption:
    window = _window(since, main)
    first = parts[0]
    grace_seconds = float(first["grace_seconds"])
    used = [min(part["used_seconds"], grace_seconds) for part in parts if part.get("used_seconds") is not None]
    number = _number(str(first.get("signal")))
    ranks = sorted((one for part in parts for one in part.get("ranks", ())), key=lambda one: one["rank"])
    raised = _raised(main, window)
    finished = {one.rank for one in main if isinstance(one, RankFinished) and window.holds(one.monotonic_seconds)}
    ends = {one["rank"]: _end(one, number, raised, finished) for one in ranks}
    unfinished = [one for one in ranks if ends[one["rank"]] == "killed" and one["rank"] not in finished]
    reached = {one["rank"]: _is_reached(one, number, _Signals.of(main, window)) for one in ranks}
    checkpoints = _checkpoints(saved, window)
    last_step = max((one.step for one in steps.every if one.committed_seconds < window.until), default=None)
    resumed_after = _resumed_after(attempts, since) if window.is_requeued else None
    by_launcher = [one["seconds"] for one in ranks if ends[one["rank"]] == "killed_by_launcher"]

    def that(end: str) -> tuple[int, ...]:
        return tuple(rank for rank, one in ends.items() if one == end)

    def that_are(is_reached: bool | None) -> tuple[int, ...]:
        return tuple(rank for rank, one in reached.items() if one is is_reached)

    return Preemption(
        signal=str(first.get("signal")),
        deliver=str(first.get("deliver")),
        grace_seconds=grace_seconds,
        grace_used_seconds=max(used, default=None),
        notice_to_checkpoint_seconds=min((at - since for at in checkpoints.values()), default=None),
        checkpoint_step=min(checkpoints, key=checkpoints.__getitem__, default=None),
        newest_checkpoint_step=max(checkpoints, default=None),
        checkpoints_after_notice=len(checkpoints),
        last_step=last_step,
        is_requeued=window.is_requeued,
        resumed_after=resumed_after,
        steps_lost=None if resumed_after is None or last_step is None else max(0, last_step - resumed_after),
        ranks_left_in_order=that("left_in_order"),
        ranks_failed=that("failed"),
        ranks_ended_by_signal=that("ended_by_signal"),
        ranks_killed=that("killed"),
        ranks_killed_by_launcher=that("killed_by_launcher"),
        ranks_ended_unknown=that("unknown"),
        ranks_stood_still=_stood_still(unfinished, steps, since),
        ranks_reached=that_are(True),
        ranks_not_reached=that_are(False),
        ranks_reach_unknown=that_are(None),
        launcher_killed_seconds=min((one for one in by_launcher if one is not None), default=None),
        raised=tuple(raised.values()),
        notices_dropped=sum(bool(one.get("dropped")) for part in parts for one in part.get("notices", ())),
    )


def _window(since: float, main: Sequence[Record]) -> _Window:
    ends = (one for one in main if isinstance(one, CommandRequeued | JobEnded) and one.monotonic_seconds >= since)
    end = next(ends, None)
    until = inf if end is None else end.monotonic_seconds
    return _Window(since, until, isinstance(end, CommandRequeued))


def _number(name: str) -> int:
    return int(Signals[name]) if name in Signals.__members__ else 0


def _raised(main: Sequence[Record], window: _Window) -> dict[int, Raised]:
    """The exception of each rank in the grace, the first."""
    found: dict[int, Raised] = {}
    for one in main:
        if isinstance(one, RankRaised) and one.rank is not None and window.holds(one.monotonic_seconds):
            found.setdefault(one.rank, Raised(one.rank, one.exception, one.message))
    return found


def _end(rank: Mapping[str, Any], number: int, raised: Mapping[int, Raised], finished: Collection[int | None]) -> str:
    code = rank.get("exit")
    if rank.get("killed"):
        return "killed"
    if rank["rank"] in raised:
        return "failed"
    if code is None:
        return "unknown"
    if code == -SIGKILL:
        return "killed_by_launcher"
    if code < 0:
        # A script that has come to its end no longer has its handler, and Python takes a while to end.
        by_notice = "left_in_order" if rank["rank"] in finished else "ended_by_signal"
        return by_notice if code == -number else "failed"
    # A script may choose its exit code, such as 143, when it has saved.
    return "left_in_order"


@dataclass(frozen=True, slots=True)
class _Signals:
    """Which processes of ranks report the signals that arrive, and which reported which."""

    watched: frozenset[int]
    arrived: frozenset[tuple[int, str]]

    @classmethod
    def of(cls, main: Iterable[Record], window: _Window) -> _Signals:
        watched, arrived = set(), set()
        for one in main:
            if isinstance(one, SignalsWatched):
                watched.add(one.pid)
            elif isinstance(one, SignalArrived) and window.holds(one.monotonic_seconds):
                arrived.add((one.pid, one.signal))
        return cls(frozenset(watched), frozenset(arrived))


def _is_reached(rank: Mapping[str, Any], number: int, signals: _Signals) -> bool | None:
    """Whether the notice came to the process of a rank; None: that cannot be seen."""
    pid, action = rank.get("pid"), rank.get("action")
    name = Signals(number).name if number else ""
    if (pid, name) in signals.arrived or rank.get("exit") == -number:
        return True
    if rank.get("notified"):
        # The kernel has delivered it, unless the process blocks or ignores it.
        return action in ("handler", "default")
    if rank.get("killed") and action == "default":
        # Without a handler it would have died of it.
        return False
    if action == "handler" and pid in signals.watched:
        return False
    return None


def _checkpoints(saved: Sequence[CheckpointWritten], window: _Window) -> dict[int, float]:
    """Step -> when the last rank had saved its part, of those that were saved after the notice."""
    found: dict[int, float] = {}
    for one in saved:
        if one.step is not None and window.holds(one.monotonic_seconds):
            found[one.step] = max(one.monotonic_seconds, found.get(one.step, 0.0))
    return found


def _stood_still(killed: Sequence[Mapping[str, Any]], steps: Steps, since: float) -> tuple[int, ...]:
    usual = [one.committed_seconds - one.began_seconds for one in steps.every if one.committed_seconds < since]
    still_seconds = max(STILL_SECONDS, STILL_STEPS * median(usual)) if usual else STILL_SECONDS
    found = []
    for rank in killed:
        ended = rank.get("seconds")
        if ended is None:
            continue
        last = max((_committed(steps.every, since + ended)), default=since)
        if since + ended - max(last, since) >= still_seconds:
            found.append(rank["rank"])
    return tuple(found)


def _committed(steps: Iterable[CommittedStep], until: float) -> Iterator[float]:
    return (one.committed_seconds for one in steps if one.committed_seconds <= until)


def _resumed_after(attempts: Sequence[Attempt], since: float) -> int | None:
    """The step after which the first attempt that trained after the notice continued; None: not known."""
    number = attempt_at(attempts, since) or 0
    later = next((one for one in attempts if one.number > number and one.first_step is not None), None)
    if later is None or later.ranks_differ or later.lost_count or later.first_step is None:
        return None
    return later.first_step - 1
