"""The control connection: JSON objects, one a line, over a stream socket whose first line carries the run's token.

Ours rather than a store's, because a store call on a training thread can hang without bound when the store's host
freezes (seen with TCPStore); here every read and write has a deadline. Nothing that comes in is ever unpickled.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Any

from mecefo_runtime.system.clocks import greeting
from mecefo_runtime.system.json_values import loads
from mecefo_runtime.system.process import ProcessId

Message = dict[str, Any]
# A layout of thousands of ranks fits; a peer that sends more is not one of ours.
MAX_LINE_BYTES = 1 << 24
# Of a stranger, who has not said the token yet.
MAX_HELLO_BYTES = 1 << 16
SEND_TIMEOUT_SECONDS = 5.0
# A peer that acknowledges nothing for so long is gone, or its link is: the kernel would go on for a quarter of an hour.
ACKNOWLEDGE_SECONDS = 2.0
# Sent by the collector of a run to a process with another clock (`greet`): a question for its time, and the end.
CLOCK_ASKED, CLOCK_KNOWN = b"?\n", b".\n"
UNIX = "unix:"
LOOPBACK = "127.0.0.1"


# struct ucred: pid, uid, gid (unix(7)).
_CREDENTIALS = struct.Struct("=iII")


class WireError(ConnectionError):
    """The connection has ended, or what the peer sent is not a message."""


def encode(message: Message) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read one line.

    Raises:
        WireError: it is no JSON object.
    """
    try:
        message = loads(line)
    except ValueError as error:
        raise WireError(f"not a message: {error}") from error
    if not isinstance(message, dict):
        raise WireError("not a message: a JSON object is expected")
    return message


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected over a Unix socket; pid 0: this process's namespace does not see it."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def token_matches(message: Message, token: str) -> bool:
    """Whether a first message carries the run's token, compared in constant time."""
    # What JSON lets through is not always text that can be encoded.
    told = str(message.get("token", "")).encode(errors="replace")
    return hmac.compare_digest(told, token.encode())


def parse_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def connect(address: str, timeout_seconds: float) -> socket.socket:
    """A stream socket connected to `host:port`, or to `unix:` and a path; the time-out stays set.

    Raises:
        OSError: nobody answers within the time.
    """
    if not address.startswith(UNIX):
        sock = socket.create_connection(parse_address(address), timeout=timeout_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(ACKNOWLEDGE_SECONDS * 1000))
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_seconds)
        sock.connect(address.removeprefix(UNIX))
    except OSError:
        sock.close()
        raise
    return sock


