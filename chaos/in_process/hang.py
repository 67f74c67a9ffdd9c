"""A rank whose training thread keeps Python's interpreter lock: the process exists, and nothing in it runs."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from typing import Any

from chaos.in_process.base import InProcessFault, InProcessFaultRefused

# The witness's thread is called so, and a running number: what other threads can still do shows from outside.
WITNESS_NAME = "gil-witness"
PULSE_SECONDS = 0.02
_PR_SET_NAME = 15
# struct pollfd: the descriptor, the events asked for, the events found (poll(2)).
_POLLFD = "ihh"


class HangGil(InProcessFault):
    """Waits in C, with the interpreter lock held, until the gate is opened or the time is up.

    Arguments: `gate`, a FIFO that the injector holds open: whatever is written to it ends the wait, and so does the
    injector's end; `at_most_seconds`, after which the kernel ends the wait by itself.

    A witness, a Python thread of its own, changes its name as often as it can: `gil-witness 17`. It ends after the
    wait.
    """

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Open the gate, and start the witness."""
        try:
            self._gate = os.open(str(self.arguments["gate"]), os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise InProcessFaultRefused(f"the gate that ends the wait cannot be opened: {error.strerror}") from error
        self._is_over, has_begun = threading.Event(), threading.Event()
        self._witness = threading.Thread(target=self._pulse, args=(has_begun,), daemon=True)
        self._witness.start()
        has_begun.wait()
        return {"witness": self._witness.native_id}

    def _pulse(self, has_begun: threading.Event) -> None:
        # With the lock released or not makes no difference to so short a call.
        set_name = ctypes.PyDLL(None).prctl
        number = 0
        while not self._is_over.is_set():
            number += 1
            set_name(_PR_SET_NAME, f"{WITNESS_NAME} {number % 1000}".encode(), 0, 0, 0)
            has_begun.set()
            time.sleep(PULSE_SECONDS)

    def released(self) -> None:
        """The wait. PyDLL, unlike CDLL, keeps the interpreter lock during a call."""
        poll = ctypes.PyDLL(None).poll
        ends_seconds = time.monotonic() + float(self.arguments["at_most_seconds"])
        found = 0
        # A signal with a handler breaks it off.
        while found <= 0 and (left_seconds := ends_seconds - time.monotonic()) > 0:
            watched = ctypes.create_string_buffer(struct.pack(_POLLFD, self._gate, select.POLLIN, 0))
            found = poll(watched, 1, max(1, int(left_seconds * 1000)))
        self._end()

    def lift(self) -> dict[str, Any]:
        """Nothing is left of it, whether it has waited or not."""
        self._end()
        return {}

    def _end(self) -> None:
        self._is_over.set()
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
