"""Incidents of which a run cannot tell whether the job recovers: it left in order, or nothing read what was damaged.

Such a run proves nothing for the job and nothing against it, whatever steps it committed after the fault.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from chaos.faults import registry
from harness.analysis.incident import MeasuredIncident
from harness.analysis.steps import Steps, committed_seconds, showing_recovery
from harness.analysis.undecided import LEFT_IN_ORDER
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CheckpointRestored,
    CheckpointWritten,
    JobEnded,
    JobFailed,
    ProcessExited,
    ProcessStarted,
    RankFinished,
    Regrouped,
    SnapshotRestored,
)
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record

_PEER = "peer"
_STORED = frozenset({"snapshot", "parity", "checkpoint", "start"})

# Of incidents that were injected shortly before a restart so many are looked at.
_MOST_AT_ONCE = 16


def settle(
    incidents: Sequence[MeasuredIncident],
    main: Sequence[Record],
    steps: Steps,
    saved: Sequence[CheckpointWritten],
    *,
    restarts_by_launcher: bool,
    is_whole: Callable[[], bool],
) -> tuple[MeasuredIncident, ...]:
    """`incidents` with what is undecided of them; `main` holds the records by time, `saved` what was saved.

    `is_whole` says whether the job came as far as it should, so that it did not leave before its end.
    """
    facts = _Facts(incidents, main, steps, saved, restarts_by_launcher=restarts_by_launcher)
    found = []
    for incident in incidents:
        if incident.injected is None:
            found.append(incident)
        elif incident.is_latent:
            found.append(_of_latent(incident, facts))
        elif (
            incident.asks_to_leave and restarts_by_launcher and (left := facts.departure(incident.injected)) is not None
        ):
            found.append(incident if is_whole() else _left_open(incident, left))
        elif incident.took_effect is not None:
            found.append(_taking_effect(incident, incident.took_effect, facts))
        else:
            found.append(incident)
    return tuple(found)


def _left_open(incident: MeasuredIncident, why: Reason) -> MeasuredIncident:
    """Steps that come after it are not those of a job that has recovered."""
    return replace(
        incident,
        undecided=why,
        committed=None,
        committed_step=None,
        committed_epoch=None,
        progressed=None,
        restored=None,
    )


@dataclass(frozen=True, slots=True)
class _Restart:
    """Ranks began again at `at_seconds`; `step` is that of what they read, and `rungs` what they could not do without.

    Of a command nothing is known of that: `rungs` is empty.
    """

    at_seconds: float
    step: int | None = None
    rungs: frozenset[str] = frozenset()


class _Facts:
    """What happened, read once for all incidents."""

    def __init__(
        self,
        incidents: Sequence[MeasuredIncident],
        main: Sequence[Record],
        steps: Steps,
        saved: Sequence[CheckpointWritten],
        *,
        restarts_by_launcher: bool,
    ) -> None:
        self._incidents = incidents
        self._main = main
        self.steps = steps
        self.restarts_by_launcher = restarts_by_launcher
        self._saved = saved

    @cached_property
    def _ranks(self) -> _Ranks:
        return _Ranks(self._main)

    @cached_property
    def _saves(self) -> tuple[list[float], list[int]]:
        """When something was saved, ascending, and the highest step of all that had been by then."""
        told = sorted((one.monotonic_seconds, one.step or 0) for one in self._saved)
        return [at for at, _ in told], list(accumulate((step for _, step in told), max))

    @cached_property
    def _restarts(self) -> list[_Restart]:
        return list(_attempts(self._main) if self.restarts_by_launcher else _restores(self._main))

    @cached_property
    def _causes(self) -> tuple[list[float], list[MeasuredIncident]]:
        """The incidents that may have made ranks begin again, by injection."""
        causes = [one for one in self._incidents if not one.is_latent and not one.is_unverified]
        found = sorted((one.injected, one.incident, one) for one in causes if one.injected is not None)
        return [at for at, _, _ in found], [one for _, _, one in found]

    def departure(self, since: float) -> Reason | None:
        """How the job left after it was asked to at `since`; None where it did not, or not in order."""
        if not self._ranks.have_left(since):
            return None
        newest = max((*self.steps.first[-1:], *self.steps.redone[-1:]), key=committed_seconds, default=None)
        times, highest = self._saves
        is_kept = bool(times) and times[-1] >= since
        return (
            Reason(LEFT_IN_ORDER, step=None if newest is None else newest.step, saved_step=highest[-1])
            if is_kept
            else None
        )

    def restart(self, since: float, rungs: frozenset[str]) -> _Restart | None:
        """The first one after `since` that had to do with one of `rungs`."""
        for index in range(bisect_right(self._restarts, since, key=_at), len(self._restarts)):
            restart = self._restarts[index]
            if self.restarts_by_launcher or restart.rungs & rungs:
                return restart
        return None

    def newer_saved(self, since: float, until: float) -> int | None:
        """The step of what was saved in between, if that is newer than all that had been saved before."""
        times, highest = self._saves
        before, by_then = bisect_right(times, since), bisect_left(times, until)
        newest, newest_before = (highest[number - 1] if number else 0 for number in (by_then, before))
        return newest if newest > newest_before else None

    def cause(self, until: float) -> MeasuredIncident | None:
        """The incident for which ranks began again at `until`: the last one that the job was not past by then."""
        times, causes = self._causes
        index = bisect_right(times, until)
        for one in reversed(causes[max(0, index - _MOST_AT_ONCE) : index]):
            if one.committed is None or one.committed > until:
                return one
        return None


def _at(restart: _Restart) -> float:
    return restart.at_seconds


def _attempts(main: Iterable[Record]) -> Iterator[_Restart]:
    return (_Restart(one.monotonic_seconds) for one in main if isinstance(one, AttemptStarted))


def _restores(main: Iterable[Record]) -> Iterator[_Restart]:
    for record in main:
        at = record.monotonic_seconds
        match record:
            case CheckpointRestored():
                yield _Restart(at, record.step, frozenset({"checkpoint"}))
            case SnapshotRestored():
                yield _Restart(at, record.step, frozenset({"snapshot", "parity"}))
            case Regrouped():
                yield _Restart(at, None, frozenset({record.rung or _PEER, *record.passed_over}))
            case JobFailed():
                # It may have died of what it tried to read.
                yield _Restart(at, None, _STORED)


class _Ranks:
    """The processes of a command's ranks in its newest attempt, and how they ended."""

    def __init__(self, main: Iterable[Record]) -> None:
        self._began_seconds, self._world_size = 0.0, 0
        self._has_ended = False
        self._pids: dict[int | None, int | None] = {}
        self._exits: dict[int | None, ProcessExited] = {}
        self._finished: set[int | None] = set()
        for record in main:
            match record:
                case AttemptStarted():
                    self._began_seconds, self._world_size = record.monotonic_seconds, record.world_size or 1
                case ProcessStarted(role="rank"):
                    self._pids[record.started_rank] = record.started_pid
                case ProcessExited(role="rank"):
                    self._exits[record.exited_pid] = record
                case RankFinished():
                    self._finished.add(record.pid)
                case JobEnded():
                    self._has_ended = True

    def have_left(self, since: float) -> bool:
        """Whether all of them ended well after `since`, and none was started again."""
        pids = [self._pids.get(rank) for rank in range(self._world_size)]
        is_last = self._has_ended and self._began_seconds <= since and bool(pids)
        return is_last and all(pid is not None and self._has_left(pid, since) for pid in pids)

    def _has_left(self, pid: int, since: float) -> bool:
        ended = self._exits.get(pid)
        if ended is None or ended.monotonic_seconds < since:
            return False
        # Where nobody tells the code, it is the rank that says how it ended.
        return ended.exit == 0 or (ended.exit is None and pid in self._finished)


