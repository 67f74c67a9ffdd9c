"""The injector's side of the connections to the agents: which are connected or held, and their effects."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.errors import EffectNotSeen, HealError, InjectionError
from chaos.in_process.protocol import (
    AgentSession,
    Began,
    Begin,
    Call,
    Lift,
    Lifted,
    Place,
    Refused,
    Report,
    SnapshotsOf,
)
from mecefo_runtime.system.reason import Reason

# An effect that begins may have to read all of a rank's state.
BEGIN_TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class _Running:
    """One effect in one rank: what the agent answers to `begin` and `lift`, and what the effect reports."""

    began: asyncio.Future[dict[str, Any]]
    lifted: asyncio.Future[dict[str, Any]]
    reports: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)


class AgentSessions:
    """All agents of a run; what they send comes in by `on_message`."""

    def __init__(self) -> None:
        self._sessions: dict[Place, AgentSession] = {}
        # By session and handle.
        self._running: dict[AgentSession, dict[int, _Running]] = {}
        self._handles = itertools.count(1)

    def connected(self, session: AgentSession) -> None:
        """An agent said hello."""
        self._sessions[session.place] = session
        self._running[session] = {}

    def closed(self, session: AgentSession) -> None:
        """An agent's connection ended: there will be no further reports from its rank."""
        if self._sessions.get(session.place) is session:
            del self._sessions[session.place]
        session.is_held = False
        for running in self._running.pop(session, {}).values():
            running.reports.put_nowait(None)
            if not running.began.done():
                running.began.set_exception(InjectionError(Reason("ended_before_effect", place=session.place_text)))
                # Whoever waited for it may have been cancelled.
                running.began.exception()
            if not running.lifted.done():
                running.lifted.set_result({"gone": True})

    def has(self, place: Place) -> bool:
        """Whether the agent at `place` is connected."""
        return place in self._sessions

    def call(self, place: Place) -> bool:
        """Have a rank held at its next announcement, whatever that is; False when it is not there."""
        session = self._sessions.get(place)
        if session is None:
            return False
        session.send(Call())
        return True

    def on_message(self, session: AgentSession, message: Began | Refused | Report | Lifted) -> None:
        """An answer or a report of an agent."""
        running = self._running.get(session, {}).get(message.handle)
        if running is None:
            return
        match message:
            case Began(told=told) if not running.began.done():
                running.began.set_result(told)
            case Refused(reason=reason) if not running.began.done():
                running.began.set_exception(
                    InjectionError(Reason("refused_inside", place=session.place_text, reason=reason))
                )
            case Report(told=told):
                running.reports.put_nowait(told)
            case Lifted(told=told) if not running.lifted.done():
                running.lifted.set_result(told)
            case _:
                pass

    # ---- what faults ask (`chaos.faults.base.InsideHost`) ----

    async def begin(self, rank: int, effect: str, arguments: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """See `chaos.faults.base.InsideHost.begin`."""
        session = self._sessions.get(rank)
        if session is None or not session.is_held:
            raise InjectionError(Reason("rank_not_held", rank=rank, has_agent=session is not None))
        return await self._begin(session, effect, arguments)

    async def ask(self, node: int, question: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost.ask`."""
        session = self._sessions.get(SnapshotsOf(node))
        if session is None:
            raise InjectionError(Reason("snapshot_process_without_agent", node=node))
        handle, told = await self._begin(session, question, arguments)
        session.send(Lift(handle))
        return told

    async def _begin(
        self, session: AgentSession, effect: str, arguments: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        handle = next(self._handles)
        loop = asyncio.get_running_loop()
        running = self._running[session][handle] = _Running(loop.create_future(), loop.create_future())
        session.send(Begin(handle, effect, dict(arguments)))
        try:
            return handle, await asyncio.wait_for(running.began, BEGIN_TIMEOUT_SECONDS)
        except TimeoutError:
            why = Reason("no_answer", place=session.place_text, seconds=BEGIN_TIMEOUT_SECONDS)
            raise InjectionError(why) from None

    async def report(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost.report`."""
        running = self._of(rank, handle)
        try:
            told = None if running is None else await asyncio.wait_for(running.reports.get(), timeout_seconds)
        except TimeoutError:
            raise EffectNotSeen(Reason("no_report", rank=rank, seconds=timeout_seconds)) from None
        if told is None:
            raise EffectNotSeen(Reason("ended_without_report", rank=rank))
        return told

    async def lift(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost.lift`."""
        session, running = self._sessions.get(rank), self._of(rank, handle)
        if session is None or running is None:
            return {"gone": True}
        session.send(Lift(handle))
        try:
            return await asyncio.wait_for(asyncio.shield(running.lifted), timeout_seconds)
        except TimeoutError:
            raise HealError(Reason("effect_not_ended", rank=rank, seconds=timeout_seconds)) from None

    def _of(self, rank: int, handle: int) -> _Running | None:
        session = self._sessions.get(rank)
        return None if session is None else self._running.get(session, {}).get(handle)
