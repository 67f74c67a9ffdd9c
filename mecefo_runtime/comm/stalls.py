"""Flapping links: every probe reaches the peer, and yet data that was sent before does not arrive.

TCP waits twice as long before each further attempt, so that it can miss every time in which the link is up. The
kernel tells how long each connection has been waiting (TCP_INFO, tcp(7)). A peer that computes for long, or is slow,
is not affected: its kernel acknowledges.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from mecefo_runtime.comm.sockets import open_sockets
from mecefo_runtime.system.wire import parse_address

# Of struct tcp_info (linux/tcp.h): the first eight bytes and thirteen numbers of 32 bits, and the places in them.
_TCP_INFO = struct.Struct("=8B13I")
_PROBES, _BACKOFF, _TIMEOUT_MICROSECONDS, _UNACKNOWLEDGED, _LAST_SENT_MILLISECONDS = 3, 4, 8, 12, 17
# Where one packet in twenty is lost, each way, so many further attempts are lost too once in ten thousand times.
NUM_ATTEMPTS_IN_VAIN = 3


@dataclass(frozen=True, slots=True)
class Waiting:
    """Unacknowledged data of a connection: since when it has been waiting, and how often it was resent."""

    seconds: float
    num_attempts: int

    @classmethod
    def of(cls, sock: socket.socket) -> Waiting | None:
        """The unacknowledged data of a connection; None when there is none, or it has been sent only once.

        Raises:
            OSError: it is no TCP connection.
        """
        return cls.parse(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))

    @classmethod
    def parse(cls, info: bytes) -> Waiting | None:
        """The same, from the kernel's TCP_INFO."""
        told = _TCP_INFO.unpack(info)
        timeout_seconds = told[_TIMEOUT_MICROSECONDS] / 1e6
        # Each time-out is twice the one before. The kernel tells the one that runs now, but for what it could not even
        # send once (a rule at this end): of that, the first.
        if told[_UNACKNOWLEDGED]:
            num_attempts = told[_BACKOFF]
            over_seconds = timeout_seconds * (1 - 0.5**num_attempts)
        else:
            num_attempts = told[_PROBES]
            over_seconds = timeout_seconds * (2.0**num_attempts - 1)
        return cls(over_seconds + told[_LAST_SENT_MILLISECONDS] / 1e3, num_attempts) if num_attempts else None


def find_stalled(peers: Mapping[int, str], own_host: str, seconds: float) -> list[int]:
    """The ranks of `peers` (rank -> `host:port`) whose host has acknowledged nothing on a connection for `seconds`.

    Ascending. To peers on this rank's own host there is no link.
    """
    hosts = {host for host in map(_host, peers.values()) if host != own_host}
    stalled = set()
    for sock in open_sockets() if hosts else ():
        with suppress(OSError):
            if (host := _peer_host(sock)) in hosts and is_stalled(Waiting.of(sock), seconds):
                stalled.add(host)
    return sorted(rank for rank, address in peers.items() if _host(address) in stalled)


def is_stalled(waiting: Waiting | None, seconds: float) -> bool:
    """Whether it has waited for `seconds`, and not merely because one or two packets were lost."""
    return waiting is not None and waiting.seconds >= seconds and waiting.num_attempts >= NUM_ATTEMPTS_IN_VAIN


def _host(address: str) -> str:
    return parse_address(address)[0]


def _peer_host(sock: socket.socket) -> str | None:
    is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    return str(sock.getpeername()[0]) if is_tcp else None
