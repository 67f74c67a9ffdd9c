"""Why a command's job failed: what came first in its last attempt that is not a consequence of something else.

In this order, and of several the earliest:
1. an exception that a rank raised by itself, or that chaos raised in it; the end of a rank that a fault of the run
   brought about;
2. the same of a rank without which the others have trained on;
3. an exception in the log of the launcher, where no rank has reported any, or only a consequence (5) and
   another rank ended without a report: one that caught its exception, printed it, and was ended while it cleaned up;
4. a signal that ended a rank, or its exit code;
5. a time-out or a lost peer in a collective: it tells of somebody else's failure. So does SIGABRT, by which NCCL's
   watchdog ends a rank, and what a launcher sends to the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import PurePath
from signal import SIGABRT, SIGHUP, SIGINT, SIGTERM
from typing import ClassVar

from chaos.external.exception_kind import OWN, kind_of
from chaos.external.traceback_text import PrintedException
from harness.analysis.words import exit_text, one_line
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.job_records import AttemptStarted, ProcessExited, ProcessStarted
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Injected, Verified

PIPE = "In a pipe, the shell tells the last program's exit code only, unless `set -o pipefail` is there"
RAISED, ENDED_BY_FAULT, EXITED = "rank_raised", "rank_ended_by_fault", "rank_exited"
_RAISE = "raise"
# What the launcher sends to the ranks that are left.
BY_THE_LAUNCHER = (-SIGTERM, -SIGINT, -SIGHUP)
_MAX_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class FailureCause:
    """`code` says what it is; of an exception `failure` whose failure it tells of (`chaos.external.exception_kind`).

    `step` is the one that was under way. `root_exception` is what led to the exception in the end, `root_link` how:
    `cause`, `remote`, or `context` (it was being handled). `incident` and `fault` are what brought it about.
    """

    LEAVES_OUT_DEFAULTS: ClassVar[bool] = True

    code: str
    rank: int | None = None
    step: int | None = None
    exception: str | None = None
    message: str = ""
    failure: str | None = None
    file: str | None = None
    line: int | None = None
    root_exception: str | None = None
    root_message: str = ""
    root_file: str | None = None
    root_line: int | None = None
    root_link: str | None = None
    exit: int | None = None
    incident: int | None = None
    fault: str | None = None

    @classmethod
    def of(cls, cause: Reason) -> FailureCause:
        """The cause that a field of another reason holds.

        Raises:
            ValueError: it holds something else.
        """
        return from_json(cls, to_json(cause), lenient=True)


def read_cause(records: Iterable[Record], printed: Sequence[PrintedException] = ()) -> FailureCause | None:
    """The cause, by the job's `records` and by what its launcher's log has `printed`; None where nothing tells."""
    told = _Told(sorted(records, key=lambda record: record.monotonic_seconds))
    found = [*told.raised(), *told.raised_by_faults(), *told.ended_by_faults(), *told.exits()]
    if not any(one.code in (RAISED, ENDED_BY_FAULT) for _, _, one in found):
        found += _printed(printed)
    elif all(place >= _CONSEQUENCE for place, _, _ in found) and told.has_silent_end():
        found += _printed([one for one in printed if told.may_be_of_the_last_attempt(one)])
    return min(found, key=lambda one: one[:2])[2] if found else None


_CONSEQUENCE = 5
"""The place of what tells of somebody else's failure."""
_Found = tuple[int, float, FailureCause]
"""Place in the order above, when, and what."""


