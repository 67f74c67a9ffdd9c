"""A rank that hangs with the interpreter lock held: it neither trains nor answers, and its connections stay open."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, EnvironmentFailure, HealError
from chaos.faults._records import ProcessRecord
from chaos.faults.base import Act, FaultContext, OwnedProcess
from chaos.faults.process._processes import ProcessFault
from chaos.host.own_folder import parent_of
from chaos.host.process_table import STOPPED, TABLE_POLL_SECONDS, effective_uid, thread_names, thread_states
from chaos.host.undo_record import UndoRecord
from chaos.in_process.hang import PULSE_SECONDS, WITNESS_NAME
from chaos.language.quantities import SecondsText
from chaos.language.target import ResolvedTarget, Scope
from chaos.language.trigger import Duration
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

EFFECT = "chaos.in_process.hang:HangGil"
# Without a sign of life from any other Python thread for so long, the lock is held: 50 missed pulses of the witness.
SILENT_SECONDS = 50 * PULSE_SECONDS
# A witness that can run pulses within this time, on a busy machine too.
ALIVE_WITHIN_SECONDS = 5.0
LIFT_SECONDS = 0.5
_SUFFIX = ".gate"


class HangParameters(BaseModel):
    """When it ends at the latest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_most: SecondsText = Field(default=300.0, description="after this time the kernel ends it, even if chaos is dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingProcess(ProcessRecord):
    """A process, and the `gate` that ends its wait."""

    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangRecord(UndoRecord):
    """The processes that hang."""

    processes: tuple[HangingProcess, ...] = ()

    def changed_paths(self) -> tuple[str, ...] | None:
        """The gates."""
        return tuple(one.gate for one in self.processes)


class HangGil(ProcessFault[HangParameters]):
    """A rank's training thread waits in C with the interpreter lock held: every Python thread of the rank hangs."""

    kind: ClassVar[str] = "hang-gil"
    brief: ClassVar[str] = "hang while holding the GIL"
    scope: ClassVar[Scope] = "rank"
    has_lifetime: ClassVar[bool] = True
    default_lifetime: ClassVar[Duration | None] = Duration(seconds=10.0)
    acts_inside: ClassVar[bool] = True
    shows_when_released: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = 10.0
    undo_summary: ClassVar[str] = "opens the FIFO on which the rank waits; also ends by itself, or when chaos ends"
    Record: ClassVar[type[UndoRecord]] = HangRecord
    Parameters: ClassVar[type[BaseModel]] = HangParameters

    def __init__(self, parameters: HangParameters) -> None:
        super().__init__(parameters)
        self._handles: dict[int, int] = {}
        self._gates: list[int] = []

    @classmethod
    def longest_seconds(cls, parameters: BaseModel) -> float | None:
        """What the kernel is asked for."""
        return float(getattr(parameters, "at_most", 0.0)) or None

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Every rank's process, and the gate that will end its wait."""
        act = super().prepare(target, context)
        waiting = (HangingProcess(**o.to_dict(), gate=str(_gate(context.run_folder, o))) for o in act.processes)
        return Act(act.processes, HangRecord(processes=tuple(waiting)).to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Make the gates, and have every rank wait at its own from its release on."""
        for owned in act.processes:
            gate = _gate(context.run_folder, owned)
            try:
                os.mkfifo(gate, 0o600)
                _give(gate, owned.process)
                # Held open for writing by us alone: our end is the end of the wait.
                self._gates.append(os.open(gate, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                raise EnvironmentFailure(f"cannot create the FIFO {gate}: {error.strerror}") from error
            assert owned.rank is not None
            arguments = {"gate": str(gate), "at_most_seconds": self.parameters.at_most}
            self._handles[owned.rank], _ = await context.inside.begin(owned.rank, EFFECT, arguments)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """The witnesses that pulse in the ranks do no longer, though the processes are there and not stopped."""
        began = time.monotonic()
        seen = {owned.process: (_pulse(owned.process), began) for owned in act.processes}
        num_changes = 0
        while True:
            now = time.monotonic()
            for owned in act.processes:
                pulse, since = _pulse(owned.process), seen[owned.process][1]
                if pulse is None:
                    raise EffectNotSeen(Reason("hang_not_watched", process=owned))
                if pulse != seen[owned.process][0]:
                    num_changes += 1
                    seen[owned.process] = (pulse, now)
                elif now - since >= SILENT_SECONDS and STOPPED in thread_states(owned.process).values():
                    raise EffectNotSeen(Reason("stopped_not_hung", process=owned))
            silent_seconds = min(now - since for _, since in seen.values())
            if silent_seconds >= SILENT_SECONDS:
                break
            if now - began > timeout_seconds:
                raise EffectNotSeen(Reason("threads_still_run", seconds=timeout_seconds, pulses=num_changes))
            await asyncio.sleep(TABLE_POLL_SECONDS)
        names = ", ".join(map(str, act.processes))
        return {
            "summary": f"no other Python thread ran for {silent_seconds:.2f} s, where a witness thread pulsed every "
            f"{PULSE_SECONDS:g} s before; the process is there and not stopped: {names}",
            "seen_in": "names of the ranks' threads in the process table",
            "silent_seconds": round(silent_seconds, 3),
            "pulse_seconds": PULSE_SECONDS,
            "processes": [{**owned.to_dict(), "state": owned.process.state()} for owned in act.processes],
        }

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Open the gates; what the ranks' agents still hold of it they let go of when they are next asked."""
        for gate in self._gates:
            os.write(gate, b"\n")
        for rank, handle in self._handles.items():
            # A rank that regroups answers later; that nothing hangs any more is seen from outside.
            with suppress(HealError):
                await context.inside.lift(rank, handle, LIFT_SECONDS)
        for gate in self._gates:
            os.close(gate)
        self._gates.clear()

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Open the gates, and see every witness pulse again, or gone."""
        processes = HangRecord.from_json(record).processes
        for one in processes:
            gate = Path(one.gate)
            _open(gate)
            _see_alive(one.process)
            _remove(gate)
        return {"undone": "no FIFO is left, and no thread hangs", "pids": [one.pid for one in processes]}


def _gate(run_folder: Path, owned: OwnedProcess) -> Path:
    # Absolute: the rank, and whoever heals, may be in another folder.
    return run_folder.resolve() / f"hang-{owned.process.pid}-{owned.process.start_ticks}{_SUFFIX}"


def _give(gate: Path, process: ProcessId) -> None:
    """Let `process` open the gate: its launcher may have started it as another user, which takes root."""
    uid = effective_uid(process)
    if uid is not None and uid != os.geteuid():
        os.chown(gate, uid, -1, follow_symlinks=False)


def _open(gate: Path) -> None:
    # Nobody there who waits, or no such gate: nothing to end.
    with suppress(OSError), parent_of(gate) as (folder, name):
        if not _is_gate(os.stat(name, dir_fd=folder, follow_symlinks=False), name):
            return
        descriptor = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
        try:
            if _is_gate(os.fstat(descriptor), name):
                os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


def _remove(gate: Path) -> None:
    with suppress(FileNotFoundError), parent_of(gate) as (folder, name):
        if not _is_gate(os.stat(name, dir_fd=folder, follow_symlinks=False), name):
            raise HealError(Reason("not_our_fifo", path=gate))
        os.unlink(name, dir_fd=folder)


def _is_gate(status: os.stat_result, name: str) -> bool:
    return stat.S_ISFIFO(status.st_mode) and name.endswith(_SUFFIX)


def _pulse(process: ProcessId) -> str | None:
    return next((name for name in thread_names(process).values() if name.startswith(WITNESS_NAME)), None)


def _see_alive(process: ProcessId) -> None:
    first = _pulse(process)
    deadline = time.monotonic() + ALIVE_WITHIN_SECONDS
    while first is not None and _pulse(process) == first:
        if time.monotonic() > deadline:
            raise HealError(Reason("still_hangs", pid=process.pid, seconds=ALIVE_WITHIN_SECONDS))
        time.sleep(TABLE_POLL_SECONDS)
