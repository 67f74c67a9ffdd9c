"""SIGKILL from outside: one rank, or a whole node with its supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from chaos.errors import EffectNotSeen, NotOurs, TargetNotFound
from chaos.faults.base import Act, Fault, Fidelity, Host, NoParameters, OwnedProcess
from chaos.target import ResolvedTarget, Scope


class _Kill(Fault[NoParameters]):
    """Kills every process of the target; they are gone when the process table says so."""

    fidelity: ClassVar[Fidelity] = "real"
    is_loss: ClassVar[bool] = True
    undo_summary: ClassVar[str] = "nothing to undo; --repair starts it again"

    def prepare(self, target: ResolvedTarget, host: Host) -> Act:
        """Every process of the target that is still running, by pid and start time."""
        candidates = self._processes(target, host)
        running = tuple(owned for owned in candidates if owned.process.is_running())
        if not running:
            raise TargetNotFound(f"nothing of {target} is running any more")
        return Act(running, {"processes": [owned.to_dict() for owned in running]})

    def _processes(self, target: ResolvedTarget, host: Host) -> tuple[OwnedProcess, ...]:
        if target.role is not None:
            return host.processes.role_processes(target.role)
        return host.processes.rank_processes(target.ranks)

    async def apply(self, act: Act, host: Host) -> None:
        """SIGKILL, the supervisor first: a dead node reports nobody's death."""
        for owned in sorted(act.processes, key=lambda owned: owned.role != "supervisor"):
            if owned.process.pid == os.getpid():
                raise NotOurs("the target is this very process")
            owned.process.signal(signal.SIGKILL)

    async def verify(self, act: Act, host: Host, timeout_seconds: float) -> dict[str, Any]:
        """Wait for the exit of each process, then look it up in the process table."""
        began = time.monotonic()
        waits = [_exited(owned.process.pid) for owned in act.processes]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), timeout_seconds)
        alive = [owned for owned in act.processes if owned.process.is_running()]
        if alive:
            raise EffectNotSeen(f"still running {timeout_seconds:g} s after SIGKILL: {', '.join(map(str, alive))}")
        names = ", ".join(map(str, act.processes))
        return {
            "summary": f"SIGKILL; gone from the process table, by pid and start time: {names}",
            "signal": "SIGKILL",
            "seen_in": "process table, by pid and start time",
            "seconds": round(time.monotonic() - began, 6),
            "processes": [{**owned.to_dict(), "state": owned.process.state()} for owned in act.processes],
        }

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """The dead stay dead: nothing was changed that would have to be changed back."""
        return {"undone": "nothing to undo", "processes": len(record.get("processes", ()))}


class KillProcess(_Kill):
    """SIGKILL to one rank's process; its supervisor and its node's other ranks live on."""

    kind: ClassVar[str] = "kill-process"
    scope: ClassVar[Scope] = "rank"


class KillNode(_Kill):
    """SIGKILL to every process of a node: its ranks and its supervisor."""

    kind: ClassVar[str] = "kill-node"
    scope: ClassVar[Scope] = "node"

    def _processes(self, target: ResolvedTarget, host: Host) -> tuple[OwnedProcess, ...]:
        if target.role is not None:
            return super()._processes(target, host)
        return host.processes.node_processes(target.nodes)


async def _exited(pid: int) -> None:
    """Until the process that has `pid` now exits; without polling."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
