"""Who has connected to one of our servers and has not said the run's token yet: for how long, how many, how much.

Anybody on the machine may connect to a loopback port. So a stranger has a deadline and little room, and where there are
too many of them, the one that has been silent longest is hung up on: whoever is of the run says so at once.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mecefo_runtime.system.wire import MAX_HELLO_BYTES, MAX_LINE_BYTES, Message, WireError, decode, token_matches

# Whoever connects says at once who it is.
HELLO_TIMEOUT_SECONDS = 10.0
# More than the ranks that connect in the same moment.
MAX_STRANGERS = 1024
# A reader keeps up to twice as much of what nobody has asked for yet.
BUFFER_BYTES = MAX_HELLO_BYTES


class Strangers:
    """Those of one server."""

    def __init__(self, token: str | None = None) -> None:
        """`token`: what the first message has to carry; None: only who may connect can."""
        self._token = token
        # The oldest first.
        self._waiting: dict[asyncio.Task[bytes], None] = {}

    async def hello(self, reader: asyncio.StreamReader, timeout_seconds: float) -> Message:
        """The first message of a connection.

        Only who has said the token in its first `MAX_HELLO_BYTES` may go on: a rank's can be long.

        Raises:
            WireError: it is no message, or too long, or lacks the token.
            OSError: the connection has ended, or its deadline has passed.
        """
        reading = asyncio.ensure_future(read_line(reader, may_go_on=self._has_token))
        self._waiting[reading] = None
        if len(self._waiting) > MAX_STRANGERS:
            next(iter(self._waiting)).cancel()
        try:
            done, _ = await asyncio.wait({reading}, timeout=timeout_seconds)
        finally:
            self._waiting.pop(reading, None)
            reading.cancel()
        if not done or reading.cancelled():
            raise TimeoutError("who connected does not say who it is")
        message = decode(reading.result())
        if self._token is not None and not token_matches(message, self._token):
            raise WireError("a first message without the token")
        return message

    def _has_token(self, begin: bytes) -> bool:
        return self._token is None or self._token.encode() in begin


class StrangerThreads:
    """Those of a server that has a thread for each of its connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The oldest first.
        self._waiting: dict[socket.socket, None] = {}

    @contextmanager
    def waiting(self, sock: socket.socket) -> Iterator[None]:
        """While its first message is waited for."""
        with self._lock:
            self._waiting[sock] = None
            if len(self._waiting) > MAX_STRANGERS:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(sock, None)


async def read_line(
    reader: asyncio.StreamReader,
    max_bytes: int = MAX_LINE_BYTES,
    *,
    may_go_on: Callable[[bytes], bool] = lambda _: True,
) -> bytes:
    """The next line with its end; what there was of it, or nothing, where the connection ended.

    As `StreamReader.readline`, but its bound is not what a reader may keep of those who have not been asked yet. Of a
    line that is longer than that, the first part decides whether it `may_go_on`.

    Raises:
        WireError: it is longer than `max_bytes`, or may not go on.
    """
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        try:
            parts.append(await reader.readuntil(b"\n"))
            is_whole = True
        except asyncio.IncompleteReadError as error:
            parts.append(error.partial)
            is_whole = True
        except asyncio.LimitOverrunError as error:
            parts.append(await reader.readexactly(error.consumed))
            is_whole = False
            if len(parts) == 1 and not may_go_on(parts[0]):
                raise WireError("a long first message without the token") from None
        num_bytes += len(parts[-1])
        if num_bytes > max_bytes:
            raise WireError(f"a line of more than {max_bytes} bytes")
        if is_whole:
            return b"".join(parts)
