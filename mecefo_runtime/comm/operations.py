"""Pending operations between ranks, and waiting for them without the risk of waiting for ever."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

# How often a wait looks whether its epoch was given up.
LOOK_SECONDS = 0.25
# What torch says when a wait of its own, not the operation, took too long.
NOT_YET = "Operation timed out"
# How long a process that ends waits for a group that is being taken down.
_TAKE_DOWN_SECONDS = 2.0
_being_taken_down: list[threading.Thread] = []


class EpochBroken(RuntimeError):
    """A peer is lost or the epoch is over: nothing more can be sent or received in its groups."""


class EpochOver(EpochBroken):
    """The coordinator has called the members out of the epoch."""


@contextmanager
def breaking_epoch() -> Iterator[None]:
    """Turn what gloo raises (plain RuntimeErrors) into EpochBroken.

    The original's traceback keeps the group and its sockets alive, and with them the peers waiting: only its text goes
    on.
    """
    message = None
    try:
        yield
    except EpochBroken:
        raise
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    if message is not None:
        raise EpochBroken(message)


def take_down(groups: list[Any]) -> None:
    """Destroy `groups` on another thread: their destructors wait for operations that their backend has forgotten.

    A process that exits normally waits for them for a while: an interpreter that exits inside a destructor aborts.
    """
    _being_taken_down[:] = [thread for thread in _being_taken_down if thread.is_alive()]
    _being_taken_down.append(threading.Thread(target=groups.clear, name="taking down groups", daemon=True))
    _being_taken_down[-1].start()


@atexit.register
def _wait_for_take_down() -> None:
    for thread in _being_taken_down:
        thread.join(_TAKE_DOWN_SECONDS)


class Work(Protocol):
    """An operation as a backend of torch.distributed knows it."""

    def wait(self, timeout: timedelta) -> bool:
        """Wait for it; raises RuntimeError when it failed or takes longer."""
        ...


class Owner(Protocol):
    """The groups that an operation belongs to."""

    @property
    def waiter(self) -> Waiter:
        """Waits for gloo's messages."""
        ...

    @property
    def timeout(self) -> timedelta:
        """How long an operation may take."""
        ...

    def is_given_up(self) -> bool:
        """Whether the epoch was aborted so long ago that what is still blocked will not hear of it."""
        ...


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that was started. `is_message`: a send or a receive by gloo, whose wait cannot be taken up again.

    `finish` is called by whoever has waited for it, once; operations with one are waited for once.
    """

    work: Work
    owner: Owner
    is_message: bool
    finish: Callable[[], None] | None = None

    def wait(self) -> None:
        """Wait for it.

        Raises:
            EpochBroken: a peer is gone, or the epoch was aborted.
        """
        wait_all((self,))


def wait_all(operations: Iterable[Operation | None]) -> None:
    """Wait for several operations of the same groups.

    Raises:
        EpochBroken: a peer is gone, or the epoch was aborted.
    """
    started = [operation for operation in operations if operation is not None]
    messages = [operation for operation in started if operation.is_message]
    if messages:
        owner = messages[0].owner
        owner.waiter.wait([operation.work for operation in messages], owner.timeout, owner.is_given_up)
    for operation in started:
        if not operation.is_message:
            _wait_in_turns(operation)
        if operation.finish is not None:
            operation.finish()


def _wait_in_turns(operation: Operation) -> None:
    """The wait for anything but a message of gloo may be given up and taken up again."""
    deadline = time.monotonic() + operation.owner.timeout.total_seconds()
    while True:
        message = None
        try:
            operation.work.wait(timedelta(seconds=LOOK_SECONDS))
            return
        except RuntimeError as error:
            message = str(error).splitlines()[0]
        # Outside the except block: a traceback would keep the group alive.
        if NOT_YET not in message or operation.owner.is_given_up() or time.monotonic() > deadline:
            raise EpochBroken(message)


class Waiter:
    """Waits for messages on a separate thread, which can be abandoned.

    gloo (torch 2.11-2.13) forgets a message of which it has read a part when the connection ends:
    `Pair::signalException` in gloo/transport/tcp/pair.cc tells the buffers that wait for their first byte, not the one
    that is being filled. Nothing ends that wait but its time-out, which must be as long as the longest step; and a wait
    for a message that times out closes all connections of its group.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: list[Work] | None = None
        self._timeout = timedelta()
        self._error: str | None = None
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def wait(self, works: list[Work], timeout: timedelta, is_given_up: Callable[[], bool]) -> None:
        """Wait for all of `works`, or until `is_given_up`; after that this waiter cannot be used again.

        Raises:
            EpochBroken: one failed, or they were given up.
        """
        with self._changed:
            if self._is_stopped:
                raise EpochBroken("the epoch is over")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="waiter", daemon=True)
                self._thread.start()
            self._works, self._timeout, self._error = works, timeout, None
            self._changed.notify_all()
            while self._works is not None:
                self._changed.wait(timeout=LOOK_SECONDS)
                if self._works is not None and is_given_up():
                    self._is_stopped = True
                    raise EpochBroken("gloo has forgotten an operation whose connection ended half-way")
            if self._error is not None:
                raise EpochBroken(self._error)

    def stop(self) -> None:
        """End the thread, as soon as it can."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._works is None and not self._is_stopped:
                    self._changed.wait()
                works, timeout = self._works, self._timeout
            if works is None:
                return
            error = None
            try:
                with breaking_epoch():
                    # Each with the time-out of its own: without one it would be that of the group's formation, whatever
                    # `set_timeout` says.
                    for work in works:
                        work.wait(timeout)
            except EpochBroken as broken:
                error = str(broken)
            works = None
            with self._changed:
                self._works, self._error = None, error
                self._changed.notify_all()
