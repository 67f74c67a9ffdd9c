"""`python -m harness.network.prober PARENT_PID HOLDER_PID`: send real packets between the networks that HOLDER holds.

One process for all of them: a socket stays in the namespace in which it was made. Questions come as JSON lines on
standard input, answers go to standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chaos.host.python_module import begin_output
from harness.network.sock_diag import connections_with, end_connections_with
from mecefo_runtime.system.own_network import OwnNetwork
from mecefo_runtime.system.process import die_with_parent

_PORT = 7707
_ASKING, _ANSWERING = b"?", b"!"
_NONCE_BYTES = 16
_CHUNK_BYTES = 1 << 16


class Prober:
    """Sends packets from one network to another and back."""

    def __init__(self, holder_pid: int) -> None:
        self._holder_pid = holder_pid
        self._networks: dict[str, OwnNetwork] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._asked: dict[bytes, asyncio.Future[float]] = {}

    async def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request: `probe`, `measure` a rate, list the `connections`, or `end` them."""
        near, far = (self._network(question[end]) for end in ("from", "to"))
        timeout_seconds = float(question["timeout_seconds"])
        match question["do"]:
            case "probe":
                return await self._probe(near, far, timeout_seconds)
            case "connections":
                with near.entered():
                    return {"connections": connections_with(far.address)}
            case "end":
                with near.entered():
                    return {"connections": end_connections_with(far.address)}
        return {"bytes_per_second": await self._measure(near, far, int(question["num_bytes"]), timeout_seconds)}

    async def _probe(self, near: OwnNetwork, far: OwnNetwork, timeout_seconds: float) -> dict[str, Any]:
        """One packet there and back."""
        # Before the clock runs: the first time they have to be made.
        asking, _ = self._echo(near), self._echo(far)
        nonce = os.urandom(_NONCE_BYTES)
        came = self._asked[nonce] = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        try:
            # A rule that rejects what is sent makes the kernel say so at once.
            with suppress(OSError):
                asking.sendto(_ASKING + nonce, (far.address, _PORT))
            arrived = await asyncio.wait_for(came, timeout_seconds)
        except TimeoutError:
            return {"reached": False, "round_trip_seconds": None}
        finally:
            del self._asked[nonce]
        return {"reached": True, "round_trip_seconds": arrived - began}

    async def _measure(self, near: OwnNetwork, far: OwnNetwork, num_bytes: int, timeout_seconds: float) -> float:
        """Bytes per second over a TCP connection, until all have arrived or the time is over."""
        loop = asyncio.get_running_loop()
        with far.entered():
            listener = socket.create_server((far.address, 0))
        with near.entered():
            sender = socket.socket()
        with listener, sender:
            listener.setblocking(False)
            sender.setblocking(False)
            num_arrived, began = 0, time.monotonic()
            sending: asyncio.Task[None] | None = None
            try:
                async with asyncio.timeout(timeout_seconds):
                    await loop.sock_connect(sender, listener.getsockname())
                    receiver, _ = await loop.sock_accept(listener)
                    with receiver:
                        receiver.setblocking(False)
                        began = time.monotonic()
                        sending = asyncio.create_task(loop.sock_sendall(sender, bytes(num_bytes)))
                        while num_arrived < num_bytes:
                            part = await loop.sock_recv(receiver, _CHUNK_BYTES)
                            if not part:
                                break
                            num_arrived += len(part)
            except (TimeoutError, OSError):
                # As much as came by now is the answer.
                pass
            finally:
                if sending is not None:
                    sending.cancel()
                    with suppress(asyncio.CancelledError, OSError):
                        await sending
            return num_arrived / (time.monotonic() - began)

    def _network(self, end: list[Any]) -> OwnNetwork:
        """The network that the holder has as a descriptor, by one of our own."""
        descriptor, address = int(end[0]), str(end[1])
        if address not in self._networks:
            here = os.open(f"/proc/{self._holder_pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            self._networks[address] = OwnNetwork(here, address)
        return self._networks[address]

    def _echo(self, network: OwnNetwork) -> socket.socket:
        """The socket in `network` that asks and answers there."""
        sock = self._sockets.get(network.address)
        if sock is None:
            with network.entered():
                sock = self._sockets[network.address] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sock.setblocking(False)
                sock.bind((network.address, _PORT))
            asyncio.get_running_loop().add_reader(sock, self._on_packet, sock)
        return sock

    def _on_packet(self, sock: socket.socket) -> None:
        with suppress(OSError):
            data, sender = sock.recvfrom(_CHUNK_BYTES)
            kind, nonce = data[:1], data[1:]
            if kind == _ASKING:
                sock.sendto(_ANSWERING + nonce, sender)
            elif (came := self._asked.get(nonce)) is not None and not came.done():
                came.set_result(time.monotonic())


async def _serve(holder_pid: int) -> None:
    loop, prober = asyncio.get_running_loop(), Prober(holder_pid)
    reader = asyncio.StreamReader()
    begin_output()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()

    async def attend(question: dict[str, Any]) -> None:
        try:
            told = await prober.answer(question)
        except OSError as error:
            told = {"error": str(error)}
        print(json.dumps({"id": question["id"], **told}), flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(attend(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def main() -> None:
    """Until standard input ends."""
    die_with_parent(int(sys.argv[1]))
    asyncio.run(_serve(int(sys.argv[2])))


if __name__ == "__main__":
    main()
