"""Reports the signals that come to a rank, and changes nothing of what its script does with them.

Python's C handler writes the number of each signal that has a Python handler into a file descriptor, before the Python
handler runs (`signal.set_wakeup_fd`): also where the main thread is in a collective, so that the handler has to wait.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from mecefo_runtime.system.command_records import SignalArrived, SignalsWatched
from mecefo_runtime.system.record import Record

# Notices of schedulers and of people; not those that a process sends itself, or gets for its children.
_REPORTED = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
        signal.SIGABRT,
    }
)
MOST_REPORTED = 64
_NONE = -1


class ArrivedSignals:
    """Those of this process; a script that has its own wake-up descriptor (asyncio in the main thread) keeps it."""

    def __init__(self, report: Callable[[Record], None]) -> None:
        self._report = report
        self._has_begun = False
        self._write_end = _NONE

    def begin(self) -> None:
        """From the first step on: until it trains, a rank may fork, for which a thread is in the way."""
        if self._has_begun:
            return
        self._has_begun = True
        if threading.current_thread() is not threading.main_thread():
            return
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        if (earlier := signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)) != _NONE:
            signal.set_wakeup_fd(earlier)
            os.close(read_end)
            os.close(write_end)
            return
        self._write_end = write_end
        os.register_at_fork(after_in_child=self._abandon)
        threading.Thread(target=self._read, args=(read_end,), daemon=True, name="chaos-signals").start()
        self._report(SignalsWatched())

    def _read(self, read_end: int) -> None:
        left = MOST_REPORTED
        while numbers := os.read(read_end, MOST_REPORTED):
            for number in numbers:
                if number in _REPORTED and left:
                    left -= 1
                    self._report(SignalArrived(signal=signal.Signals(number).name))

    def _abandon(self) -> None:
        """In a fork: its signals are not the rank's."""
        with suppress(OSError, ValueError):
            if (current := signal.set_wakeup_fd(_NONE)) not in (_NONE, self._write_end):
                signal.set_wakeup_fd(current)
