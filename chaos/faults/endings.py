"""What ended ranks while a fault was active: of what it names the fault itself can tell whether that was its effect.

A fault that takes a while to be verified may end the job first. That is a stronger effect than the one that was waited
for, if what ended the job names the fault; and none of it, if it names something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.job_records import CheckpointFailed, ProcessExited
from mecefo_runtime.system.record import Record

# As `RankRaised.failure` says it.
TIMEOUT = "collective_timeout"


@dataclass(frozen=True, slots=True)
class Recognised:
    """`evidence` that a fault ended ranks, and when its effect came (CLOCK_MONOTONIC, seconds)."""

    evidence: dict[str, Any]
    at_seconds: float


@dataclass(frozen=True, slots=True)
class Endings:
    """What ranks of an external job told of their ends, by time: only what came after the fault was applied."""

    raised: tuple[RankRaised, ...] = ()
    exits: tuple[ProcessExited, ...] = ()
    unsaved: tuple[CheckpointFailed, ...] = ()

    @classmethod
    def since(cls, seconds: float, records: Iterable[Record]) -> Endings:
        """Of `records`, those that came after `seconds` (CLOCK_MONOTONIC)."""
        own = sorted((one for one in records if one.monotonic_seconds >= seconds), key=_when)
        return cls(
            tuple(one for one in own if isinstance(one, RankRaised)),
            tuple(one for one in own if isinstance(one, ProcessExited)),
            tuple(one for one in own if isinstance(one, CheckpointFailed)),
        )

    def end_of(self, rank: int) -> ProcessExited | None:
        """How the process of `rank` ended first, None while it runs."""
        return next((one for one in self.exits if one.exited_rank == rank), None)

    def waiters(self, ranks: Iterable[int], since: float, until: float) -> Iterator[RankRaised]:
        """The other ranks that timed out in a collective between these times: they waited for `ranks`."""
        waited_for = set(ranks)
        for one in self.raised:
            is_other = one.rank is not None and one.rank not in waited_for
            if is_other and one.failure == TIMEOUT and since <= one.monotonic_seconds <= until:
                yield one


def messages_of(raised: RankRaised) -> Iterator[tuple[str, str]]:
    """(class, message) of an exception and of all that led to it."""
    yield raised.exception, raised.message
    for cause in raised.causes:
        if isinstance(cause, Mapping):
            yield str(cause.get("exception", "")), str(cause.get("message", ""))


def raised_to_dict(raised: RankRaised) -> dict[str, Any]:
    """An exception as evidence, in plain JSON values."""
    known = {"rank": raised.rank, "step": raised.step, "exception": raised.exception, "message": raised.message}
    return {**known, "failure": raised.failure}


def _when(record: Record) -> float:
    return record.monotonic_seconds
