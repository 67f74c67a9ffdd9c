"""TCP connections of other processes of this host, listed by the kernel and opened by pidfd_getfd(2).

An opened connection is a duplicate of the process's own descriptor. It is closed at once after use: a duplicate that
stays open keeps the connection alive after its process has closed it. No capability is needed, only ptrace access.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mecefo_runtime.system.process import ProcessId

# The same number on all architectures; glibc and Python have no function for it.
_PIDFD_GETFD = 438
_LIBC = ctypes.CDLL(None, use_errno=True)
_TCP_INFO_BYTES = 256
# Nine numbers, the last of which are the packets dropped; since Linux 4.12.
_SO_MEMINFO = 55
_SOCKET_LINK = "socket:["
# States of the kernel's table (net/tcp_states.h).
ESTABLISHED, SYN_SENT, CLOSE_WAIT = 1, 2, 8
_TIME_WAIT, _CLOSED, _LISTENING = 6, 7, 10
_WITH_CONNECTION = frozenset(range(1, 12)) - {_TIME_WAIT, _CLOSED, _LISTENING}
# In these it may still carry data from here.
OPEN_STATES = frozenset((ESTABLISHED, SYN_SENT, CLOSE_WAIT))
# struct tcp_info of linux/tcp.h, by offset.
# A line of /proc/net/tcp: sl local_address rem_address st queues timer retransmits uid timeout inode ...
_OWN, _PEER, _TABLE_STATE, _INODE = 1, 2, 3, 9
_WORD, _LONG = struct.Struct("=I"), struct.Struct("=Q")


class ConnectionGone(OSError):
    """The process has closed the connection, or is gone."""


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """What the kernel knows of one connection (TCP_INFO, SO_MEMINFO); counts are since the connection was made.

    `packets_dropped` came to this socket and were not delivered, as for a TTL that is too small.
    """

    state: int
    num_unanswered_probes: int
    receive_unit_bytes: int
    data_age_seconds: float
    ack_age_seconds: float
    round_trip_seconds: float
    receiver_round_trip_seconds: float
    receiver_window_bytes: int
    bytes_acknowledged: int
    bytes_received: int
    data_segments_out: int
    delivery_rate: int
    busy_seconds: float
    packets_dropped: int

    @classmethod
    def read(cls, connection: socket.socket) -> TcpInfo:
        """Of an opened connection."""
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        # An older kernel knows less.
        raw += bytes(_TCP_INFO_BYTES - len(raw))

        def word(offset: int) -> int:
            return int(_WORD.unpack_from(raw, offset)[0])

        def long(offset: int) -> int:
            return int(_LONG.unpack_from(raw, offset)[0])

        return cls(
            state=raw[0],
            num_unanswered_probes=raw[3],
            receive_unit_bytes=word(20),
            data_age_seconds=word(52) / 1e3,
            ack_age_seconds=word(56) / 1e3,
            round_trip_seconds=word(68) / 1e6,
            receiver_round_trip_seconds=word(92) / 1e6,
            receiver_window_bytes=word(96),
            bytes_acknowledged=long(120),
            bytes_received=long(128),
            data_segments_out=word(156),
            delivery_rate=long(160),
            busy_seconds=long(168) / 1e6,
            packets_dropped=_WORD.unpack_from(connection.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36), 32)[0],
        )


@dataclass(frozen=True, slots=True)
class TableRow:
    """One connection as a network namespace's table has it."""

    inode: int
    state: int
    is_version_6: bool
    address: str
    port: int
    peer_address: str
    peer_port: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection, and a process that has it open as `descriptor`."""

    row: TableRow
    process: ProcessId
    descriptor: int

    @property
    def inode(self) -> int:
        """Of the socket: it tells it from all others of this host that are there at the same time."""
        return self.row.inode

    @property
    def carries_version_4(self) -> bool:
        """Whether its packets are of IPv4, which they may be on a socket of IPv6."""
        return ipaddress.ip_address(self.row.peer_address).version == 4

    def __str__(self) -> str:
        row = self.row
        return f"{row.address}:{row.port}-{row.peer_address}:{row.peer_port}"

    @contextmanager
    def opened(self) -> Iterator[socket.socket]:
        """A duplicate of its socket, which is closed at the end.

        Raises:
            ConnectionGone: the process has closed it, or is gone.
            PermissionError: this kernel does not let this process have it.
        """
        number = duplicate(self.process, self.descriptor)
        try:
            # By its number another file may be open by now.
            if os.fstat(number).st_ino != self.inode:
                raise ConnectionGone(errno.EBADF, "closed")
            family = socket.AF_INET6 if self.row.is_version_6 else socket.AF_INET
            # With its family and type named, nothing of the socket that both share is changed.
            taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=number)
            number = -1
            with taken:
                yield taken
        finally:
            if number >= 0:
                os.close(number)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A process of which this one may not have a descriptor, and why."""

    process: ProcessId
    error: str


@dataclass(frozen=True, slots=True)
class Found:
    """Connections, each once; and the processes that could not be looked at.

    `inodes` are those of all connections to the same peers, also of processes that were not asked for.
    """

    connections: tuple[Connection, ...] = ()
    refused: tuple[Refusal, ...] = ()
    inodes: frozenset[int] = frozenset()
    # One process of each network namespace, by which its table is read.
    namespaces: tuple[int, ...] = ()


