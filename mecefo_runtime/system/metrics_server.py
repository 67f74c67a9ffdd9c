"""A small HTTP server for `GET /metrics`: OpenMetrics or Prometheus' text format, as the client asks for.

One thread waits for connections and sleeps otherwise; each request has a thread of its own, for as long as it takes,
which is at most `REQUEST_TIMEOUT_SECONDS`, however slowly its client sends or reads.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

PATH = "/metrics"
# For somebody who opens the address in a browser.
_START_PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Metrics of a run of chaos</title>
<h1>Metrics of a run of chaos</h1>
<p><a href="{PATH}">{PATH}</a>: the metrics, for Prometheus.</p></html>
"""
# Who has not sent the whole request, and read the whole answer, by then is hung up on.
REQUEST_TIMEOUT_SECONDS = 2.0
# A request's first line and its headers.
MAX_REQUEST_BYTES = 1 << 16
MAX_REQUESTS = 16
_BACKLOG = 16
_KEPT_ANSWERS = 4
_CHUNK_BYTES = 1 << 14
# In all, for answers that are on their way when serving ends: who reads as Prometheus does has them long before.
FAREWELL_SECONDS = 0.5
# After an accept that failed: of want of descriptors, most often, which comes and goes.
_PAUSE_SECONDS = 0.1
_END_OF_HEADERS = (b"\r\n\r\n", b"\n\n")


class MetricsServer:
    """Serves what `collector` has, on `host` and `port` (0: a free one), from `start` to `close`.

    It has its own registry, without prometheus_client's default metrics of the process. `served_seconds` are the
    times of the newest answers (CLOCK_MONOTONIC).
    """

    def __init__(self, collector: Collector, host: str, port: int = 0) -> None:
        """Listen.

        Raises:
            OSError: the address is in use, or is none of this machine's.
        """
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.host, self.port = self._socket.getsockname()[:2]
        self.served_seconds: deque[float] = deque(maxlen=_KEPT_ANSWERS)
        self._lock = threading.Lock()
        # The oldest first; `_answered` are those whose request has come.
        self._open: dict[threading.Thread, socket.socket] = {}
        self._answered: set[threading.Thread] = set()
        self._is_over = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._accept, name="metrics", daemon=True)

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def interval_seconds(self) -> float | None:
        """The shortest interval at which it was scraped; None before a client has come back twice."""
        times = tuple(self.served_seconds)
        return max(later - earlier for earlier, later in pairwise(times)) if len(times) > 2 else None

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving. May be called twice.

        Who has not sent a whole request is hung up on, and so is who has not read the answer in `FAREWELL_SECONDS`.
        """
        if self._is_over.is_set():
            return
        self._is_over.set()
        with suppress(OSError):
            os.write(self._wake_writer, b"x")
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        deadline = time.monotonic() + FAREWELL_SECONDS
        with self._lock:
            answered = list(self._answered)
            for request, connection in self._open.items():
                if request not in answered:
                    _hang_up(connection)
        for request in answered:
            request.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for connection in self._open.values():
                _hang_up(connection)

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while not self._is_over.is_set():
            try:
                poll.poll()
                if self._is_over.is_set():
                    return
                connection, address = self._socket.accept()
            except OSError:
                # Whoever came has gone again, or there is no descriptor for it: neither is the end of serving.
                self._is_over.wait(_PAUSE_SECONDS)
                continue
            try:
                self._begin(connection, address)
            except RuntimeError:
                # No thread can be started now.
                connection.close()

    def _begin(self, connection: socket.socket, address: Any) -> None:
        request = threading.Thread(target=self._serve, args=(connection, address), name="metrics", daemon=True)
        with self._lock:
            if len(self._open) >= MAX_REQUESTS:
                # The oldest has had its time: who reads at once is never among so many.
                oldest = next(iter(self._open))
                _hang_up(self._open.pop(oldest))
            self._open[request] = connection
        try:
            request.start()
        except RuntimeError:
            with self._lock:
                self._open.pop(request, None)
            raise

    def _serve(self, connection: socket.socket, address: Any) -> None:
        deadline = time.monotonic() + REQUEST_TIMEOUT_SECONDS
        try:
            # A reader that is gone before it has been answered is its own affair.
            with connection, suppress(OSError):
                asked = _receive_request(connection, deadline)
                if asked is None:
                    return
                with self._lock:
                    self._answered.add(threading.current_thread())
                _send(connection, _Handler(asked, address, self._answer).answer, deadline)
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)
                self._answered.discard(threading.current_thread())

    def _answer(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        body = encode(self._registry)
        self.served_seconds.append(time.monotonic())
        return body, content_type


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _receive_request(connection: socket.socket, deadline: float) -> bytes | None:
    """A request up to the end of its headers; None where its client hung up, or sends more than there may be.

    Raises:
        OSError: it did not come before the deadline.
    """
    received = bytearray()
    while not any(end in received for end in _END_OF_HEADERS):
        if len(received) > MAX_REQUEST_BYTES:
            return None
        connection.settimeout(_left(deadline))
        chunk = connection.recv(_CHUNK_BYTES)
        if not chunk:
            # Whoever sends no more may still read: of HTTP/0.9 a request has no headers.
            break
        received += chunk
    return bytes(received) or None


def _send(connection: socket.socket, answer: bytes, deadline: float) -> None:
    left = memoryview(answer)
    while left:
        connection.settimeout(_left(deadline))
        left = left[connection.send(left[:_CHUNK_BYTES]) :]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the request takes too long")
    return left


def split_address(text: str) -> tuple[str, int]:
    """`HOST`, `HOST:PORT` or `[IPv6]:PORT` as (host, port); the port is 0 where none is named.

    Raises:
        ValueError: the port is none.
    """
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not port:
        return host, 0
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"{port!r} is no port: a number from 1 to 65535")
    return host, int(port)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, both in memory: nobody is waited for here."""

    def __init__(self, asked: bytes, address: Any, answer: Callable[[str], tuple[bytes, str]]) -> None:
        self._answer = answer
        self._asked = asked
        super().__init__(None, address, None)  # type: ignore[arg-type]

    @property
    def answer(self) -> bytes:
        """All that is to be sent."""
        return self._written.getvalue()

    def setup(self) -> None:
        """See `socketserver.BaseRequestHandler`."""
        self._written = BytesIO()
        # The base wants a file that it can write to and flush.
        self.rfile, self.wfile = BytesIO(self._asked), self._written

    def finish(self) -> None:
        """Whoever made this sends what was written."""

    def do_GET(self) -> None:
        self.close_connection = True
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(HTTPStatus.OK, _START_PAGE.encode(), "text/html; charset=utf-8")
            return
        if path != PATH:
            self._send(
                HTTPStatus.NOT_FOUND, f"not found; the metrics are at {PATH}\n".encode(), "text/plain; charset=utf-8"
            )
            return
        try:
            body, content_type = self._answer(self.headers.get("Accept", ""))
        except Exception as error:
            # Said to whoever reads, never to the process that is read: it has better things to do.
            text = f"{type(error).__name__}: {error}\n"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, text.encode(), "text/plain; charset=utf-8")
            return
        self._send(HTTPStatus.OK, body, content_type)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """The value of the `Server` header."""
        return "mecefo-chaos"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error belongs to the run."""