def _of_latent(incident: MeasuredIncident, facts: _Facts) -> MeasuredIncident:
    """What was damaged shows when it is read: with the incident for which it was, and not in the next step."""
    assert incident.injected is not None
    restart = facts.restart(incident.injected, _read_by(incident.fault))
    if restart is None:
        return _left_open(incident, Reason("never_read"))
    if incident.undone is not None and restart.at_seconds >= incident.undone:
        return _left_open(incident, Reason("put_back"))
    if facts.restarts_by_launcher:
        newer = facts.newer_saved(incident.injected, restart.at_seconds)
    else:
        damaged = incident.evidence.get("step") if isinstance(incident.evidence, Mapping) else None
        is_newer = restart.step is not None and isinstance(damaged, int) and restart.step > damaged
        newer = restart.step if is_newer else None
    if newer is not None:
        return _left_open(incident, Reason("newer_saved", saved_step=newer))
    cause = facts.cause(restart.at_seconds)
    if cause is not None:
        return replace(
            incident,
            took_effect=cause.injected,
            read_by=cause.incident,
            committed=cause.committed,
            committed_step=cause.committed_step,
            committed_epoch=cause.committed_epoch,
            progressed=cause.progressed,
            restored=cause.restored,
        )
    return _taking_effect(incident, restart.at_seconds, facts)


def _taking_effect(incident: MeasuredIncident, since: float, facts: _Facts) -> MeasuredIncident:
    """The same, but that what follows is told from `since` on: steps before that show no recovery."""
    following, progress = (next(showing_recovery(some, since), None) for some in (facts.steps.every, facts.steps.first))
    return replace(
        incident,
        took_effect=since,
        committed=None if following is None else following.committed_seconds,
        committed_step=None if following is None else following.step,
        committed_epoch=None if following is None else following.epoch,
        progressed=None if progress is None else progress.committed_seconds,
        restored=None,
    )


def _read_by(fault: str) -> frozenset[str]:
    """For which sources of state what the fault damaged has to be read; a lower one is for want of it."""
    kind = registry().get(fault)
    return _STORED if kind is not None and kind.scope == "node" else frozenset({"checkpoint", "start"})
