"""A preemption with notice: a node is told, has time to leave the job in an orderly way, and is then killed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, UsageError
from chaos.faults.base import Act, FaultContext, OwnedProcess, RunContext
from chaos.faults.process._processes import send
from chaos.faults.process.kill import _Kill
from chaos.host.process_table import exited
from chaos.language.quantities import SecondsText
from chaos.language.target import ResolvedTarget, Scope, examples_in
from mecefo_runtime.launch.notice import NOTICE
from mecefo_runtime.system.job_records import Detected
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record

DRAIN = "drain"


class NoticeParameters(BaseModel):
    """How much warning there is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: SecondsText = Field(
        default=30.0,
        description="time from the notice until the node is killed; it is killed earlier when its ranks have left",
    )


class DrainNode(_Kill[NoticeParameters]):
    """Notice to a node's supervisor, time for its ranks to leave the job in order, then SIGKILL to what is left."""

    kind: ClassVar[str] = "drain-node"
    kills: ClassVar[bool] = False
    brief: ClassVar[str] = "notice, then SIGKILL"
    scope: ClassVar[Scope] = "node"
    needs: ClassVar[tuple[str, ...]] = ("own-runtime",)
    # Who is to leave in order must not be held while it does.
    shows_when_released: ClassVar[bool] = True
    gives_notice: ClassVar[bool] = True
    Parameters: ClassVar[type[BaseModel]] = NoticeParameters

    def __init__(self, parameters: NoticeParameters) -> None:
        super().__init__(parameters)
        self._killed: set[ProcessId] = set()
        self._left_seconds = 0.0
        self._given_up: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse targets other than nodes: only a node has a supervisor."""
        if target.role is not None:
            examples = " or ".join(examples_in(run.cluster))
            raise UsageError(f"drain-node moves a node, not the {target.role}: write {examples}")

    async def apply(self, act: Act, context: FaultContext) -> None:
        """The notice, to each supervisor."""
        ranks = [owned for owned in act.processes if owned.role == "rank"]
        listening = asyncio.create_task(self._listen({owned.rank for owned in ranks}, context))
        # It must listen before there can be an answer.
        await asyncio.sleep(0)
        for owned in act.processes:
            if owned.role == "supervisor":
                send(owned, NOTICE)
        self._tasks = [listening, asyncio.create_task(self._take_away(act, ranks, listening))]

    async def _listen(self, ranks: Iterable[int | None], context: FaultContext) -> None:
        wanted = {rank for rank in ranks if rank is not None}

        def have_left(record: Record) -> bool:
            # Told in one event or in several, which may come at once.
            if isinstance(record, Detected) and record.how == DRAIN:
                self._given_up.update(record.lost)
            return wanted <= self._given_up

        await context.watch.wait_for(have_left, None)

    async def _take_away(self, act: Act, ranks: list[OwnedProcess], listening: asyncio.Task[None]) -> None:
        began = time.monotonic()
        await exited((owned.process for owned in ranks), self.parameters.grace)
        self._left_seconds = time.monotonic() - began
        # What the job said of it may still be on its way.
        await asyncio.wait({listening}, timeout=max(0.0, began + self.parameters.grace - time.monotonic()))
        for owned in sorted(act.processes, key=lambda owned: owned.role != "supervisor"):
            if send(owned, signal.SIGKILL):
                self._killed.add(owned.process)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the job has let the node's ranks go, they have ended, and the rest of the node is killed."""
        grace_seconds = self.parameters.grace
        sent = f"notice, and SIGKILL after {grace_seconds:g} s at the latest"
        evidence = await self._gone(act, context, grace_seconds + timeout_seconds, sent, 0.0)
        await asyncio.wait(self._tasks[1:])
        ranks = [owned for owned in act.processes if owned.role == "rank"]
        stayed = [owned for owned in ranks if owned.process in self._killed]
        kept = sorted({owned.rank for owned in ranks if owned.rank is not None} - self._given_up)
        if stayed or kept:
            who = ", ".join(map(str, stayed or ranks))
            raise EffectNotSeen(Reason("node_not_released", seconds=grace_seconds, who=who))
        return {
            **evidence,
            "summary": f"{evidence['summary']}; its ranks had left the job {self._left_seconds:.2f} s after the notice",
            "signal": NOTICE.name,
            "grace_seconds": grace_seconds,
            "left_seconds": round(self._left_seconds, 6),
        }

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Stop waiting for ranks to leave."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