class Guarded:
    """A descriptor and the socket that it referred to at first: its number may have been reused for another file."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._identity = self._now()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._socket.fileno())
        return status.st_dev, status.st_ino

    def check(self) -> None:
        """See that it still is; else the number is left to whom it belongs.

        Raises:
            OSError: it is closed, or another one by now.
        """
        try:
            is_same = self._now() == self._identity
        except OSError:
            is_same = False
        if not is_same:
            self._socket.detach()
            raise OSError(errno.EBADF, "its descriptor was closed by somebody else")


class Connection:
    """A blocking connection that one thread reads and any thread may write."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._guarded = Guarded(sock)
        self._reader = sock.makefile("rb")
        self._rest = b""
        self._lock = threading.Lock()

    @classmethod
    def open(cls, address: str, hello: Message, timeout_seconds: float, *, is_of_run: bool = False) -> Connection:
        """Connect and send `hello`; `is_of_run`: the peer is the collector of a run, see `greet`.

        Raises:
            OSError: nobody answers within the time.
        """
        sock = connect(address, timeout_seconds)
        if is_of_run:
            try:
                greet(sock, hello)
            except OSError:
                sock.close()
                raise
        connection = cls(sock)
        if not is_of_run:
            connection.send(hello)
        sock.settimeout(None)
        limit_send_time(sock)
        return connection

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._socket.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """From now on, abort operations that take longer than `seconds`: afterwards the connection is unusable.

        None: wait for as long as it takes, but to send.
        """
        self._socket.settimeout(seconds)
        if seconds is None:
            limit_send_time(self._socket)

    def send(self, message: Message) -> None:
        """Send one message; when this returned, the kernel has all of it.

        Raises:
            OSError: the peer is gone, or took nothing for `SEND_TIMEOUT_SECONDS`.
        """
        self._write(encode(message))

    def send_line(self, line: str) -> None:
        """Send one line that is JSON already."""
        self._write(line.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._guarded.check()
            self._socket.sendall(data)

    def send_bytes(self, content: memoryview) -> None:
        """Send bytes that the last message announced.

        Raises:
            OSError: the peer is gone, or took nothing for `SEND_TIMEOUT_SECONDS`.
        """
        with self._lock:
            self._guarded.check()
            self._socket.sendall(content)

    def receive_into(self, memory: memoryview) -> None:
        """Fill `memory` with bytes that the last message announced.

        Raises:
            WireError: the connection ended before.
        """
        num_read = 0
        while num_read < len(memory):
            try:
                read = self._reader.readinto(memory[num_read:])
            except (OSError, ValueError) as error:
                raise WireError(str(error)) from error
            if not read:
                raise WireError("connection closed")
            num_read += read

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            WireError: the connection ended.
        """
        try:
            self._guarded.check()
            line = self._reader.readline(MAX_LINE_BYTES)
        except (OSError, ValueError) as error:
            raise WireError(str(error)) from error
        if not line.endswith(b"\n"):
            raise WireError("connection closed")
        return decode(line)

    def receive_hello(self, timeout_seconds: float) -> Message:
        """The first message of who has just connected: all of it within the time, and short.

        Raises:
            WireError: it is not.
        """
        deadline = time.monotonic() + timeout_seconds
        line = b""
        try:
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or len(line) > MAX_HELLO_BYTES:
                    raise WireError("who connected does not say who it is")
                self._socket.settimeout(left)
                # What follows the line stays for `receive`.
                came = self._reader.peek()
                if not came:
                    raise WireError("connection closed")
                line += self._reader.read(came.find(b"\n") + 1 or len(came))
        except (OSError, ValueError) as error:
            raise error if isinstance(error, WireError) else WireError(str(error)) from error
        return decode(line)

    def receive_some(self) -> list[Message]:
        """All messages that are there, waiting only for the first bytes; for those who wait with a selector.

        It does not mix with `receive`, which keeps what it has read beyond its line where no selector sees it.

        Raises:
            WireError: the connection ended.
        """
        try:
            data = self._reader.read1(MAX_LINE_BYTES)
        except (OSError, ValueError) as error:
            raise WireError(str(error)) from error
        if not data:
            raise WireError("connection closed")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [decode(line) for line in lines]

    def abandon(self) -> None:
        """Close this process's copy of the descriptor alone: after a fork, the connection is the parent's."""
        descriptor = self._socket.detach()
        if descriptor >= 0:
            os.close(descriptor)

    def close(self) -> None:
        """End the connection in both directions; a thread that reads it wakes up."""
        try:
            self._guarded.check()
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # Already gone: what we wanted.
            return
        finally:
            self._socket.close()


def greet(sock: socket.socket, hello: Message) -> None:
    """Send `hello` to the collector of a run; if this process has another clock, answer the questions for its time.

    Raises:
        OSError: the collector is gone, or breaks the protocol.
    """
    more = greeting(os.environ)
    if more:
        more["start_ticks"] = ProcessId.of(os.getpid()).start_ticks
    sock.sendall(encode({**hello, **more}))
    while more:
        # No byte more: what follows the last of them is not for this function.
        asked = b""
        while len(asked) < len(CLOCK_ASKED) and (part := sock.recv(len(CLOCK_ASKED) - len(asked))):
            asked += part
        if asked == CLOCK_KNOWN:
            return
        if asked != CLOCK_ASKED:
            raise WireError("the collector does not ask for the time")
        sock.sendall(f"{time.monotonic():.9f}\n".encode())


def limit_send_time(sock: socket.socket) -> None:
    """Bound every blocking send on `sock` by `SEND_TIMEOUT_SECONDS`, whatever its receive side does."""
    seconds = int(SEND_TIMEOUT_SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds.to_bytes(8, "little") + bytes(8))


def new_token() -> str:
    """A fresh secret for one run."""
    return os.urandom(16).hex()
