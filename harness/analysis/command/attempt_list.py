"""The attempts of a command's job one by one: what each loaded, did and came to, and which of them were fruitless."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import PurePath

from harness.analysis.command.attempts import Attempt, AttemptsOfProcesses
from harness.analysis.command.failure_cause import BY_THE_LAUNCHER, ENDED_BY_FAULT, FailureCause, read_cause
from harness.analysis.incident import MeasuredIncident
from harness.analysis.steps import Steps
from mecefo_runtime.system.command_records import RankRaised, StateLoaded
from mecefo_runtime.system.job_records import AttemptStarted, ProcessExited, ProcessStarted, RankFinished
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Reason, Table
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected, Verified

_OF_ENDS = (AttemptStarted, ProcessStarted, ProcessExited, RankRaised, RankFinished, Injected, Verified)

ENDS = Table(
    {
        "completed": "completed",
        "by_fault": "ended by incident {incident} ({fault})",
        "under_fault": "ended under incident {incident} ({fault})",
        "failed": "failed by itself",
        "by_launcher": "ended by its launcher, which started the ranks again",
        "stopped": "stopped by chaos",
        "running": "still runs",
        "unknown": "how it ended was not observed",
    }
)
"""How an attempt ended, in `attempt_list`; where a rank failed first, `cause` says which and how."""


@dataclass(frozen=True, slots=True)
class ListedAttempt:
    """One attempt of a command's job, with `number` from 1.

    `world_size` is its number of ranks. It began `started_seconds` after the job, and lasted for `seconds`: from the
    greeting of its first rank until the first of them ended. `first_step` and `last_step` are the ones that it
    committed, of which `new_steps` had not been committed before. It resumed after `resumed_after`, from `loaded`, the
    file or folder that was read last before its first step. `global_batch_samples` are the samples of a step of all
    ranks. `end` is how it ended, a code of `ENDS`, for which it may be `is_fruitless`.
    """

    number: int
    world_size: int | None
    started_seconds: float
    seconds: float
    first_step: int | None
    last_step: int | None
    new_steps: int
    resumed_after: int | None
    loaded: str | None
    global_batch_samples: int | None
    end: Reason
    is_fruitless: bool = False


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job as a whole. With `is_through` it completed, and its last step was saved."""

    began_seconds: float
    ended_seconds: float
    outcome: str | None
    is_running: bool
    is_through: bool


def list_attempts(
    main: Sequence[Record],
    attempts: Sequence[Attempt],
    steps: Steps,
    incidents: Sequence[MeasuredIncident],
    batches: Mapping[int, int],
    job: JobFacts,
) -> tuple[ListedAttempt, ...]:
    """The attempts in order; `main` holds the job's records by time."""
    belongs = AttemptsOfProcesses(main)
    records, loaded = _records_by_attempt(main, belongs), _loads_by_attempt(main, belongs)
    new: dict[int, int] = {}
    for step in steps.first:
        new[step.epoch] = new.get(step.epoch, 0) + 1
    found: list[ListedAttempt] = []
    faults = _Faults(incidents)
    for index, attempt in enumerate(attempts):
        is_last = index + 1 == len(attempts)
        ended = attempt.ended_seconds
        if ended is None:
            ended = job.ended_seconds if is_last else attempts[index + 1].started_seconds
        end = _end(attempt, records.get(attempt.number, ()), faults, ended, job, is_last=is_last)
        has_nothing_to_do = is_last and job.is_through and attempt.last_step is None
        found.append(
            ListedAttempt(
                number=attempt.number,
                world_size=attempt.world_size,
                started_seconds=attempt.started_seconds - job.began_seconds,
                seconds=max(0.0, ended - attempt.started_seconds),
                first_step=attempt.first_step,
                last_step=attempt.last_step,
                new_steps=new.get(attempt.number, 0),
                resumed_after=min(attempt.resumed_after.values(), default=None) if not attempt.ranks_differ else None,
                loaded=_loaded(loaded.get(attempt.number, ()), attempt),
                global_batch_samples=batches.get(attempt.number),
                end=end,
                is_fruitless=not attempt.has_new_step and end.code in _OWN_ENDS and not has_nothing_to_do,
            )
        )
    return tuple(found)


_OWN_ENDS = ("completed", "failed", "by_launcher", "unknown")
"""Of no fault, and not of the tool: whether it was fruitless is the attempt's own doing."""


def _records_by_attempt(main: Iterable[Record], belongs: AttemptsOfProcesses) -> Mapping[int, Sequence[Record]]:
    found: dict[int, list[Record]] = {}
    for record in main:
        if not isinstance(record, _OF_ENDS):
            continue
        match record:
            case AttemptStarted(attempt_number=number):
                pass
            case ProcessStarted(role="rank", rank_attempt=number) | ProcessExited(role="rank", rank_attempt=number):
                pass
            case RankRaised() | RankFinished():
                number = belongs.of(record.pid, record.monotonic_seconds)
            case _:
                number = belongs.at(record.monotonic_seconds)
        if number is not None:
            found.setdefault(number, []).append(record)
    return found


