"""Who must be in the job for a fault of links to be one: a link to a rank that is gone carries nothing anyway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mecefo_runtime.system.job_records import ProcessExited

if TYPE_CHECKING:
    from chaos.faults.base import FaultContext, ProcessHost
    from mecefo_runtime.system.record import Record

# Ranks, of which one at least must be there.
Side = tuple[int, ...]


def absent(sides: Iterable[Side], processes: ProcessHost) -> str | None:
    """Which of `sides` has no rank with a running process, in words; None: each has one."""
    for side in sides:
        if not any(owned.process.is_running() for owned in processes.rank_processes(side)):
            return _words(side)
    return None


class Presence:
    """Follows whether each of `sides` stays in the job, from its creation on."""

    def __init__(self, sides: Iterable[Side], context: FaultContext) -> None:
        self._processes = {side: context.processes.rank_processes(side) for side in sides}
        # A launcher ends the other ranks when one failed, by whatever signal: that may be what the fault came to.
        self._may_end_of_it = context.has_foreign_checkpoints
        self._ended_themselves: set[int] = set()

    def note(self, record: Record) -> bool:
        """Learn how processes ended; never what is waited for."""
        match record:
            case ProcessExited(exited_pid=int(pid), exit=int(code)) if code >= 0:
                self._ended_themselves.add(pid)
        return False

    def lost(self) -> str | None:
        """Which side was taken from the job, in words: not one that gave up by itself, as its links may have it do."""
        if self._may_end_of_it:
            return None
        for side, processes in self._processes.items():
            if not any(one.process.is_running() or one.process.pid in self._ended_themselves for one in processes):
                return _words(side)
        return None


def _words(side: Side) -> str:
    names = ", ".join(map(str, side))
    return f"rank {names} is not in the job" if len(side) == 1 else f"of the ranks {names} none is in the job"
