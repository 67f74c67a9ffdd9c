"""`python -m harness.network.shaper PARENT_PID QUEUE SETTINGS`: hold, drop and pace what a firewall rule queues.

For kernels that have no netem, and without root: packets wait in the kernel, and only verdicts on them are sent
(nfnetlink_queue; libnetfilter_queue's documentation). Delays are kept to a fraction of a millisecond. When this process
dies, packets pass as if there were no rule (`--queue-bypass`).
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass, field

from chaos.host.python_module import begin_output
from mecefo_runtime.system.process import die_with_parent

_NETFILTER = 12
_QUEUE = 3 << 8
_PACKET, _VERDICT, _CONFIG = _QUEUE, _QUEUE | 1, _QUEUE | 2
_REQUEST, _ACK = 0x1, 0x4
_ERROR = 2
_COMMAND, _PARAMETERS, _MAX_LENGTH, _MASK, _FLAGS = 1, 2, 3, 4, 5
_BIND, _COPY_PACKET, _LARGE_SEGMENTS = 1, 2, 4
_PACKET_HEADER, _VERDICT_HEADER, _PAYLOAD, _WHOLE_LENGTH = 1, 2, 10, 13
_DROP, _ACCEPT = 0, 1
# Source and destination address end here in an IPv4 header.
_COPIED_BYTES = 20
_MAX_WAITING = 1 << 16
_RECEIVE_BYTES = 1 << 22
# As much as a slow link's own queue would hold before it drops.
BACKLOG_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Settings:
    """What happens to each packet; see `chaos.faults.network.link.SlowLink`."""

    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    loss_ratio: float = 0.0
    rate_bytes_per_second: float | None = None


@dataclass(slots=True)
class Lane:
    """One direction of one link: packets leave it in the order in which they came."""

    settings: Settings
    draw: random.Random
    free_seconds: float = 0.0
    last_seconds: float = field(default=0.0)

    def release_seconds(self, now_seconds: float, num_bytes: int) -> float | None:
        """When a packet that came now may continue; None: never."""
        said = self.settings
        if self.draw.random() < said.loss_ratio:
            return None
        ready_seconds = now_seconds
        if said.rate_bytes_per_second is not None:
            begin_seconds = max(now_seconds, self.free_seconds)
            if begin_seconds - now_seconds > BACKLOG_SECONDS:
                return None
            ready_seconds = self.free_seconds = begin_seconds + num_bytes / said.rate_bytes_per_second
        jitter_seconds = self.draw.uniform(-said.jitter_seconds, said.jitter_seconds)
        self.last_seconds = max(self.last_seconds, ready_seconds + said.delay_seconds + jitter_seconds)
        return self.last_seconds


class Shaper:
    """Serves one queue of this network namespace."""

    def __init__(self, queue: int, settings: Settings) -> None:
        self._queue = queue
        self._settings = settings
        self._lanes: dict[bytes, Lane] = {}
        self._waiting: list[tuple[float, int]] = []
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
        # By this number the kernel tells who serves the queue.
        self._socket.bind((os.getpid(), 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._configure(_COMMAND, struct.pack(">BxH", _BIND, socket.AF_INET))
        self._configure(_PARAMETERS, struct.pack(">IB", _COPIED_BYTES, _COPY_PACKET))
        self._configure(_MAX_LENGTH, struct.pack(">I", _MAX_WAITING))
        self._configure(_FLAGS, struct.pack(">I", _LARGE_SEGMENTS), _MASK, struct.pack(">I", _LARGE_SEGMENTS))

    def serve(self) -> None:
        """For ever."""
        while True:
            timeout = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            if select.select([self._socket], [], [], timeout)[0]:
                self._take()
            now_seconds = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now_seconds:
                self._decide(heapq.heappop(self._waiting)[1], _ACCEPT)

    def _take(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                # More came than we could read: the kernel dropped the rest, as a router would.
                return
            raise
        now_seconds = time.monotonic()
        for kind, body in _messages(data):
            if kind == _PACKET:
                attributes = dict(_attributes(body[4:]))
                (number,) = struct.unpack_from(">I", attributes[_PACKET_HEADER])
                payload = attributes.get(_PAYLOAD, b"")
                whole = attributes.get(_WHOLE_LENGTH)
                num_bytes = struct.unpack(">I", whole)[0] if whole else len(payload)
                self._judge(number, payload[12:20], num_bytes, now_seconds)

    def _judge(self, number: int, ends: bytes, num_bytes: int, now_seconds: float) -> None:
        lane = self._lanes.get(ends)
        if lane is None:
            lane = self._lanes[ends] = Lane(self._settings, random.Random(ends))
        release_seconds = lane.release_seconds(now_seconds, num_bytes)
        if release_seconds is None:
            self._decide(number, _DROP)
        else:
            heapq.heappush(self._waiting, (release_seconds, number))

    def _decide(self, number: int, verdict: int) -> None:
        self._send(_VERDICT, _REQUEST, _attribute(_VERDICT_HEADER, struct.pack(">II", verdict, number)))

    def _configure(self, *attributes: int | bytes) -> None:
        pairs = zip(attributes[::2], attributes[1::2], strict=True)
        body = b"".join(_attribute(int(kind), bytes(value)) for kind, value in pairs)
        self._send(_CONFIG, _REQUEST | _ACK, body)
        for kind, answer in _messages(self._socket.recv(1 << 16)):
            (code,) = struct.unpack_from("=i", answer)
            if kind == _ERROR and code:
                raise OSError(-code, os.strerror(-code))

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        head = struct.pack("=IHHII", 20 + len(body), kind, flags, 0, 0)
        self._socket.send(head + struct.pack(">BBH", socket.AF_UNSPEC, 0, self._queue) + body)


def _messages(data: bytes) -> list[tuple[int, bytes]]:
    found, place = [], 0
    while place + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, place)
        found.append((kind, data[place + 16 : place + length]))
        place += (length + 3) & ~3
    return found


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found, place = [], 0
    while place + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, place)
        found.append((kind & 0x3FFF, data[place + 4 : place + length]))
        place += (length + 3) & ~3
    return found


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def main() -> None:
    """Begin its output when packets can come."""
    die_with_parent(int(sys.argv[1]))
    shaper = Shaper(int(sys.argv[2]), Settings(**json.loads(sys.argv[3])))
    begin_output()
    shaper.serve()


if __name__ == "__main__":
    main()
