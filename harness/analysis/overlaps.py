"""Other runs of chaos that shared the machine with a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mecefo_runtime.system.run_records import RunOverlapped


@dataclass(frozen=True, slots=True)
class OverlappingRun:
    """Another run, from when to when both were there, in seconds of this run; `until_seconds` None: to its end.

    `folder` is None where it was not readable, and `uid` is the number of the other run's user.
    """

    run: str = ""
    folder: str | None = None
    uid: int | None = None
    from_seconds: float = 0.0
    until_seconds: float | None = None


def read_overlaps(records: Iterable[RunOverlapped], began_seconds: float) -> tuple[OverlappingRun, ...]:
    """The other runs in the order in which they came; `records` are by time, `began_seconds` is when this run began."""
    found: dict[tuple[str, float], OverlappingRun] = {}
    for record in records:
        began = record.monotonic_seconds if record.began_monotonic is None else record.began_monotonic
        ended = record.ended_monotonic
        found[record.other_run, began] = OverlappingRun(
            record.other_run,
            record.folder,
            record.uid,
            max(0.0, began - began_seconds),
            None if ended is None else max(0.0, ended - began_seconds),
        )
    return tuple(found.values())
