"""Steps of a command in which no optimizer of PyTorch is seen, as its log tells them: `job.step_from`.

Nobody is held then: what a fault does at a step it does when the line of the step before was read, at most
`BLAME_POLL_SECONDS` after it was written. What acts inside ranks cannot be had.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from chaos.in_process.protocol import AgentListener, AgentSession, At, Begin, FromInjector, Holds, Refused
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.process import ProcessId


class LogSteps:
    """Reads steps from lines, and stands in for the agent that the command does not have."""

    def __init__(
        self, pattern: str, process: ProcessId, emitter: Emitter, listener: Callable[[], AgentListener | None]
    ) -> None:
        """`pattern` has a group `step`, or its first is the number; without one its matches are counted."""
        self._pattern = re.compile(pattern)
        self._emitter = emitter
        self._listener = listener
        self._session = AgentSession(0, 0, 1, process, self._on_order)
        self._holds: frozenset[tuple[int | None, str]] = frozenset()
        self._num_seen = 0
        self._is_connected = False

    def connect(self) -> None:
        """The command runs: report as its rank 0."""
        if (listener := self._listener()) is not None:
            self._is_connected = True
            listener.connected(self._session)
            self._reach(1)

    def close(self) -> None:
        """It has ended."""
        if self._is_connected and (listener := self._listener()) is not None:
            listener.closed(self._session)

    def feed(self, line: str) -> None:
        """Process one line of the log."""
        match = self._pattern.search(line)
        if match is None:
            return
        self._num_seen += 1
        named = match.groupdict()
        number = named.get("step") or (match[1] if match.re.groups and "step" not in named else None)
        step = int(number) if number is not None and number.isdecimal() else self._num_seen
        committed = StepCommitted(epoch=1)
        with suppress(TypeError, ValueError):
            committed = StepCommitted(epoch=1, loss=float(named.get("loss") or ""))
        self._emitter.emit(committed, step=step)
        self._reach(step + 1)

    def _reach(self, step: int) -> None:
        if (listener := self._listener()) is None:
            return
        for phase in sorted({phase for wanted, phase in self._holds if wanted == step}):
            listener.on_message(self._session, At(step, phase))

    def _on_order(self, order: Holds | FromInjector) -> None:
        match order:
            case Begin(handle=handle):
                reason = "steps are read from the log: nothing can be done inside this command's ranks"
                if (listener := self._listener()) is not None:
                    listener.on_message(self._session, Refused(handle, reason))
            case _ if hasattr(order, "holds"):
                self._holds = frozenset(tuple(hold) for hold in order.holds)
