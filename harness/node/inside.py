"""Acts inside the ranks of this host by way of the tool, to which they are connected."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from chaos.errors import ChaosError, InjectionError
from chaos.faults.base import InsideHost
from chaos.injection.orders import Refused
from harness.node.messages import AskInside, InsideAnswer
from mecefo_runtime.system.reason import Reason

METHODS = ("begin", "ask", "report", "lift")


class InsideByTool:
    """The side of the agent; `send` sends a question."""

    def __init__(self, send: Callable[[AskInside], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def begin(self, rank: int, effect: str, arguments: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """See `chaos.faults.base.InsideHost`."""
        handle, told = await self._ask("begin", rank, effect, dict(arguments))
        return int(handle), dict(told)

    async def ask(self, node: int, question: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost`."""
        return dict(await self._ask("ask", node, question, dict(arguments)))

    async def report(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost`."""
        return dict(await self._ask("report", rank, handle, timeout_seconds))

    async def lift(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost`."""
        return dict(await self._ask("lift", rank, handle, timeout_seconds))

    def on_answer(self, answer: InsideAnswer) -> None:
        """The tool has answered."""
        waiting = self._waiting.pop(answer.id, None)
        if waiting is None or waiting.done():
            return
        if answer.refusal is None:
            waiting.set_result(answer.answer)
        else:
            waiting.set_exception(Refused(**answer.refusal).error())

    def close(self) -> None:
        """No answer will come any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(InjectionError(Reason("not_connected", what="the tool")))
                # Whoever waited for it may have been cancelled.
                waiting.exception()
        self._waiting.clear()

    async def _ask(self, method: str, *arguments: Any) -> Any:
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(AskInside(number, method, arguments))
        return await self._waiting[number]


async def answer_inside(inside: InsideHost, asked: AskInside) -> InsideAnswer:
    """The side of the tool: what `inside` answers."""
    if asked.method not in METHODS:
        return InsideAnswer(asked.id, refusal=_plain(Refused.because(Reason("fault_broke_down", error=asked.method))))
    try:
        return InsideAnswer(asked.id, await getattr(inside, asked.method)(*asked.arguments))
    except ChaosError as error:
        return InsideAnswer(asked.id, refusal=_plain(Refused.of(error)))


def _plain(refused: Refused) -> dict[str, Any]:
    return {"kind": refused.kind, "why": dict(refused.why)}
