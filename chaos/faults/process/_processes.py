"""The base of process faults: the processes that they affect, and how their ends are observed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from chaos.errors import EffectNotSeen, NotOurs, TargetNotFound
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import (
    Act,
    Fault,
    FaultContext,
    Fidelity,
    LauncherHost,
    LauncherLeft,
    OwnedProcess,
    ParametersT,
)
from chaos.host.process_table import exited
from chaos.host.undo_record import UndoRecord
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.job_records import ProcessExited
from mecefo_runtime.system.process import ForeignProcess, ProcessId
from mecefo_runtime.system.reason import Reason

# `Fault.exclusive` of what stops processes: the first SIGCONT ends all their stops.
RUNNING = "whether a process runs"


class ProcessFault(Fault[ParametersT]):
    """A fault of processes: those of the target that still run, by pid and start time."""

    fidelity: ClassVar[Fidelity] = "real"
    Record: ClassVar[type[UndoRecord]] = ProcessesRecord

    def __init__(self, parameters: ParametersT) -> None:
        super().__init__(parameters)
        # Of a node: who starts ranks there and elsewhere, and is left alone.
        self._left: tuple[LauncherLeft, ...] = ()

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Every process of the target that is still running."""
        if self.scope == "node" and target.role is None and isinstance(context.processes, LauncherHost):
            self._left = context.processes.launchers_left(target.nodes)
        candidates = self._candidates(target, context)
        require_here(candidates)
        running = tuple(owned for owned in candidates if owned.process.is_running())
        if not running:
            raise TargetNotFound(Reason("nothing_running", target=target))
        return Act(running, ProcessesRecord.of(running).to_json())

    def _with_launchers_left(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        """`evidence` of a fault of a node, and whose launcher lives on: a real node would have taken it along."""
        if not self._left:
            return dict(evidence)
        words = f"{evidence['summary']}; ranks only: {'; '.join(map(_left_words, self._left))}"
        more = {"ranks_only": True, "launchers_left": [one.to_dict() for one in self._left]}
        return {**evidence, "summary": words, **more}

    def _candidates(self, target: ResolvedTarget, context: FaultContext) -> tuple[OwnedProcess, ...]:
        if target.role is not None:
            return context.processes.role_processes(target.role)
        if self.scope == "node":
            return context.processes.node_processes(target.nodes)
        return context.processes.rank_processes(target.ranks)


def starters_first(processes: Iterable[OwnedProcess]) -> list[OwnedProcess]:
    """Whoever starts ranks again comes before them: it must not do so while a node goes down."""
    return sorted(processes, key=lambda owned: owned.role not in ("supervisor", "launcher"))


def _left_words(left: LauncherLeft) -> str:
    *before, last = map(str, left.nodes)
    return f"the launcher (pid {left.process.pid}) serves nodes {', '.join(before)} and {last} and was left running"


def require_here(processes: Iterable[OwnedProcess]) -> None:
    """See that all of them run on this host: a fault acts where its target lives.

    Raises:
        NotOurs: one runs on another host, or ran before this one was started again.
    """
    for owned in processes:
        if not owned.process.is_here:
            raise NotOurs(Reason(ForeignProcess(owned.process).code, process=str(owned), host=owned.process.host.name))


def send(owned: OwnedProcess, number: signal.Signals) -> bool:
    """Send a signal to this very process; False when it is gone.

    Raises:
        NotOurs: it is the process that we are, or one of another host.
    """
    require_here((owned,))
    if owned.process.local_pid == os.getpid():
        raise NotOurs(Reason("chaos_itself"))
    return owned.process.signal(number)


class Exits:
    """Collects process exits from the job's events, from its creation on."""

    def __init__(self, processes: Iterable[OwnedProcess], context: FaultContext) -> None:
        self._waits = {owned.process: asyncio.ensure_future(_exit_code(owned, context)) for owned in processes}

    async def wait(self, timeout_seconds: float) -> None:
        """Wait until every exit was reported, or the time is up."""
        if self._waits:
            await asyncio.wait(self._waits.values(), timeout=timeout_seconds)

    def code(self, process: ProcessId) -> int | None:
        """The exit code, negative for a signal; None when nobody has told."""
        wait = self._waits[process]
        return wait.result() if wait.done() and not wait.cancelled() and wait.exception() is None else None

    async def close(self) -> None:
        """Stop listening."""
        for wait in self._waits.values():
            wait.cancel()
            with suppress(asyncio.CancelledError):
                await wait


async def _exit_code(owned: OwnedProcess, context: FaultContext) -> int | None:
    record = await context.watch.wait_for(
        lambda record: isinstance(record, ProcessExited) and record.exited_pid == owned.process.pid, None
    )
    assert isinstance(record, ProcessExited)
    return record.exit


async def see_exits(
    act: Act, context: FaultContext, timeout_seconds: float, *, codes_within_seconds: float
) -> tuple[float, dict[ProcessId, int | None]]:
    """Wait until all processes of `act` are gone: (seconds that it took, exit code of each where it was told in time).

    Raises:
        EffectNotSeen: one of them still runs.
    """
    began = time.monotonic()
    exits = Exits(act.processes, context)
    try:
        alive = set(await exited((owned.process for owned in act.processes), timeout_seconds))
        seconds = time.monotonic() - began
        if alive:
            names = ", ".join(str(owned) for owned in act.processes if owned.process in alive)
            raise EffectNotSeen(Reason("still_running", seconds=timeout_seconds, processes=names))
        await exits.wait(codes_within_seconds)
        return seconds, {owned.process: exits.code(owned.process) for owned in act.processes}
    finally:
        await exits.close()


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "its exit code is unknown"
    return f"exit code {code}" if code >= 0 else f"ended by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """The name of a signal, or its number where it has none (a real-time one)."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
