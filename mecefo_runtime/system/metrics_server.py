"""A small HTTP server for `GET /metrics`: OpenMetrics or Prometheus' text format, as the client asks for.

One thread waits for connections and sleeps otherwise; each request has a thread of its own, for as long as it takes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
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
# Who has not sent a request, or not read the answer, by then is hung up on.
REQUEST_TIMEOUT_SECONDS = 2.0
_BACKLOG = 16
_MAX_REQUESTS = 16
_KEPT_ANSWERS = 4


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
        self.host, self.port = self._socket.getsockname()[:2]
        self.served_seconds: deque[float] = deque(maxlen=_KEPT_ANSWERS)
        self._slots = threading.BoundedSemaphore(_MAX_REQUESTS)
        self._requests: set[threading.Thread] = set()
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
        """Stop serving, after requests in progress have been answered. May be called twice."""
        with suppress(OSError):
            # Linux: whoever waits in accept() is woken up by this, not by close().
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        for request in list(self._requests):
            request.join(2 * REQUEST_TIMEOUT_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            self._slots.acquire()
            request = threading.Thread(target=self._serve, args=(connection, address), name="metrics", daemon=True)
            self._requests.add(request)
            request.start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        try:
            # A reader that is gone before it has been answered is its own affair.
            with connection, suppress(OSError):
                _Handler(connection, address, self._answer)
        finally:
            self._requests.discard(threading.current_thread())
            self._slots.release()

    def _answer(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        body = encode(self._registry)
        self.served_seconds.append(time.monotonic())
        return body, content_type


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
    timeout = REQUEST_TIMEOUT_SECONDS

    def __init__(self, request: socket.socket, address: Any, answer: Callable[[str], tuple[bytes, str]]) -> None:
        self._answer = answer
        super().__init__(request, address, None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
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
