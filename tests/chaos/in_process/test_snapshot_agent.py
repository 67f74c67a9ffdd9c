"""The agent in a node's snapshot process: it is held while it encodes, and answers meanwhile and at any other time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from chaos.errors import InjectionError
from chaos.in_process.protocol import At, Holds, Release, SnapshotsOf
from chaos.in_process.snapshot_agent import SnapshotAgent
from chaos.injection.agent_sessions import AgentSessions
from harness.control.control_server import ControlServer
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.refusal import Refusal

pytestmark = pytest.mark.unit

PART = "chaos.in_process.snapshot_agent:AskForPart"
WANTED = {"step": 6, "lineage": "first", "unit": "head", "share": [1, 2]}


class Kept:
    """Of everything but one part it is known why not."""

    def newest(self):
        return None

    def why_refused(self, version, unit, share):
        is_here = (version, unit, share) == (Version(6, "first"), "head", Share(1, 2))
        return None if is_here else Refusal("not_held", "it is not here")


class Listener(AgentSessions):
    """Holds whoever connects at encodings from step 5 on; `held` is where, one after the other."""

    def __init__(self):
        super().__init__()
        self.session = None
        self.held = asyncio.Queue()

    def connected(self, session):
        super().connected(session)
        self.session = session
        session.send(Holds(((5, "encode"),)))

    def on_message(self, session, message):
        if isinstance(message, At):
            self.held.put_nowait(message)
        else:
            super().on_message(session, message)


def play(act):
    async def run():
        control = ControlServer(lambda event: None)
        await control.open()
        control.agents = listener = Listener()
        agent = await asyncio.to_thread(SnapshotAgent, control.address, rank=None, node=3, attempt=1)
        agent.expose(Kept())
        try:
            await act(agent, listener)
        finally:
            await control.close()
            # It hangs up, too.
            await asyncio.to_thread(agent._reader.join)

    asyncio.run(asyncio.wait_for(run(), 60.0))


def announcing(agent, step, phase="encode"):
    """Announce it on a thread, which ends when the agent is let go."""
    thread = threading.Thread(target=agent.announce, args=(step, phase), daemon=True)
    thread.start()
    return thread


def test_it_is_held_while_it_encodes_and_answers_meanwhile():
    async def act(agent, listener):
        assert listener.session.place == SnapshotsOf(3)
        await asyncio.to_thread(announcing(agent, 4).join)
        assert listener.held.empty(), "nobody wants it there"
        thread = announcing(agent, 6)
        assert await listener.held.get() == At(6, "encode")
        assert await listener.ask(3, PART, WANTED) == {"refused": None, "code": None}
        assert await listener.ask(3, PART, WANTED | {"step": 5}) == {"refused": "it is not here", "code": "not_held"}
        assert thread.is_alive()
        listener.session.send(Release(()))
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(announcing(agent, 7).join)
        assert listener.held.empty(), "nobody wants it there any more"

    play(act)


def test_it_is_let_go_when_nobody_is_left_to_let_it_go():
    async def act(agent, listener):
        thread = announcing(agent, 6)
        await listener.held.get()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "_on_connection" in repr(task):
                task.cancel()
        await asyncio.to_thread(thread.join)
        with pytest.raises(InjectionError, match="the snapshot process of node 3 has no agent"):
            await listener.ask(3, PART, WANTED)

    play(act)


def test_a_question_that_breaks_down_is_an_answer():
    async def act(agent, listener):
        with pytest.raises(InjectionError, match="the snapshot process of node 3: KeyError"):
            await listener.ask(3, PART, {})

    play(act)
