"""Whether peers can be reached: checked before groups are formed, and when training is stalled.

gloo takes five time-outs to give up on a blocked peer while a group is being formed (torch 2.11-2.13), and a blocked
operation waits for its own, which is as long as the longest step; a plain connection to every peer tells at once
which peer it is.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby

from mecefo_runtime.comm.operations import EpochBroken
from mecefo_runtime.system.wire import parse_address

PROBE_TIMEOUT_SECONDS = 1.0
# Just before the kernel sends a lost packet again, after a second: else a link that was gone is tried until it is back.
# A slow link answers by then.
STEADY_TIMEOUT_SECONDS = 0.95
# On a link that loses packets, the kernel would try again only after a second.
AGAIN_SECONDS = 0.1
# How often a link is tried to see whether it stays, and how many in a row that are lost say that it was gone meanwhile.
STEADY_EVERY_SECONDS = 0.01
NUM_LOST_IN_A_ROW = 4


class PeersUnreachable(EpochBroken):
    """Some members cannot be reached: `ranks`."""

    def __init__(self, rank: int, ranks: list[int]) -> None:
        super().__init__(f"rank {rank} cannot reach ranks {ranks}")
        self.ranks = ranks


class ProbeServer:
    """Accepts every connection and closes it: being accepted is the answer."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._closed = threading.Event()
        threading.Thread(target=self._serve, name="probe", daemon=True).start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # The end of the server, or only of that connection, or no descriptor is left for it at the moment.
                self._closed.wait(AGAIN_SECONDS)
            else:
                connection.close()

    def close(self) -> None:
        """Stop answering."""
        self._closed.set()
        # shutdown, unlike close alone, wakes the thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def find_unreachable(
    addresses: Mapping[int, str],
    timeout_seconds: float = PROBE_TIMEOUT_SECONDS,
    is_over: Callable[[], bool] = lambda: False,
) -> list[int]:
    """The ranks of `addresses` (rank -> `host:port`) that take no connection within the time, ascending.

    Each is retried until it accepts or refuses. Returns an empty list as soon as `is_over`.
    """
    with selectors.DefaultSelector() as selector:
        attempts = _Attempts(selector, addresses)
        try:
            now = time.monotonic()
            deadline = now + timeout_seconds
            while attempts.unknown:
                attempts.begin()
                again = min(deadline, now + AGAIN_SECONDS)
                # Once at least: this process may not have run since, while its peers answered.
                attempts.take(max(0.0, again - time.monotonic()))
                while attempts.unknown and (remaining := again - time.monotonic()) > 0:
                    attempts.take(remaining)
                if is_over():
                    return []
                if (now := time.monotonic()) >= deadline:
                    break
        finally:
            attempts.close()
    return sorted(set(addresses) - attempts.reached)


def find_unsteady(
    addresses: Mapping[int, str],
    seconds: float,
    is_over: Callable[[], bool] = lambda: False,
    timeout_seconds: float = STEADY_TIMEOUT_SECONDS,
) -> list[int]:
    """The ranks of `addresses` to whom the link was gone for a moment, once or more, while it was tried for `seconds`.

    A rank that lets several connections in a row time out is among them. Returns an empty list as soon as `is_over`.
    """

    async def find() -> list[int]:
        tried = (_is_steady(address, seconds, is_over, timeout_seconds) for address in addresses.values())
        steady = await asyncio.gather(*tried)
        return sorted(rank for rank, stays in zip(addresses, steady, strict=True) if not stays)

    return asyncio.run(find())


async def _is_steady(address: str, seconds: float, is_over: Callable[[], bool], timeout_seconds: float) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    attempts: list[asyncio.Task[bool]] = []
    while clock() < deadline and not is_over():
        attempts.append(asyncio.create_task(_takes_connection(address, timeout_seconds)))
        await asyncio.sleep(STEADY_EVERY_SECONDS)
    taken = await asyncio.gather(*attempts)
    return is_over() or not was_gone(taken)


async def _takes_connection(address: str, timeout_seconds: float) -> bool:
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(*parse_address(address))
    except OSError:
        return False
    writer.close()
    return True


def was_gone(taken: Iterable[bool]) -> bool:
    """Whether so many successive connections timed out that chance is an unlikely cause."""
    return any(not is_taken and len(list(run)) >= NUM_LOST_IN_A_ROW for is_taken, run in groupby(taken))


class _Attempts:
    """Connections under way; of whom nothing is known yet, there may be several."""

    def __init__(self, selector: selectors.BaseSelector, addresses: Mapping[int, str]) -> None:
        self._selector = selector
        self._addresses = addresses
        self.unknown = set(addresses)
        self.reached: set[int] = set()

    def begin(self) -> None:
        for rank in sorted(self.unknown):
            sock = socket.socket()
            sock.setblocking(False)
            if sock.connect_ex(parse_address(self._addresses[rank])) in (0, errno.EINPROGRESS):
                self._selector.register(sock, selectors.EVENT_WRITE, rank)
            else:
                sock.close()
                self.unknown.discard(rank)

    def take(self, timeout_seconds: float) -> None:
        for key, _ in self._selector.select(timeout_seconds):
            sock, rank = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                self.reached.add(rank)
            self.unknown.discard(rank)
            self._selector.unregister(sock)
            sock.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
