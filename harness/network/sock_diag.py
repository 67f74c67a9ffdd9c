"""TCP connections of a network namespace, listed and ended by the kernel (sock_diag(7)).

Rather than the `ss` command: it need not be installed, and its output is made for people.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_HEADER = struct.Struct("=IHHII")
# Family, protocol, extensions, padding, states; the socket's name follows.
_QUESTION = struct.Struct("=BBBBI")
_NAME_BYTES = 48
# Family, state, timer, retransmits; the name; expiry, receive queue, send queue, user, inode.
_TOLD_HEAD, _TOLD_TAIL = struct.Struct("=BBBB"), struct.Struct("=IIIII")
_INFO = 2
_INFO_BIT = 1 << (_INFO - 1)
# Bytes that the peer has acknowledged, and bytes that came from it, in tcp_info.
_ACKNOWLEDGED, _RECEIVED = 120, 128
_ESTABLISHED, _SYN_SENT, _SYN_RECEIVED, _TIME_WAIT, _CLOSED, _LISTENING = 1, 2, 3, 6, 7, 10
# All in which there are two ends and something may still be sent.
_CONNECTED = sum(1 << state for state in range(1, 12)) & ~(1 << _TIME_WAIT | 1 << _CLOSED | 1 << _LISTENING)
_MAPPED = bytes(10) + b"\xff\xff"
_BUFFER_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection over IPv4: where it is, who its peer is, and what has gone over it.

    `inode` is that of the socket, as /proc/PID/fd shows it; 0: no process has it any more.
    """

    address: str
    port: int
    peer_address: str
    peer_port: int
    inode: int
    bytes_acknowledged: int
    bytes_received: int
    # What the kernel calls it by: the family, and the socket's name with its cookie.
    name: tuple[int, bytes]

    def __str__(self) -> str:
        return f"{self.address}:{self.port}-{self.peer_address}:{self.peer_port}"


class ConnectionSocket:
    """Asks in the network namespace of the calling thread at the time this was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def connections(self) -> list[Connection]:
        """All that are being made, established, or being closed.

        Raises:
            OSError: the kernel does not tell.
        """
        return [*self._list(socket.AF_INET), *self._list(socket.AF_INET6)]

    def end(self, connection: Connection) -> bool:
        """End it at this end and, by a reset, at the other; False when it had ended.

        Raises:
            OSError: the kernel refused; EOPNOTSUPP: it cannot do this (CONFIG_INET_DIAG_DESTROY).
        """
        family, name = connection.name
        self._send(_DESTROY, _REQUEST | _ACK, _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _CONNECTED) + name)
        for kind, body in self._answers():
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                if code and -code != errno.ENOENT:
                    raise OSError(-code, os.strerror(-code))
                return not code
        raise OSError(errno.EPROTO, "the kernel did not say whether the connection has ended")

    def _list(self, family: int) -> list[Connection]:
        question = _QUESTION.pack(family, socket.IPPROTO_TCP, _INFO_BIT, 0, _CONNECTED) + bytes(_NAME_BYTES)
        self._send(_BY_FAMILY, _REQUEST | _DUMP, question)
        found: list[Connection] = []
        while True:
            for kind, body in self._answers():
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", body)
                    raise OSError(-code, os.strerror(-code))
                if (connection := _read(family, body)) is not None:
                    found.append(connection)

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._sequence += 1
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, self._sequence, 0) + body)

    def _answers(self) -> list[tuple[int, bytes]]:
        data = self._socket.recv(_BUFFER_BYTES)
        found, place = [], 0
        while place + _HEADER.size <= len(data):
            length, kind, _, sequence, _ = _HEADER.unpack_from(data, place)
            if sequence == self._sequence:
                found.append((kind, data[place + _HEADER.size : place + length]))
            place += (length + 3) & ~3
        return found


def _read(family: int, body: bytes) -> Connection | None:
    """A connection as the kernel tells it; None: it is one of IPv6."""
    name = body[_TOLD_HEAD.size : _TOLD_HEAD.size + _NAME_BYTES]
    port, peer_port = struct.unpack_from(">HH", name)
    address, peer_address = _address(family, name[4:20]), _address(family, name[20:36])
    if address is None or peer_address is None:
        return None
    *_, inode = _TOLD_TAIL.unpack_from(body, _TOLD_HEAD.size + _NAME_BYTES)
    info = _info(body[_TOLD_HEAD.size + _NAME_BYTES + _TOLD_TAIL.size :])
    acknowledged, received = (_number(info, place) for place in (_ACKNOWLEDGED, _RECEIVED))
    return Connection(address, port, peer_address, peer_port, inode, acknowledged, received, (family, name))


def _address(family: int, raw: bytes) -> str | None:
    if family == socket.AF_INET6:
        if not raw.startswith(_MAPPED):
            return None
        raw = raw[len(_MAPPED) :]
    return socket.inet_ntoa(raw[:4])


def _number(info: bytes, place: int) -> int:
    return int(struct.unpack_from("=Q", info, place)[0]) if len(info) >= place + 8 else 0


def _info(attributes: bytes) -> bytes:
    place = 0
    while place + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, place)
        if kind == _INFO:
            return attributes[place + 4 : place + length]
        place += (max(length, 4) + 3) & ~3
    return b""


def connections_with(address: str) -> list[str]:
    """The ends, in the calling thread's network, of all connections with `address`."""
    with ConnectionSocket() as here:
        return [str(connection) for connection in here.connections() if connection.peer_address == address]


def end_connections_with(address: str) -> list[str]:
    """End them; returns those that had not ended by themselves."""
    with ConnectionSocket() as here:
        found = [connection for connection in here.connections() if connection.peer_address == address]
        return [str(connection) for connection in found if here.end(connection)]
