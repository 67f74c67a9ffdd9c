"""The few requests to the kernel's routing socket that make a network (rtnetlink(7)), a millisecond each.

Rather than the `ip` command: it need not be installed, and some forty starts of it take most of a second.
"""

from __future__ import annotations

import os
import socket
import struct
from types import TracebackType
from typing import Self

_NEWLINK, _NEWADDR = 16, 20
_ERROR = 2
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFF_UP = 0x1
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 10, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_BUFFER_BYTES = 1 << 16


class RoutingSocket:
    """Requests in the network namespace of the calling thread at the time this was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def add_bridge(self, name: str) -> None:
        """Make a bridge, and set it up."""
        attributes = _text(_IFLA_IFNAME, name) + _attribute(_IFLA_LINKINFO, _text(_INFO_KIND, "bridge"))
        self._request(_NEWLINK, _CREATE | _EXCL, _link(0, is_up=True) + attributes)

    def add_cable(self, name: str, bridge_index: int, far_name: str, far_descriptor: int) -> None:
        """Make a pair of interfaces: `name` on the bridge and up, `far_name` in the namespace of `far_descriptor`."""
        far = _link(0, is_up=False) + _text(_IFLA_IFNAME, far_name) + _number(_IFLA_NET_NS_FD, far_descriptor)
        info = _text(_INFO_KIND, "veth") + _attribute(_INFO_DATA, _attribute(_VETH_INFO_PEER, far))
        near = _text(_IFLA_IFNAME, name) + _number(_IFLA_MASTER, bridge_index) + _attribute(_IFLA_LINKINFO, info)
        self._request(_NEWLINK, _CREATE | _EXCL, _link(0, is_up=True) + near)

    def set_up(self, index: int) -> None:
        """Set an interface up."""
        self._request(_NEWLINK, 0, _link(index, is_up=True))

    def add_address(self, index: int, address: str, prefix_length: int) -> None:
        """Give an interface an IPv4 address."""
        packed = socket.inet_aton(address)
        head = _ADDRESS.pack(socket.AF_INET, prefix_length, 0, 0, index)
        self._request(
            _NEWADDR, _CREATE | _EXCL, head + _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        )

    def _request(self, kind: int, flags: int, body: bytes) -> None:
        """Send one request and take the kernel's answer.

        Raises:
            OSError: the kernel refused.
        """
        self._sequence += 1
        head = _HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST | _ACK, self._sequence, 0)
        self._socket.send(head + body)
        answer = self._socket.recv(_BUFFER_BYTES)
        _, answer_kind, _, sequence, _ = _HEADER.unpack_from(answer)
        assert (answer_kind, sequence) == (_ERROR, self._sequence), "the kernel answers requests in their order"
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))


def _link(index: int, *, is_up: bool) -> bytes:
    flags = _IFF_UP if is_up else 0
    return _LINK.pack(socket.AF_UNSPEC, 0, index, flags, flags)


def _attribute(kind: int, value: bytes) -> bytes:
    padding = -len(value) % 4
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(padding)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
