"""The agent inside a rank: it is told where to stop, and stops there until it is let go.

At its start the injector tells it all (step, phase) at which this rank is to be held. An announcement that is not
among them is one look-up in a set; one that is goes out over a local socket, and the rank waits there while the
injector acts from outside.
"""

from __future__ import annotations

import os

from mecefo_runtime.wire import Connection, WireError

CONNECT_TIMEOUT_SECONDS = 10.0


class Agent:
    """One rank's agent; `announce` is called on the training thread before every phase."""

    def __init__(self, address: str, token: str, *, rank: int, node: int, attempt: int) -> None:
        hello = {"token": token, "role": "agent", "rank": rank, "node": node, "pid": os.getpid(), "attempt": attempt}
        self._connection: Connection | None = Connection.open(address, hello, CONNECT_TIMEOUT_SECONDS)
        # Before the first step, so that no announcement can come too early to be held.
        self._holds = {(int(step), str(phase)) for step, phase in self._connection.receive()["holds"]}

    def announce(self, step: int, phase: str) -> None:
        """Wait here if the injector wants this rank held at (step, phase)."""
        if (step, phase) not in self._holds:
            return
        # Once only: a step that is repeated after the regroup does not fire the fault again.
        self._holds.discard((step, phase))
        if self._connection is None:
            return
        try:
            self._connection.send({"type": "at", "step": step, "phase": phase})
            self._connection.receive()
        except (OSError, WireError):
            # Without an injector there is nothing to wait for; training matters more.
            self._connection = None


def install(*, rank: int, node: int, attempt: int) -> Agent:
    """The runtime's hook (see `mecefo_runtime.hooks`): connects to the injector named by the environment."""
    return Agent(os.environ["CHAOS_AGENT"], os.environ["CHAOS_TOKEN"], rank=rank, node=node, attempt=attempt)
