"""How the members of an epoch find each other: small values over the control connection, in place of a store."""

from __future__ import annotations

import base64
import socket
import struct
import threading
from collections.abc import Callable
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from mecefo_runtime.comm.messages import Put, Take
from mecefo_runtime.comm.operations import EpochBroken

# Of groups of a few ranks. Each connects to all others: many on few cores take longer, and nobody is lost who does.
FORM_TIMEOUT_SECONDS = 2.0
_FEW_RANKS = 8


def form_timeout_seconds(num_members: int) -> float:
    """How long a rank waits for one of `num_peers` peers while groups are formed."""
    return FORM_TIMEOUT_SECONDS * max(1.0, num_members / _FEW_RANKS)


class PeerValues:
    """What this rank and its peers have published; `changed` is notified, and held, when one is received."""

    def __init__(self, send: Callable[[Put | Take], bool], changed: threading.Condition) -> None:
        self._send = send
        self._changed = changed
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Publish a value for the peers."""
        self._values[key] = value
        self._send(Put(key, base64.b64encode(value).decode()))

    def take(self, key: str, timeout_seconds: float) -> bytes:
        """Wait for a value that a peer publishes.

        Raises:
            EpochBroken: it did not come in time.
        """
        if key not in self._values:
            self._send(Take(key))
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_seconds):
                raise EpochBroken(f"no peer published {key} within {timeout_seconds} s")
            return self._values[key]

    def receive(self, key: str, value: str) -> None:
        """Store what a peer published, as passed on by the coordinator."""
        self._values[key] = base64.b64decode(value)

    def forget(self) -> None:
        """Drop the values of earlier epochs."""
        with self._changed:
            self._values.clear()


class RendezvousStore(Store):
    """The part of a store that gloo and NCCL need: set, get and wait, which waits `timeout_seconds` for a value."""

    def __init__(
        self,
        put: Callable[[str, bytes], None],
        take: Callable[[str, float], bytes],
        timeout_seconds: float = FORM_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__()
        self._put = put
        self._take = take
        self._timeout_seconds = timeout_seconds
        # Of gloo, in this epoch: (address, port). Ranks on different hosts may well have the same port.
        self.listeners: set[tuple[str, int]] = set()

    def set(self, key: str, value: bytes | str) -> None:
        """Publish this rank's value (of gloo: its address) under `key`."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._remember(data)
        self._put(key, data)

    def get(self, key: str) -> bytes:
        """Wait for the value that a peer publishes under `key`."""
        data = self._take(key, self._timeout_seconds)
        self._remember(data)
        return data

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=FORM_TIMEOUT_SECONDS)) -> None:
        """Wait until all `keys` are published."""
        for key in keys:
            self._take(key, timeout.total_seconds())

    def _remember(self, data: bytes) -> None:
        listener = gloo_listener(data)
        if listener is not None:
            self.listeners.add(listener)


def gloo_listener(blob: bytes) -> tuple[str, int] | None:
    """The (address, port) that gloo listens at, from what it publishes.

    Its form: u64 length, host name, u64 length, sockaddr with the port at +2 and the address at +4 (IPv4) or +8 (IPv6).
    None when the blob is something else.
    """
    if len(blob) < 8:
        return None
    (name_length,) = struct.unpack_from("<Q", blob)
    offset = 8 + name_length + 8
    if len(blob) < offset + 4:
        return None
    family, port = struct.unpack_from("<H", blob, offset)[0], struct.unpack_from(">H", blob, offset + 2)[0]
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    begin, size = (offset + 4, 4) if family == socket.AF_INET else (offset + 8, 16)
    packed = blob[begin : begin + size]
    return None if len(packed) < size else (socket.inet_ntop(family, packed), port)