def duplicate(process: ProcessId, descriptor: int) -> int:
    """A duplicate of a descriptor of this very process.

    Raises:
        ConnectionGone: it is not open there, or the process is gone.
        PermissionError: it is not allowed.
        OSError: this kernel cannot do that.
    """
    try:
        pidfd = os.pidfd_open(process.local_pid)
    except ProcessLookupError:
        raise ConnectionGone(errno.ESRCH, "the process is gone") from None
    try:
        # After the descriptor of the process was opened: its pid cannot be another's from here on.
        if not process.is_running():
            raise ConnectionGone(errno.ESRCH, "the process is gone")
        number: int = _LIBC.syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
        if number < 0:
            code = ctypes.get_errno()
            if code in (errno.EBADF, errno.ESRCH):
                raise ConnectionGone(code, os.strerror(code))
            raise OSError(code, os.strerror(code))
        return number
    finally:
        os.close(pidfd)


def canonical(address: str) -> str:
    """An address in one spelling: without a zone, and of IPv4 where it is mapped into IPv6.

    Raises:
        ValueError: it is no address.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def find(processes: Iterable[ProcessId], peers: Sequence[str]) -> Found:
    """The connections of `processes` to one of the addresses `peers`, which are canonical; never one that listens."""
    processes = tuple(processes)
    refused: dict[ProcessId, Refusal] = {}
    representatives: dict[int, int] = {}
    for process in processes:
        try:
            namespace = Path(f"/proc/{process.local_pid}/ns/net").stat().st_ino
            representatives.setdefault(namespace, process.local_pid)
        except PermissionError as error:
            refused[process] = Refusal(process, str(error.strerror))
        except OSError:
            # It is gone, and its connections with it.
            continue
    namespaces = tuple(representatives.values())
    rows = {row.inode: row for row in table(namespaces, peers)}
    found: dict[int, Connection] = {}
    # A connection that several processes have is named by the first one.
    for process in processes if rows else ():
        try:
            for descriptor, inode in _sockets(process.local_pid):
                if inode in rows and inode not in found:
                    found[inode] = Connection(rows[inode], process, descriptor)
        except PermissionError as error:
            refused[process] = Refusal(process, str(error.strerror))
        except OSError:
            continue
    return Found(tuple(found.values()), tuple(refused.values()), frozenset(rows), namespaces)


def table(pids: Iterable[int], peers: Sequence[str]) -> list[TableRow]:
    """The connections to `peers` in the network namespace of each of `pids`; of a process that is gone, none."""
    return [_row(words, is_version_6) for words, is_version_6 in _lines(pids, peers)]


def inodes(pids: Iterable[int], peers: Sequence[str]) -> frozenset[int]:
    """The inodes of the connections that `table` has, in a fraction of its time."""
    return frozenset(int(words[_INODE]) for words, _ in _lines(pids, peers))


def min_ttl_drops(pid: int) -> int | None:
    """How many packets came to a socket of the process's network with too small a TTL (TCPMinTTLDrop); None: unknown.

    The kernel counts IPv4 and IPv6 in the same figure.
    """
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/net/netstat").read_text(encoding="ascii").splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            if names.startswith("TcpExt:"):
                return int(values.split()[names.split().index("TCPMinTTLDrop")])
    return None


def _lines(pids: Iterable[int], peers: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """The lines of the tables, in words, and whether they are of IPv6."""
    wanted = _in_table(peers)
    for pid in pids:
        for name, is_version_6 in (("tcp", False), ("tcp6", True)):
            # Without IPv6 there is no second table.
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                text = Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii")
                for line in text.splitlines()[1:]:
                    # Most lines of a busy host are of other peers.
                    if not any(peer in line for peer in wanted):
                        continue
                    words = line.split(maxsplit=_INODE + 1)
                    is_to_peer = len(words) > _INODE and words[_PEER].partition(":")[0] in wanted
                    # A connection that no process has any more has no inode.
                    if is_to_peer and int(words[_TABLE_STATE], 16) in _WITH_CONNECTION and words[_INODE] != "0":
                        yield words, is_version_6


def _row(words: list[str], is_version_6: bool) -> TableRow:
    (address, port), (peer_address, peer_port) = _place(words[_OWN]), _place(words[_PEER])
    state, inode = int(words[_TABLE_STATE], 16), int(words[_INODE])
    return TableRow(inode, state, is_version_6, address, port, peer_address, peer_port)


def _place(word: str) -> tuple[str, int]:
    address, _, port = word.partition(":")
    raw = bytes.fromhex(address)
    words = [int.from_bytes(raw[at : at + 4], "big").to_bytes(4, sys.byteorder) for at in range(0, len(raw), 4)]
    return canonical(str(ipaddress.ip_address(b"".join(words)))), int(port, 16)


def _in_table(peers: Sequence[str]) -> frozenset[str]:
    """The addresses as the tables have them: in words of 32 bits, each in the byte order of this machine."""
    texts = set()
    for peer in peers:
        address = ipaddress.ip_address(peer)
        forms = [address.packed]
        if address.version == 4:
            forms.append(bytes(10) + b"\xff\xff" + address.packed)
        for raw in forms:
            words = [int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4)]
            texts.add("".join(f"{word:08X}" for word in words))
    return frozenset(texts)


def _sockets(pid: int) -> Iterator[tuple[int, int]]:
    """The sockets that a process has open: (descriptor, inode)."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                # A Path for each would double the time, and a process may have many.
                target = os.readlink(entry.path)  # noqa: PTH115
                if target.startswith(_SOCKET_LINK):
                    yield int(entry.name), int(target[len(_SOCKET_LINK) : -1])
