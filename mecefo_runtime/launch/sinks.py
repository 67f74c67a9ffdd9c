"""Where a process's events go: to a collector, or to standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mecefo_runtime.system.events import Event, SocketSink
from mecefo_runtime.system.wire import connect, greet, limit_send_time

CONNECT_TIMEOUT_SECONDS = 5.0


def connect_sink(address: str) -> Callable[[Event], None]:
    """Where events go: to the collector at `address` (`unix:PATH`), or, without one, to standard output."""
    if not address:
        return _print_event
    sock = connect(address, CONNECT_TIMEOUT_SECONDS)
    greet(sock, {"role": "events"})
    sock.settimeout(None)
    limit_send_time(sock)
    return SocketSink(sock)


def _print_event(event: Event) -> None:
    # One write: unbuffered, `print` makes two of it, and between them other ranks may write to the same file.
    sys.stdout.write(f"{event.to_json()}\n")
    sys.stdout.flush()
