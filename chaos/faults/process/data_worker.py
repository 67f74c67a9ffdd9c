"""Faults of the processes in which a rank's DataLoader prepares its batches (`num_workers` above 0).

torch names them (`pt_data_worker`, torch/utils/data/_utils/worker.py, 2.11-2.13); they are children of the rank.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import psutil
from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, TargetNotFound
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, FaultContext, OwnedProcess
from chaos.faults.process._processes import ProcessFault, see_exits, send
from chaos.faults.process.kill import SignalText
from chaos.faults.process.straggler import CycleRecord, SlowParameters, SlowRank
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

WORKER_NAME = "pt_data_worker"
GONE_SECONDS = 20.0
# Steps that take no more than so much longer were hidden behind the batches that were there already.
HIDDEN_RATIO = 1.1


class KillWorkerParameters(BaseModel):
    """Which worker, and what ends it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker: int | None = Field(
        default=None, ge=0, description="number of the worker, from 0 in each rank; default: drawn by the seed"
    )
    signal: SignalText = Field(default=signal.SIGKILL, description="by name or number")


class SlowWorkerParameters(SlowParameters):
    """How slow it gets, and which worker."""

    worker: int | None = Field(
        default=None, ge=0, description="number of the worker, from 0 in each rank; default: all"
    )


def data_workers(rank: OwnedProcess) -> list[OwnedProcess]:
    """Those of a rank that run, in the order in which they were started."""
    found: list[ProcessId] = []
    with suppress(psutil.Error):
        for child in psutil.Process(rank.process.local_pid).children():
            # It may be gone at any moment.
            with suppress(psutil.Error, ProcessLookupError):
                if child.name() == WORKER_NAME and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(ProcessId.of(child.pid))
    found.sort(key=lambda process: (process.start_ticks, process.pid))
    return [OwnedProcess("data-worker", process, rank=rank.rank, node=rank.node) for process in found]


def _workers_of(target: ResolvedTarget, context: FaultContext) -> dict[int, list[OwnedProcess]]:
    by_rank = {one.rank or 0: data_workers(one) for one in context.processes.rank_processes(target.ranks)}
    idle = [rank for rank, workers in by_rank.items() if not workers]
    if idle or not by_rank:
        names = ", ".join(map(str, idle)) or str(target)
        raise TargetNotFound(Reason("no_data_worker", processes=names))
    return by_rank


def _chosen(workers: list[OwnedProcess], number: int) -> OwnedProcess:
    if number >= len(workers):
        raise TargetNotFound(Reason("no_such_data_worker", rank=workers[0].rank, number=number, workers=len(workers)))
    return workers[number]


class KillDataWorker(ProcessFault[KillWorkerParameters]):
    """Kills one of the worker processes of a rank's DataLoader; the rank itself lives on, until it asks for a batch."""

    kind: ClassVar[str] = "kill-data-worker"
    brief: ClassVar[str] = "kill a DataLoader worker"
    scope: ClassVar[Scope] = "rank"
    needs: ClassVar[tuple[str, ...]] = ("data-workers",)
    undo_summary: ClassVar[str] = "nothing to undo; the script decides whether it restarts the worker"
    has_undo: ClassVar[bool] = False
    shows_undo: ClassVar[bool] = False
    kills: ClassVar[bool] = True
    Parameters: ClassVar[type[BaseModel]] = KillWorkerParameters
    verify_timeout_seconds: ClassVar[float] = GONE_SECONDS

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """One worker of each rank, drawn where none is named."""
        number = self.parameters.worker
        struck = tuple(
            _chosen(workers, int(self.rng.random() * len(workers)) if number is None else number)
            for workers in _workers_of(target, context).values()
        )
        return Act(struck, ProcessesRecord.of(struck).to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """The signal, to each."""
        for owned in act.processes:
            send(owned, self.parameters.signal)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """They are gone from the process table."""
        seconds, _ = await see_exits(act, context, timeout_seconds, codes_within_seconds=0.0)
        names = ", ".join(f"of rank {owned.rank} (pid {owned.process.pid})" for owned in act.processes)
        return {
            "summary": f"{signal.Signals(self.parameters.signal).name} to a DataLoader worker {names}: gone",
            "seen_in": "process table, by pid and start time",
            "seconds": round(seconds, 6),
            "processes": [owned.to_dict() for owned in act.processes],
        }

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing to undo: ended processes stay ended."""
        return {"undone": "nothing to undo", "processes": len(ProcessesRecord.from_json(record).processes)}


class SlowDataWorker(SlowRank):
    """Workers of a rank's DataLoader run at 1/factor of their speed; prefetching may hide it from the training."""

    kind: ClassVar[str] = "slow-data-worker"
    exclusive: ClassVar[str | None] = "whether a data worker runs"
    brief: ClassVar[str] = "slow DataLoader workers"
    needs: ClassVar[tuple[str, ...]] = ("data-workers",)
    acts_inside: ClassVar[bool] = False
    Parameters: ClassVar[type[BaseModel]] = SlowWorkerParameters

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The worker that is named, or all of each rank."""
        number = getattr(self.parameters, "worker", None)
        struck = tuple(
            one
            for workers in _workers_of(target, context).values()
            for one in (workers if number is None else [_chosen(workers, number)])
        )
        return Act(struck, CycleRecord.of(struck, period_seconds=self.parameters.period).to_json())

    async def _pad(self, act: Act, context: FaultContext) -> None:
        """Nobody pads what workers do."""

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """As for a slow rank; also whether the training became slower."""
        try:
            found = await super().verify(act, context, timeout_seconds)
        except EffectNotSeen as error:
            if all(owned.process.is_running() for owned in act.processes):
                raise
            why = "a DataLoader starts new workers with each epoch, unless it has persistent_workers=True"
            raise error.because(why, "; ") from None
        ratio = found["step_time_ratio"]
        is_hidden = None if ratio is None else ratio < HIDDEN_RATIO
        hidden = "; prefetching hid it from the training" if is_hidden else ""
        return {**found, "summary": f"{found['summary']}{hidden}", "hidden_by_prefetching": is_hidden}
