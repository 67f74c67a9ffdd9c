"""`python -m harness.backends.docker.holder NAME`: the first process of a container that holds a node's network.

It has no part in the job: it answers probes, sends them when asked, and starts what delays packets. The node's own
container, which may not touch a network, shares this one's; rules on it are added and removed from here, by the engine.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from chaos.host import python_module
from harness.backends.docker.container import ADDRESS_VARIABLE, report_to_control_server
from harness.network.sock_diag import connections_with, end_connections_with
from mecefo_runtime.system.process import set_name

PROBE_PORT, RATE_PORT = 7707, 7708
_ASKING, _ANSWERING = b"?", b"!"
_NONCE_BYTES = 16
_CHUNK_BYTES = 1 << 16
_COUNT = struct.Struct(">Q")
_SHAPER_TIMEOUT_SECONDS = 30.0


class Holder(asyncio.DatagramProtocol):
    """Answers and asks in the network at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._transport: asyncio.DatagramTransport | None = None
        self._asked: dict[bytes, asyncio.Future[float]] = {}
        self._shapers: list[asyncio.subprocess.Process] = []

    async def open(self) -> None:
        """From now on probes of others are answered."""
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, local_addr=(self._address, PROBE_PORT))
        await asyncio.start_server(_count, self._address, RATE_PORT)

    async def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the question says: `probe` an address, `measure` the rate to it, list or end connections, `shape`."""
        match question["do"]:
            case "probe":
                return await self._probe(str(question["to"]), float(question["timeout_seconds"]))
            case "measure":
                seconds, num_bytes = float(question["timeout_seconds"]), int(question["num_bytes"])
                return {"bytes_per_second": await self._measure(str(question["to"]), num_bytes, seconds)}
            case "connections":
                return {"connections": connections_with(str(question["to"]))}
            case "end":
                return {"connections": end_connections_with(str(question["to"]))}
            case "shape":
                return await self._shape(int(question["queue"]), question["shape"])
        return {"error": f"there is no {question['do']} here"}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        # A selector's is none by inheritance.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """A probe comes, or comes back."""
        assert self._transport is not None
        kind, nonce = data[:1], data[1:]
        if kind == _ASKING:
            self._transport.sendto(_ANSWERING + nonce, addr)
        elif (came := self._asked.get(nonce)) is not None and not came.done():
            came.set_result(time.monotonic())

    def error_received(self, exc: Exception) -> None:
        """A rule that rejects what is sent makes the kernel say so: the probe just does not come back."""

    async def _probe(self, address: str, timeout_seconds: float) -> dict[str, Any]:
        assert self._transport is not None
        nonce = os.urandom(_NONCE_BYTES)
        came = self._asked[nonce] = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        try:
            self._transport.sendto(_ASKING + nonce, (address, PROBE_PORT))
            arrived = await asyncio.wait_for(came, timeout_seconds)
        except TimeoutError:
            return {"reached": False, "round_trip_seconds": None}
        finally:
            del self._asked[nonce]
        return {"reached": True, "round_trip_seconds": arrived - began}

    async def _measure(self, address: str, num_bytes: int, timeout_seconds: float) -> float:
        """Bytes per second to `address` over a TCP connection, until all are there or the time is over."""
        loop = asyncio.get_running_loop()
        with socket.socket() as sender:
            sender.setblocking(False)
            began, num_sent = time.monotonic(), 0
            try:
                async with asyncio.timeout(timeout_seconds):
                    await loop.sock_connect(sender, (address, RATE_PORT))
                    began = time.monotonic()
                    chunk = bytes(_CHUNK_BYTES)
                    while num_sent < num_bytes:
                        part = chunk[: num_bytes - num_sent]
                        await loop.sock_sendall(sender, part)
                        num_sent += len(part)
                    sender.shutdown(socket.SHUT_WR)
                    await loop.sock_recv(sender, _COUNT.size)
                    return num_bytes / (time.monotonic() - began)
            except (TimeoutError, OSError):
                # As much as was acknowledged by now is the answer.
                return max(0, num_sent - _num_unacknowledged(sender)) / (time.monotonic() - began)

    async def _shape(self, queue: int, shape: Mapping[str, Any]) -> dict[str, Any]:
        words = python_module.command("harness.network.shaper", str(os.getpid()), str(queue), json.dumps(shape))
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        self._shapers.append(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_SHAPER_TIMEOUT_SECONDS):
                is_ready = await python_module.has_begun(process.stdout)
        except TimeoutError:
            is_ready = False
        return {} if is_ready else {"error": "the process that delays packets did not start; see the container's log"}


async def _count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell how many bytes came, when no more do."""
    num_bytes = 0
    with suppress(OSError):
        while part := await reader.read(_CHUNK_BYTES):
            num_bytes += len(part)
        writer.write(_COUNT.pack(num_bytes))
    writer.close()


def _num_unacknowledged(sock: socket.socket) -> int:
    """Bytes that the peer's kernel has not acknowledged (SIOCOUTQ, tcp(7))."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


async def _serve(control: socket.socket) -> None:
    holder = Holder(os.environ[ADDRESS_VARIABLE])
    await holder.open()
    reader, writer = await asyncio.open_unix_connection(sock=control)
    tasks: set[asyncio.Task[None]] = set()

    def reply(message: Mapping[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    async def attend(question: dict[str, Any]) -> None:
        try:
            told = await holder.answer(question)
        except OSError as error:
            told = {"error": str(error)}
        reply({"reply": "answer", "id": question["id"], **told})

    reply({"reply": "ready"})
    while line := await reader.readline():
        task = asyncio.create_task(attend(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def main() -> None:
    """Serve until the control server hangs up."""
    # The kernel keeps from a container's first process what it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    set_name("chaos-links")
    asyncio.run(_serve(report_to_control_server(sys.argv[1])))


if __name__ == "__main__":
    main()
