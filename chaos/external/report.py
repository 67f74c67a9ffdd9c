"""The events of an external rank, in the form in which the built-in runtime's ranks send them."""

from __future__ import annotations

import atexit
import errno
import functools
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from chaos.external.identity import Identity
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.wire import Guarded, connect, greet, limit_send_time

CONNECT_TIMEOUT_SECONDS = 10.0
LOCK_SECONDS = 2.0
# Steps that follow each other faster are told several at a time: to send costs as much as all else that we do in one.
COLLECT_SECONDS = 0.02


class Report:
    """One rank's events. A collector that is gone, or takes nothing, is given up: training continues."""

    def __init__(self, address: str, identity: Identity, job: str = MAIN_JOB) -> None:
        sock = connect(address, CONNECT_TIMEOUT_SECONDS)
        greet(sock, {"role": "events"})
        sock.settimeout(None)
        limit_send_time(sock)
        self._socket: socket.socket | None = sock
        self._guarded = Guarded(sock)
        self._emitter = Emitter(
            self._take, "rank", job=job, rank=identity.rank, node=identity.node, attempt=identity.attempt
        )
        # Its caller takes the event.
        self._putting_off = self._emitter.with_sink(lambda event: None)
        # As `Event.to_json` writes it: what differs from step to step is put in between.
        head, _, tail = (
            Event("step_committed", "rank", 0.0, 0.0, os.getpid(), identity.attempt, job=job)
            .to_json()
            .partition('"time":0.0,"monotonic":0.0')
        )
        identified = f'"rank":{identity.rank},"node":{identity.node}'
        before, _, after = tail.replace('"rank":null,"node":null', identified).partition('"step":null')
        self._parts = head, before, after.removesuffix("{}}")
        # Appended to and taken from by different threads.
        self._lines: deque[str | Callable[[], str]] = deque()
        self._lock = threading.Lock()
        self._has_lines = threading.Event()
        self._sender: threading.Thread | None = None
        self._is_ending = False
        self._pid = os.getpid()

    def emit(self, record: Record, step: int | None = None, monotonic_seconds: float | None = None) -> None:
        """Emit an event now; it happened at `monotonic_seconds` (CLOCK_MONOTONIC), or now."""
        if self._socket is not None:
            self._emitter.emit(record, step=step, monotonic_seconds=monotonic_seconds)
            self.flush()

    def emit_later(self, make: Callable[[], Record], step: int, now_seconds: float) -> None:
        """Emit what `make` returns, on another thread: it may wait for a device. It happened at `now_seconds`."""
        if self._socket is not None:
            self._lines.append(functools.partial(self._made, make, step, now_seconds))
            self._wake_sender()

    def step_committed(self, step: int, now_seconds: float, figures: Mapping[str, float | int]) -> None:
        """Tell that `step` was committed at `now_seconds` (CLOCK_MONOTONIC), by a thread of its own.

        A figure that is not finite (a loss that is NaN) is written as Python's `json` does.
        """
        if self._socket is None:
            return
        head, before, after = self._parts
        # `inf - inf` and `nan - nan` are NaN.
        fields = ",".join(
            [f'"{name}":{figure if figure - figure == 0 else json.dumps(figure)}' for name, figure in figures.items()]
        )
        when = f'"time":{time.time():.6f},"monotonic":{now_seconds:.6f}'
        self._lines.append(f'{head}{when}{before}"step":{step}{after}{{{fields}}}}}\n')
        self._wake_sender()

    def _wake_sender(self) -> None:
        if not self._has_lines.is_set():
            self._has_lines.set()
        if self._sender is None:
            # Not before: until it trains, a rank may fork.
            self._sender = threading.Thread(target=self._send_lines, daemon=True)
            self._sender.start()
            # A thread that Python ends while it is in torch aborts the process (terminate called ...).
            atexit.register(self._end_sender)

    def flush(self) -> None:
        """Write what is collected into the kernel's buffer, where it outlives this process."""
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            # A signal's handler that ends the process, say, in the middle of this.
            return
        try:
            waiting = [self._lines.popleft() for _ in range(len(self._lines))]
            lines = [line if isinstance(line, str) else line() for line in waiting]
            if self._socket is not None and lines:
                self._guarded.check()
                self._socket.sendall("".join(lines).encode())
        except OSError as error:
            if error.errno == errno.EBADF:
                print(f"chaos: this process is no longer observed: {error.strerror}", file=sys.stderr)
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        finally:
            self._lock.release()

    def _send_lines(self) -> None:
        while self._socket is not None and not self._is_ending:
            self._has_lines.wait()
            self._has_lines.clear()
            self.flush()
            time.sleep(COLLECT_SECONDS)

    def _end_sender(self) -> None:
        """Python is about to end: what comes now is sent with what is flushed."""
        self._is_ending = True
        self._has_lines.set()
        if self._sender is not None and self._pid == os.getpid():
            self._sender.join(LOCK_SECONDS)

    def close(self) -> None:
        """Send what there is, and hang up."""
        self.flush()
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def abandon(self) -> None:
        """Give up this process's copy of the connection, after a fork: the parent continues with it."""
        sock, self._socket = self._socket, None
        if sock is not None:
            os.close(sock.detach())

    def _take(self, event: Event) -> None:
        self._lines.append(event.to_json() + "\n")

    def _made(self, make: Callable[[], Record], step: int, now_seconds: float) -> str:
        """The line of an event that was put off; "" where it cannot be made: the training must not suffer."""
        try:
            event = self._putting_off.emit(make(), step=step, monotonic_seconds=now_seconds)
        except Exception as error:
            print(f"chaos: a step is not observed: {type(error).__name__}: {error}", file=sys.stderr)
            return ""
        return event.to_json() + "\n"
