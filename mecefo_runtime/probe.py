"""Whether peers can be reached, asked before groups are formed.

gloo takes five time-outs to give up on a blocked peer while a group is being formed (torch 2.11-2.13); a plain
connection to every peer tells it in one, and says which peer it is.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from mecefo_runtime.wire import parse_address

PROBE_TIMEOUT_SECONDS = 0.3


class ProbeDesk:
    """Takes every connection and hangs up: that it was taken is the answer."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, name="probe", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.close()

    def close(self) -> None:
        """Answer no more."""
        # shutdown, unlike close alone, wakes the thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def find_unreachable(addresses: Mapping[int, str], timeout_seconds: float = PROBE_TIMEOUT_SECONDS) -> list[int]:
    """The ranks of `addresses` (rank -> `host:port`) that take no connection within the time, ascending."""
    selector = selectors.DefaultSelector()
    waiting: dict[socket.socket, int] = {}
    reached: set[int] = set()
    try:
        for rank, address in addresses.items():
            sock = socket.socket()
            sock.setblocking(False)
            if sock.connect_ex(parse_address(address)) in (0, errno.EINPROGRESS):
                waiting[sock] = rank
                selector.register(sock, selectors.EVENT_WRITE)
            else:
                sock.close()
        deadline = time.monotonic() + timeout_seconds
        while waiting and (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                sock = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    reached.add(waiting[sock])
                del waiting[sock]
                selector.unregister(sock)
                sock.close()
    finally:
        for sock in waiting:
            sock.close()
        selector.close()
    return sorted(set(addresses) - reached)
