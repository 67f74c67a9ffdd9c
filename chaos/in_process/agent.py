"""The agent inside a rank: it is told where to hold the rank, and holds it there until it is released.

At its start the injector tells it all (step, phase) at which this rank is to be held. An announcement that is not
among them is one look-up in a set; one that is goes out over a local socket, and the rank waits there while the
injector acts, from outside or through the agent (an `InProcessFault`).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from chaos.in_process.protocol import (
    At,
    Began,
    Begin,
    Call,
    Came,
    FromAgent,
    FromInjector,
    Hold,
    Lift,
    Lifted,
    Refused,
    Release,
    Report,
    Start,
    from_injector,
    read_holds,
    to_wire,
)
from chaos.language.save_moment import OPEN_MOMENTS
from chaos.language.trigger import OPEN_PHASES
from mecefo_runtime.system.wire import Connection, Message, WireError

if TYPE_CHECKING:
    from chaos.in_process.base import InProcessFault, Subject

CONNECT_TIMEOUT_SECONDS = 10.0
# A phase that came in as many steps in a row is reported again only after a step without it.
STEADY_STEPS = 3
_OPEN = frozenset({*OPEN_PHASES, *OPEN_MOMENTS})


class Agent:
    """One rank's agent; `announce` is called on the training thread before every phase.

    Of a node's snapshot process, whose `rank` is None, see `SnapshotAgent`.
    """

    def __init__(self, address: str, *, rank: int | None, node: int, attempt: int, **more: int) -> None:
        """`more` is said with the rest of who this is: an external job's ranks are known from nowhere else."""
        hello: Message = {"role": "agent", "rank": rank, "node": node, "attempt": attempt, **more}
        hello["pid"] = os.getpid()
        self._connection: Connection | None = Connection.open(address, hello, CONNECT_TIMEOUT_SECONDS, is_of_run=True)
        self._inbox: queue.SimpleQueue[FromInjector | None] = queue.SimpleQueue()
        self._effects: dict[int, InProcessFault] = {}
        self._subject: Subject | None = None
        self._holds: set[tuple[int, str]] = set()
        # Phases of which nobody knows the step: whenever they come, from a step on.
        self._open_holds: dict[str, int] = {}
        self._is_called = False
        # By phase: the last of the newest steps in a row in which it came, and their number as far as it is reported.
        self._runs: dict[str, list[int]] = {}
        # How many effects have begun in this rank.
        self.num_begun = 0
        # What is to be told before the rank is held, and perhaps killed there.
        self.before_hold: Callable[[], None] = lambda: None
        # Before the first step, so that no announcement can come too early to be held.
        answer = read_holds(self._connection.receive())
        self._set_holds(answer.holds)
        # The state of the run at this start, where the hello asked for it.
        self.start: Start | None = answer.start
        self._reader: threading.Thread | None = None
        # Whether an announcement has anything to do but to look up its (step, phase).
        self._is_alert = True
        self._start(self._connection)

    def _start(self, connection: Connection) -> None:
        """Not before the first announcement: until it trains, a rank may fork."""

    def _start_reader(self, connection: Connection) -> None:
        self._reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
        self._reader.start()

    def expose(self, subject: Subject) -> None:
        """What effects can reach from now on."""
        self._subject = subject
        for effect in list(self._effects.values()):
            effect.exposed(subject)

    def abandon(self) -> None:
        """Give up this process's copy of the connection, after a fork: the parent continues with it."""
        connection, self._connection = self._connection, None
        self._holds, self._open_holds, self._is_alert = set(), {}, False
        if connection is not None:
            connection.abandon()

    def announce(self, step: int, phase: str) -> None:
        """Wait here if the injector wants this rank held at (step, phase)."""
        run = self._runs.get(phase)
        if run is not None and run[0] == step - 1 and run[1] == STEADY_STEPS:
            run[0] = step
        else:
            self._note(step, phase, run)
        if self._is_alert or (step, phase) in self._holds:
            self._attend(step, phase)

    def announce_moment(self, step: int, moment: str, told: Mapping[str, Any]) -> None:
        """As `announce`, of a moment within a save (`chaos.language.save_moment`); `told` is the state of the save."""
        if not self._is_wanted_moment(step, moment):
            return
        if self._reader is None and self._connection is not None:
            self._start_reader(self._connection)
        while not self._inbox.empty():
            self._obey(self._inbox.get())
        if self._is_wanted_moment(step, moment):
            self._hold(step, moment, told)
        # The reader's mark may have been taken with the message.
        self._is_alert = True

    def _is_wanted_moment(self, step: int, moment: str) -> bool:
        since = self._open_holds.get(moment)
        return (step, moment) in self._holds or (since is not None and step >= since)

    def _note(self, step: int, phase: str, run: list[int] | None) -> None:
        """Report that the phase came, unless that is known: a trigger elsewhere is explained with it."""
        if phase in OPEN_PHASES or (run is not None and run[0] == step):
            return
        if run is None or run[0] != step - 1:
            self._runs[phase] = [step, 1]
            self._send(Came(step, phase, ended=None if run is None else run[0]))
            return
        run[0] = step
        run[1] += 1
        self._send(Came(step, phase, is_steady=run[1] == STEADY_STEPS))

    def _attend(self, step: int, phase: str) -> None:
        if self._reader is None and self._connection is not None:
            # Not before: until it trains, a rank may fork.
            self._start_reader(self._connection)
        for effect in list(self._effects.values()):
            effect.announced(step, phase)
        while not self._inbox.empty():
            self._obey(self._inbox.get())
        if self._is_wanted(step, phase):
            self._hold(step, phase)
        self._is_alert = bool(self._effects or self._open_holds or self._is_called)
        if not self._inbox.empty():
            # Came in meanwhile; the reader's own mark may just have been overwritten.
            self._is_alert = True

    def _is_wanted(self, step: int, phase: str) -> bool:
        since = self._open_holds.get(phase)
        return self._is_called or (step, phase) in self._holds or (since is not None and step >= since)

    def _hold(self, step: int, phase: str, told: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._is_called = False
        self.before_hold()
        if not self._send(At(step, phase, told.get("path"), told.get("num_bytes"))):
            return
        began: list[int] = []
        while True:
            message = self._inbox.get()
            if isinstance(message, Begin):
                began += [message.handle] if self._begin(message, step, phase) else []
                continue
            self._obey(message)
            if message is None or isinstance(message, Release):
                break
        for handle in began:
            # Unless it was lifted meanwhile.
            if handle in self._effects:
                self._effects[handle].released()

    def _obey(self, message: FromInjector | None) -> None:
        if message is None:
            # Without an injector there is nothing to wait for, and nobody else to end what it began.
            self._connection = None
            self._holds, self._open_holds = set(), {}
            for handle in list(self._effects):
                self._effects.pop(handle).lift()
            return
        match message:
            case Call():
                self._is_called = True
            case Release(holds):
                self._set_holds(holds)
            case Lift(handle):
                effect = self._effects.pop(handle, None)
                self._send(Lifted(handle, effect.lift() if effect is not None else {"gone": True}))

    def _begin(self, message: Begin, step: int, phase: str) -> bool:
        from chaos.in_process.base import InProcessFaultRefused

        handle = message.handle
        module, _, name = message.effect.partition(":")
        try:
            # Not by `importlib`: this module, and what it imports, may have private names (`chaos.host.private_names`).
            effect: InProcessFault = getattr(__import__(module, fromlist=[name]), name)(
                message.arguments, self._subject, lambda told: self._report(handle, told)
            )
            told = effect.begin(step, phase)
        except InProcessFaultRefused as refusal:
            self._send(Refused(handle, str(refusal)))
            return False
        except Exception as error:
            # The rank must not die of a fault that did not happen.
            self._send(Refused(handle, f"{type(error).__name__}: {error}"))
            return False
        self._effects[handle] = effect
        self.num_begun += 1
        self._send(Began(handle, told))
        return True

    def _report(self, handle: int, told: Mapping[str, Any]) -> None:
        self._send(Report(handle, dict(told)))

    def _set_holds(self, holds: Iterable[Hold]) -> None:
        self._holds = {(step, phase) for step, phase in holds if phase not in _OPEN and step is not None}
        self._open_holds = {}
        for step, phase in holds:
            if phase in _OPEN:
                self._open_holds[phase] = min(step or 0, self._open_holds.get(phase, step or 0))

    def _send(self, message: FromAgent) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.send(to_wire(message))
        except OSError:
            # The reader finds the same and says so.
            return False
        return True

    def _read(self, connection: Connection) -> None:
        while True:
            message: FromInjector | None = None
            with suppress(WireError):
                message = from_injector(connection.receive())
            self._inbox.put(message)
            self._is_alert = True
            if message is None:
                return
