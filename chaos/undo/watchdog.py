"""The watchdog: a process apart that undoes what is active when `chaos` dies or is silent for longer than its lease.

It has a session of its own and ignores what a terminal sends, knows only the ledger, and imports no torch. `chaos`
sends it one byte a second over a socket; the end of that connection tells it of its death. It ends when told that
nothing is left to do, or when it has cleaned up after a dead `chaos`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace

from chaos.errors import ChaosError
from chaos.faults import registry
from chaos.undo.heal import heal, undo_pending
from chaos.undo.ledger import read_ledger
from chaos.undo.run_registry import OpenRun
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.process import ProcessId, set_name

ALIVE, CLEAN, READY = b".", b"clean", b"ready"
MAX_MESSAGE_BYTES = 1 << 16
# What cannot be undone now may be undone when somebody lets go of it; after that it is for `chaos heal`.
_HEAL_TIMEOUT_SECONDS = 60.0
_HEAL_RETRY_SECONDS = 0.5


class Watchdog:
    """Watches the `chaos` of one run, which holds the other end of `connection`."""

    def __init__(self, run: OpenRun, connection: socket.socket, lease_seconds: float) -> None:
        self._run = run
        self._connection = connection
        self._lease_seconds = lease_seconds
        # What was undone in this silence.
        self._lapsed: set[int] = set()

    def watch(self) -> bool:
        """Until it is no longer needed; returns whether nothing is left."""
        try:
            descriptor = os.pidfd_open(self._run.chaos.local_pid)
        except ProcessLookupError:
            return self._clean_up()
        try:
            # Opened first: what is alive now is what the descriptor stands for.
            if self._run.chaos.is_running() and self._is_dismissed(descriptor):
                return True
        finally:
            os.close(descriptor)
        return self._clean_up()

    def _is_dismissed(self, descriptor: int) -> bool:
        """Wait until told to go (True) or until `chaos` is dead (False)."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._connection, select.POLLIN)
        self._tell(READY)
        deadline = time.monotonic() + self._lease_seconds
        while True:
            ready = {number for number, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1e3 + 1)}
            if descriptor in ready:
                return False
            if self._connection.fileno() in ready:
                # Whatever was said while this process did not run counts before any deadline.
                message = self._read()
                if message == CLEAN:
                    return True
                if message is None:
                    poll.unregister(self._connection)
                else:
                    self._lapsed.clear()
                    deadline = time.monotonic() + self._lease_seconds
            elif time.monotonic() >= deadline:
                is_done = self._lapse()
                deadline = time.monotonic() + (self._lease_seconds if is_done else _HEAL_RETRY_SECONDS)

    def _lapse(self) -> bool:
        """Undo what is active, leaving it pending; returns whether all of it could be."""
        pending = {entry.incident for entry in read_ledger(self._run.ledger).pending}
        if pending <= self._lapsed:
            return True
        try:
            undoing = undo_pending(self._run, "watchdog", lapse=True)
        except ChaosError as error:
            _log(f"no heartbeat of chaos for {self._lease_seconds:g} s, and nothing can be undone: {error}")
            return False
        _log(f"no heartbeat of chaos for {self._lease_seconds:g} s: {undoing}")
        # Chaos is told once of each incident that was undone while it was silent.
        undone = [one["incident"] for one in undoing.undone if one["incident"] not in self._lapsed]
        self._lapsed |= set(undone)
        if undone:
            self._tell(json.dumps({"lease_seconds": self._lease_seconds, "incidents": undone}).encode())
        return not undoing.failed

    def _clean_up(self) -> bool:
        deadline = time.monotonic() + _HEAL_TIMEOUT_SECONDS
        while True:
            try:
                healed = heal(self._run, "watchdog")
                _log(f"chaos is dead: {json.dumps(to_json(healed))}")
                if healed.is_clean:
                    return True
            except ChaosError as error:
                _log(f"chaos is dead: {error}")
            if time.monotonic() > deadline:
                return False
            time.sleep(_HEAL_RETRY_SECONDS)

    def _read(self) -> bytes | None:
        """The newest thing that was said, None when nobody can say anything any more."""
        message = b""
        while True:
            try:
                received = self._connection.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return message
            except OSError:
                return None
            if received == CLEAN:
                return received
            if not received:
                return message or None
            message = received

    def _tell(self, message: bytes) -> None:
        with suppress(OSError):
            self._connection.send(message)


def _log(text: str) -> None:
    sys.stderr.write(f"{time.time():.3f} {text}\n")
    sys.stderr.flush()


def main() -> None:
    """`python -m chaos.undo.watchdog DESCRIPTOR LEASE_SECONDS RUN`: RUN is an open run as JSON, stderr a log."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    set_name("chaos-watchdog")
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.setblocking(False)
    run = OpenRun.from_json(sys.argv[3])
    run = replace(run, watchdog=ProcessId.of(os.getpid()))
    # All that an undo needs is in memory before there is anything to undo; and no folder is kept busy.
    registry()
    os.chdir("/")
    try:
        is_clean = Watchdog(run, connection, float(sys.argv[2])).watch()
    except Exception:
        traceback.print_exc()
        is_clean = False
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
