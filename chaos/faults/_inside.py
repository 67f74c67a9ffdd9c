"""The base of faults that act inside ranks: they begin one effect in each, and lift it while the rank lives."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from chaos.errors import EffectNotSeen, TargetNotFound
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, Fault, FaultContext, Fidelity
from chaos.host.undo_record import UndoRecord
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.system.reason import Reason

# Steps may take seconds, and what was affected may be used only in the next one.
VERIFY_TIMEOUT_SECONDS = 120.0
# A rank lifts an effect at its next announcement, and between two of them it may wait for its peers.
LIFT_TIMEOUT_SECONDS = 60.0

ParametersT = TypeVar("ParametersT", bound=BaseModel)


class InsideFault(Fault[ParametersT]):
    """Begins `_effect` in each rank of the target; it is verified by what the ranks report of it when they continue."""

    scope: ClassVar[Scope] = "rank"
    fidelity: ClassVar[Fidelity] = "real"
    acts_inside: ClassVar[bool] = True
    shows_when_released: ClassVar[bool] = True
    shows_undo: ClassVar[bool] = False
    verify_timeout_seconds: ClassVar[float] = VERIFY_TIMEOUT_SECONDS
    Record: ClassVar[type[UndoRecord]] = ProcessesRecord

    def __init__(self, parameters: ParametersT) -> None:
        super().__init__(parameters)
        # By rank: the effect's handle, and what it said when it began.
        self._begun: dict[int, tuple[int, dict[str, Any]]] = {}

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The processes of the target's ranks. Nothing has to be undone from outside."""
        found = context.processes.rank_processes(target.ranks)
        running = tuple(owned for owned in found if owned.process.is_running())
        if not running:
            raise TargetNotFound(Reason("no_running_rank", target=target))
        return Act(running, ProcessesRecord.of(running).to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Begin the effect in each rank, on its training thread."""
        effect, arguments = self._effect()
        for rank in act.ranks:
            self._begun[rank] = await context.inside.begin(rank, effect, {**arguments, "seed": f"{self.seed}/{rank}"})

    @abstractmethod
    def _effect(self) -> tuple[str, dict[str, Any]]:
        """The effect and its arguments."""

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait for each rank's report on the effect."""
        if not self._begun:
            raise EffectNotSeen(Reason("not_started_inside"))
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        ranks = []
        for rank, (handle, _) in self._begun.items():
            remaining = max(0.0, deadline - asyncio.get_running_loop().time())
            told = await context.inside.report(rank, handle, remaining)
            ranks.append({"rank": rank, **await self._judge(rank, told)})
        return {"summary": "; ".join(str(told["summary"]) for told in ranks), "ranks": ranks}

    @abstractmethod
    async def _judge(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        """The evidence of one rank, from what its effect reported.

        Raises:
            EffectNotSeen: that is no evidence.
        """

    async def lift(self, act: Act, context: FaultContext) -> None:
        """End the effect in the ranks, which remove their hooks."""
        for rank, (handle, _) in self._begun.items():
            await context.inside.lift(rank, handle, LIFT_TIMEOUT_SECONDS)

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """What is active inside a rank ends with the connection to the injector, or with the process."""
        return {"undone": "nothing to undo", "processes": len(ProcessesRecord.from_json(record).processes)}