def _loads_by_attempt(main: Iterable[Record], belongs: AttemptsOfProcesses) -> Mapping[int, Sequence[StateLoaded]]:
    found: dict[int, list[StateLoaded]] = {}
    for record in main:
        if isinstance(record, StateLoaded) and record.path is not None and record.error is None:
            number = belongs.of(record.pid, record.monotonic_seconds)
            if number is not None:
                found.setdefault(number, []).append(record)
    return found


def _loaded(loads: Sequence[StateLoaded], attempt: Attempt) -> str | None:
    """What its first rank that read anything read last before the first step: a file, or the folder of several."""
    until = inf if attempt.first_began_seconds is None else attempt.first_began_seconds
    before = [one for one in loads if one.monotonic_seconds <= until]
    if not before:
        return None
    first = min(one.rank or 0 for one in before)
    paths = [PurePath(str(one.path)) for one in before if (one.rank or 0) == first]
    of_one = dict.fromkeys(path for path in paths if path.parent == paths[-1].parent)
    return str(paths[-1] if len(of_one) == 1 else paths[-1].parent)


class _Faults:
    """The incidents that took effect, by when they were injected."""

    def __init__(self, incidents: Iterable[MeasuredIncident]) -> None:
        known = [one for one in incidents if one.injected is not None and not one.is_unverified]
        self._incidents = sorted(known, key=_injected)
        # Those that last, which may be older than an attempt that they end.
        self._lasting = [one for one in self._incidents if one.goes_on]

    def at_end(self, began: float, ended: float) -> MeasuredIncident | None:
        """The one, injected last, that was active at the end of an attempt, or after which it had not trained on."""
        until = bisect_right(self._incidents, ended, key=_injected)
        since = bisect_left(self._incidents, began, key=_injected)
        for one in reversed(self._incidents[since:until]):
            # Ranks without their launcher may train for any time.
            if one.is_of_launcher or one.committed is None or one.committed > ended or _is_active(one, ended):
                return one
        older = bisect_right(self._lasting, ended, key=_injected)
        return next((one for one in reversed(self._lasting[:older]) if _is_active(one, ended)), None)


def _injected(incident: MeasuredIncident) -> float:
    return incident.injected or 0.0


def _is_active(incident: MeasuredIncident, at: float) -> bool:
    return incident.goes_on and (incident.undone is None or incident.undone >= at)


def _end(
    attempt: Attempt, records: Sequence[Record], faults: _Faults, ended: float, job: JobFacts, *, is_last: bool
) -> Reason:
    if is_last and attempt.ended_seconds is None and job.is_running:
        return Reason("running")
    codes = _exit_codes(records)
    all_well = bool(codes) and all(code == 0 for code in codes.values())
    if (is_last and job.outcome == "completed") or (all_well and len(codes) == (attempt.world_size or len(codes))):
        return Reason("completed")
    cause = read_cause(records)
    said = None if cause is None else to_json(cause)
    if cause is not None and (cause.code == ENDED_BY_FAULT or cause.incident is not None):
        return Reason("by_fault", incident=cause.incident, fault=cause.fault, cause=said)
    fault = faults.at_end(attempt.started_seconds, ended)
    if fault is not None:
        if cause is None and fault.is_loss and fault.ranks and attempt.started_seconds <= _injected(fault):
            return Reason("by_fault", incident=fault.incident, fault=fault.fault)
        return Reason("under_fault", incident=fault.incident, fault=fault.fault, cause=said)
    if is_last and job.outcome == "stopped":
        return Reason("stopped")
    if cause is None:
        return Reason("unknown")
    if not is_last and cause.exit in BY_THE_LAUNCHER:
        return Reason("by_launcher")
    return Reason("failed", cause=said)


def _exit_codes(records: Iterable[Record]) -> Mapping[int | None, int | None]:
    """By rank the exit code of its newest process in the attempt; 0 if none was seen and the rank has finished."""
    finished = {record.pid for record in records if isinstance(record, RankFinished)}
    found: dict[int | None, int | None] = {}
    for record in records:
        if isinstance(record, ProcessExited):
            is_well = record.exit is None and record.exited_pid in finished
            found[record.exited_rank] = 0 if is_well else record.exit
    return found


def cause_of(attempt: ListedAttempt) -> FailureCause | None:
    """The first failure in it."""
    cause = attempt.end.get("cause")
    try:
        return FailureCause.of(cause) if isinstance(cause, Reason) else None
    except ValueError:
        # Of another version.
        return None