class _Told:
    """What the records tell of the last attempt."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        starts = [record for record in records if isinstance(record, AttemptStarted)]
        self._since = starts[-1].monotonic_seconds if starts else 0.0
        self._attempt = starts[-1].attempt_number if starts else None
        # By pid: the rank's start, and those that nobody started again.
        self._starts = {
            one.started_pid: one for one in records if isinstance(one, ProcessStarted) and one.role == "rank"
        }
        self._newest = {one.started_rank: pid for pid, one in self._starts.items()}
        # An attempt of which nobody has said more than that.
        unseen = [one for one in records if isinstance(one, RankRaised) and one.pid not in self._starts]
        if self._attempt is not None and (last := max((one.attempt for one in unseen), default=0)) > self._attempt:
            self._attempt = last
            self._since = next(one.monotonic_seconds for one in unseen if one.attempt == last)

    def _is_fatal(self, pid: int | None, at: float) -> bool:
        """Whether a process is of the last attempt, and nobody has started its rank again."""
        start = self._starts.get(pid)
        if start is None:
            # It ended before it had said who it is.
            return at >= self._since
        return start.rank_attempt in (self._attempt, None) and self._newest[start.started_rank] == pid

    def raised(self) -> Iterator[_Found]:
        """The exceptions that ranks told of."""
        for record in self._records:
            is_fatal = isinstance(record, RankRaised) and self._is_fatal(record.pid, record.monotonic_seconds)
            # What chaos raised counts from then on, if the script did not catch it.
            if is_fatal and isinstance(record, RankRaised) and not record.is_injected:
                yield 1 if record.failure == OWN else 5, record.monotonic_seconds, _of_raised(record)

    def raised_by_faults(self) -> Iterator[_Found]:
        """Those that chaos raised, also where the rank was ended before it came to tell of it."""
        handled = {
            (record.incident, rank)
            for record in self._records
            if isinstance(record, Verified) and isinstance(record.evidence, Mapping)
            for rank in record.evidence.get("handled_ranks") or ()
        }
        told = {one.rank: one for one in self._records if isinstance(one, RankRaised) and one.is_injected}
        for record in self._records:
            if not isinstance(record, Injected) or record.fault != _RAISE or record.monotonic_seconds < self._since:
                continue
            for rank in (rank for rank in record.ranks if (record.incident, rank) not in handled):
                said = record.parameters
                name, message = str(said.get("exception", "an exception")), str(said.get("message", ""))
                cause = FailureCause(RAISED, rank, exception=name, message=message, failure=OWN)
                cause = _of_raised(told[rank]) if rank in told else cause
                cause = replace(cause, step=record.step, incident=record.incident, fault=record.fault)
                # When chaos raised it, however long the rank took to end of it.
                yield 1, record.monotonic_seconds, cause

    def ended_by_faults(self) -> Iterator[_Found]:
        """The ranks that a fault took away; those that are left may end of that in whatever way."""
        last = max((one.step or 0 for _, _, one in self.raised() if one.failure == OWN), default=0)
        codes = {one.exited_rank: one.exit for one in self._exits()}
        for record in self._records:
            if not isinstance(record, Injected) or not record.is_loss or record.fault == _RAISE:
                continue
            if record.monotonic_seconds >= self._since:
                for rank in (rank for rank in record.ranks if rank in codes):
                    cause = FailureCause(ENDED_BY_FAULT, rank, record.step, exit=codes[rank])
                    cause = replace(cause, incident=record.incident, fault=record.fault)
                    # What is between two steps belongs to the one before.
                    yield 2 if last > (record.step or last) + 1 else 1, record.monotonic_seconds, cause

    def exits(self) -> Iterator[_Found]:
        """The ranks that ended otherwise than well."""
        for one in self._silent_ends():
            is_sent = one.exit in BY_THE_LAUNCHER
            place = 6 if is_sent else 5 if one.exit == -SIGABRT else 4
            yield place, one.monotonic_seconds, FailureCause(EXITED, one.exited_rank, exit=one.exit)

    def has_silent_end(self) -> bool:
        """Whether a rank of the last attempt ended that has reported no exception."""
        return any(True for _ in self._silent_ends())

    def _silent_ends(self) -> Iterator[ProcessExited]:
        """The ranks of the last attempt that ended otherwise than well, and reported no exception."""
        raised = {one.pid for one in self._records if isinstance(one, RankRaised)}
        return (one for one in self._exits() if one.exit and one.exited_pid not in raised)

    def may_be_of_the_last_attempt(self, printed: PrintedException) -> bool:
        """Whether no rank of an earlier attempt has reported this exception."""
        name = printed.exception.rpartition(".")[2]
        return not any(
            one.exception.rpartition(".")[2] == name
            and one.message.partition("\n")[0] == printed.message.partition("\n")[0]
            for one in self._records
            if isinstance(one, RankRaised) and not self._is_fatal(one.pid, one.monotonic_seconds)
        )

    def _exits(self) -> Iterator[ProcessExited]:
        for one in self._records:
            is_rank = isinstance(one, ProcessExited) and one.role == "rank"
            if isinstance(one, ProcessExited) and is_rank and self._is_fatal(one.exited_pid, one.monotonic_seconds):
                yield one


def _of_raised(record: RankRaised) -> FailureCause:
    cause = FailureCause(
        RAISED,
        record.rank,
        record.step,
        exception=record.exception,
        message=record.message,
        failure=record.failure,
        file=record.file,
        line=record.line,
    )
    # A rank may be of another version.
    with suppress(ValueError):
        root = {f"root_{key}": value for key, value in (record.causes[-1] if record.causes else {}).items()}
        return from_json(FailureCause, {**root, **to_json(cause)}, lenient=True)
    return cause


def _printed(printed: Sequence[PrintedException]) -> Iterator[_Found]:
    """The last one that is no consequence, else the last: what older attempts have printed stands before it."""
    kinds = [kind_of(one.exception, one.message) for one in printed]
    numbers = [number for number, kind in enumerate(kinds) if kind == OWN] or [*range(len(kinds))]
    for number in numbers[-1:]:
        one, failure = printed[number], kinds[number]
        cause = FailureCause(RAISED, one.rank, exception=one.exception, message=one.message, failure=failure)
        cause = replace(cause, file=one.file, line=one.line)
        if one.causes:
            root = one.causes[-1]
            cause = replace(cause, root_exception=root.exception, root_message=root.message, root_file=root.file)
            cause = replace(cause, root_line=root.line, root_link=root.link)
        # When is not known: after what is.
        yield 3 if failure == OWN else 5, inf, cause


def cause_words(cause: FailureCause) -> str:
    """`rank 1 raised RuntimeError: injected (train.py:35) at step 35`, in one line; without the rank as it is printed.

    The exception that led to it comes after that.
    """
    when = "" if cause.step is None else f" at step {cause.step}"
    if cause.code == RAISED:
        who = "" if cause.rank is None else f"rank {cause.rank} raised "
        what = _exception(cause.exception, cause.message, cause.file, cause.line)
        return one_line(f"{who}{what}{when}{_root(cause)}")
    how = "ended" if cause.exit is None else f"ended with {exit_text(cause.exit)}"
    how = f"was {exit_text(cause.exit)}" if (cause.exit or 0) < 0 else how
    by = "" if cause.incident is None else f" (incident {cause.incident}, {cause.fault})"
    return one_line(f"rank {cause.rank} {how}{when}{by}")


def _root(cause: FailureCause) -> str:
    if cause.root_exception is None:
        return ""
    link = "while it handled" if cause.root_link == "context" else "caused by"
    return f", {link} {_exception(cause.root_exception, cause.root_message, cause.root_file, cause.root_line)}"


def _exception(name: str | None, message: str, file: str | None, line: int | None) -> str:
    lines = [text for text in map(str.strip, message.splitlines()) if text]
    # What another process printed follows as the cause.
    said = lines[0].rstrip(".") if lines else ""
    said = said if len(said) <= _MAX_MESSAGE else f"{said[: _MAX_MESSAGE - 3]}..."
    # A SyntaxError names its place itself.
    place = "" if file is None or f"line {line})" in said else f" ({PurePath(file).name}:{line})"
    return f"{name}{f': {said}' if said else ''}{place}"
