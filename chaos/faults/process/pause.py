"""SIGSTOP for a time, and SIGCONT in any case: a process that exists and does nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from chaos.errors import EffectNotSeen, HealError
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, FaultContext, NoParameters
from chaos.faults.process._processes import RUNNING, ProcessFault, send, starters_first
from chaos.host.process_table import STOPPED, TABLE_POLL_SECONDS, cpu_seconds, is_stopped, thread_states
from chaos.language.target import Scope
from chaos.language.trigger import Duration
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

# A process that uses no CPU time for so long while it is stopped does nothing.
STILL_SECONDS = 0.2
RESUMED_WITHIN_SECONDS = 2.0
# Between two looks that are further apart, whoever stops them may have been kept waiting as long as who looks.
LOOK_SECONDS = 10 * TABLE_POLL_SECONDS


class _Pause(ProcessFault[NoParameters]):
    """Stops every process of the target until the end of its lifetime."""

    has_lifetime: ClassVar[bool] = True
    exclusive: ClassVar[str | None] = RUNNING
    default_lifetime: ClassVar[Duration | None] = Duration(seconds=10.0)
    undo_summary: ClassVar[str] = "SIGCONT, and a look at every thread"

    async def apply(self, act: Act, context: FaultContext) -> None:
        """SIGSTOP, whoever started the ranks first, so that it does not see them stop."""
        for owned in starters_first(act.processes):
            send(owned, signal.SIGSTOP)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Every thread of every process is stopped, and no CPU time passes in them."""
        began = time.monotonic()
        processes = [owned.process for owned in act.processes]
        while moving := [owned for owned in act.processes if not is_stopped(owned.process)]:
            if time.monotonic() - began > timeout_seconds:
                states = [f"{owned} (state {owned.process.state()})" for owned in moving]
                raise EffectNotSeen(Reason("not_stopped", seconds=timeout_seconds, processes=states))
            await asyncio.sleep(TABLE_POLL_SECONDS)
        num_threads = sum(len(thread_states(process)) for process in processes)
        before = [cpu_seconds(process) for process in processes]
        await asyncio.sleep(STILL_SECONDS)
        used_seconds = [
            _difference(after, cpu_seconds(process)) for after, process in zip(before, processes, strict=True)
        ]
        if any(used_seconds) or not all(is_stopped(process) for process in processes):
            raise EffectNotSeen(Reason("not_still", used_seconds=used_seconds, within_seconds=STILL_SECONDS))
        names = ", ".join(map(str, act.processes))
        whole, them = ("its only thread is", "it") if num_threads == 1 else (f"all {num_threads} threads are", "them")
        evidence = {
            "summary": f"{whole} stopped (state {STOPPED}), and no CPU time passed in {them} "
            f"within {STILL_SECONDS:g} s: {names}",
            "seen_in": "process table, by pid and start time, each thread",
            "threads": num_threads,
            "cpu_seconds": 0.0,
            "watched_seconds": STILL_SECONDS,
            "processes": [{**owned.to_dict(), "state": owned.process.state()} for owned in act.processes],
        }
        return self._with_launchers_left(evidence)

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """SIGCONT to the processes that still exist."""
        processes = ProcessesRecord.from_json(record).ids
        resume(processes)
        return {"undone": "no thread of them is stopped", "pids": [process.pid for process in processes]}


class PauseProcess(_Pause):
    """SIGSTOP to one rank's process for a time, then SIGCONT."""

    kind: ClassVar[str] = "pause-process"
    brief: ClassVar[str] = "SIGSTOP a rank for a time"
    scope: ClassVar[Scope] = "rank"


class PauseNode(_Pause):
    """SIGSTOP to every process of a node for a time, then SIGCONT: a host that freezes and resumes."""

    kind: ClassVar[str] = "pause-node"
    brief: ClassVar[str] = "SIGSTOP a node for a time"
    scope: ClassVar[Scope] = "node"


def resume(processes: tuple[ProcessId, ...], *, still_seconds: float = 0.0) -> None:
    """SIGCONT to every one of `processes` that is stopped, until none is for `still_seconds`.

    Raises:
        HealError: one of them stays stopped, or is stopped again and again.
    """
    deadline = time.monotonic() + RESUMED_WITHIN_SECONDS + still_seconds
    running_seconds = 0.0
    last_look: float | None = None
    while True:
        stopped = [process for process in processes if STOPPED in thread_states(process).values()]
        now = time.monotonic()
        if not stopped:
            running_seconds += 0.0 if last_look is None else min(now - last_look, LOOK_SECONDS)
            last_look = now
            if running_seconds >= still_seconds:
                return
        else:
            running_seconds, last_look = 0.0, None
            if now > deadline:
                raise HealError(Reason("still_stopped", pids=[process.pid for process in stopped]))
            for process in stopped:
                process.signal(signal.SIGCONT)
        time.sleep(TABLE_POLL_SECONDS)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
