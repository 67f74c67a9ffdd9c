"""Who has connected to one of our servers and has not said the run's token yet: for how long, how many, how much.

Anybody on the machine may connect to a loopback port. So a stranger has a deadline and little room, and where there are
too many of them, the one that has been silent longest is hung up on: whoever is of the run says so at once.
"""

from __future__ import annotations

import asyncio

from mecefo_runtime.system.wire import MAX_HELLO_BYTES, MAX_LINE_BYTES, Message, WireError, decode, token_matches

# Whoever connects says at once who it is.
HELLO_TIMEOUT_SECONDS = 10.0
# More than the ranks that connect in the same moment.
MAX_STRANGERS = 1024
# A reader keeps up to twice as much, until somebody asks for it.
BUFFER_BYTES = MAX_HELLO_BYTES


class Strangers:
    """Those of one server."""

    def __init__(self, token: str) -> None:
        self._token = token
        # The oldest first.
        self._waiting: dict[asyncio.Task[bytes], None] = {}

    async def hello(self, reader: asyncio.StreamReader) -> Message | None:
        """The first message of a connection, with the run's token in it; None of anybody else.

        Raises:
            WireError: it is no message, or too long.
            OSError: the connection has ended, or its deadline has passed.
        """
        reading = asyncio.ensure_future(read_line(reader, MAX_HELLO_BYTES))
        self._waiting[reading] = None
        if len(self._waiting) > MAX_STRANGERS:
            next(iter(self._waiting)).cancel()
        try:
            done, _ = await asyncio.wait({reading}, timeout=HELLO_TIMEOUT_SECONDS)
        finally:
            self._waiting.pop(reading, None)
            reading.cancel()
        if not done or reading.cancelled():
            raise TimeoutError("who connected does not say who it is")
        message = decode(reading.result())
        return message if token_matches(message, self._token) else None


async def read_line(reader: asyncio.StreamReader, max_bytes: int = MAX_LINE_BYTES) -> bytes:
    """The next line with its end; what there was of it, or nothing, where the connection ended.

    As `StreamReader.readline`, but its bound is not what a reader may keep of those who have not been asked yet.

    Raises:
        WireError: it is longer than `max_bytes`.
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
        num_bytes += len(parts[-1])
        if num_bytes > max_bytes:
            raise WireError(f"a line of more than {max_bytes} bytes")
        if is_whole:
            return b"".join(parts)
