"""The injector's end of the connections to the agents: who is there, who is held, what goes on inside them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.errors import EffectNotSeen, HealError, InjectionError
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import Message

# An effect that begins may have to read all of a rank's state.
BEGIN_TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class _Running:
    """One effect in one rank: what the agent answers to `begin` and `lift`, and what the effect reports."""

    began: asyncio.Future[dict[str, Any]]
    lifted: asyncio.Future[dict[str, Any]]
    reports: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)


@dataclass(slots=True)
class AgentSession:
    """One agent's connection. `attempt` and `process` tell it from those of the rank's earlier and later processes."""

    rank: int
    node: int
    attempt: int
    process: ProcessId | None
    send: Callable[[Message], None]
    is_held: bool = False
    running: dict[int, _Running] = field(default_factory=dict)


class AgentSessions:
    """All agents of a run; what they send comes in by `on_message`."""

    def __init__(self) -> None:
        self._sessions: dict[int, AgentSession] = {}
        self._handles = itertools.count(1)

    def connected(self, session: AgentSession) -> None:
        """An agent said hello."""
        self._sessions[session.rank] = session

    def closed(self, session: AgentSession) -> None:
        """An agent's connection ended: nothing more will be heard of what went on in its rank."""
        if self._sessions.get(session.rank) is session:
            del self._sessions[session.rank]
        session.is_held = False
        for running in session.running.values():
            running.reports.put_nowait(None)
            if not running.began.done():
                running.began.set_exception(InjectionError(f"rank {session.rank} ended before the effect began"))
                # Whoever waited for it may have been cancelled.
                running.began.exception()
            if not running.lifted.done():
                running.lifted.set_result({"gone": True})

    def call(self, rank: int) -> bool:
        """Have `rank` held at its next announcement, whatever that is; False when it is not there."""
        session = self._sessions.get(rank)
        if session is None:
            return False
        session.send({"type": "call"})
        return True

    def on_message(self, session: AgentSession, message: Message) -> None:
        """An answer or a report of an agent (anything but `at`)."""
        running = session.running.get(int(message["handle"]))
        if running is None:
            return
        match message["type"]:
            case "began" if not running.began.done():
                running.began.set_result(message["told"])
            case "refused" if not running.began.done():
                running.began.set_exception(InjectionError(f"rank {session.rank}: {message['reason']}"))
            case "report":
                running.reports.put_nowait(message["told"])
            case "lifted" if not running.lifted.done():
                running.lifted.set_result(message["told"])

    # ---- what faults ask (`chaos.faults.base.InsideHost`) ----

    async def begin(self, rank: int, effect: str, arguments: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """See `chaos.faults.base.InsideHost.begin`."""
        session = self._sessions.get(rank)
        if session is None or not session.is_held:
            what = "is not held" if session is not None else "has no agent: it is gone, or has not started"
            raise InjectionError(f"rank {rank} {what}, so nothing can be done inside it")
        handle = next(self._handles)
        loop = asyncio.get_running_loop()
        running = session.running[handle] = _Running(loop.create_future(), loop.create_future())
        session.send({"type": "begin", "handle": handle, "effect": effect, "arguments": dict(arguments)})
        try:
            return handle, await asyncio.wait_for(running.began, BEGIN_TIMEOUT_SECONDS)
        except TimeoutError:
            raise InjectionError(f"rank {rank} did not answer within {BEGIN_TIMEOUT_SECONDS:g} s") from None

    async def report(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost.report`."""
        running = self._running(rank, handle)
        try:
            told = None if running is None else await asyncio.wait_for(running.reports.get(), timeout_seconds)
        except TimeoutError:
            raise EffectNotSeen(f"rank {rank} reported nothing within {timeout_seconds:g} s") from None
        if told is None:
            raise EffectNotSeen(f"rank {rank} is gone and reported nothing")
        return told

    async def lift(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """See `chaos.faults.base.InsideHost.lift`."""
        session = self._sessions.get(rank)
        if session is None or handle not in session.running:
            return {"gone": True}
        running = session.running[handle]
        session.send({"type": "lift", "handle": handle})
        try:
            return await asyncio.wait_for(asyncio.shield(running.lifted), timeout_seconds)
        except TimeoutError:
            raise HealError(f"rank {rank} did not end its effect within {timeout_seconds:g} s") from None

    def _running(self, rank: int, handle: int) -> _Running | None:
        session = self._sessions.get(rank)
        return None if session is None else session.running.get(handle)
