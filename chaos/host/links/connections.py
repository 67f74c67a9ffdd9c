"""Links between hosts, cut or slowed at this host's end by options of the run's own TCP connections: without any right.

`drop` sets the least TTL that a connection accepts (IP_MINTTL, IPV6_MINHOPCOUNT) to 255, which no packet from a host
that sends with the usual 64 has, so that the kernel drops what comes in. `shape` limits what goes out by
SO_MAX_PACING_RATE. `reset` shuts the connections down. `observe` changes nothing: the other end's host acts.

While a rule is active, new connections are looked for every 0.1 s. A rule is undone from its record alone: it concerns
the connections that processes with the run's mark have to its `peers`, and no others.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from chaos.errors import HealError
from chaos.host.links.process_sockets import (
    Connection,
    ConnectionGone,
    Found,
    Refusal,
    TcpInfo,
    canonical,
    find,
    inodes,
    min_ttl_drops,
)
from chaos.host.run_processes import processes_of, undone_run
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

Action = Literal["drop", "shape", "reset", "observe"]
LOOK_SECONDS = 0.1
# Processes that come in a network namespace of their own are found within this time.
_RESCAN_SECONDS = 1.0
# A watch that did not run for so long may have been undone by the watchdog: it changes nothing any more.
_LAPSE_SECONDS = 5.0
# Linux's numbers, which Python's socket module does not have.
_IP_MINTTL, _IPV6_MINHOPCOUNT, _SO_MAX_PACING_RATE = 21, 73, 47
_CUT_TTL, _ANY_TTL = 255, 0
_RATE_BYTES = 8
_UNLIMITED = (1 << 64) - 1
_MAX_SHARES = 4096
# A connection that has data to send for less of the time takes no share of a rate.
_ACTIVE_RATIO = 0.1
_ACTIVE_SECONDS = 1.0
NOT_COVERED = (
    f"a connection in its first {LOOK_SECONDS:g} s",
    "RDMA (InfiniBand, RoCE, EFA)",
    "NVLink, PCIe and shared memory",
    "UDP",
)


class Keepalive(NamedTuple):
    """The options of TCP keepalive; `num_probes` of a connection that is being probed is `_OWN_COUNT`."""

    is_on: int
    idle_seconds: int
    interval_seconds: int
    num_probes: int

    @classmethod
    def of(cls, connection: socket.socket) -> Keepalive:
        """Those that an opened connection has."""
        return cls(*(connection.getsockopt(level, option) for level, option in _KEEPALIVE))

    def set_on(self, connection: socket.socket) -> None:
        """Give an opened connection these."""
        for (level, option), value in zip(_KEEPALIVE, self, strict=True):
            connection.setsockopt(level, option, value)


_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
)
# A probe after a second without traffic, as early as Linux can. The count is never reached within a probe, so that it
# ends no connection; and nobody else has it, so that it says whose setting it is.
_OWN_COUNT = 113
PROBING = Keepalive(1, 1, 1, _OWN_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOptions(UndoRecord):
    """What a connection had before that is not the default of the system; `limit` None: that was the default."""

    inode: int
    limit: int | None
    keepalive: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedProcess(UndoRecord):
    """A process of the run on this host, when the rule was planned."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsRecord(UndoRecord):
    """A rule on the connections of the processes of `run` to `peers`, the addresses of other hosts (`shape`: of one).

    `before` has the connections whose options were not the system's defaults. All shares of a rate are
    `rate_bytes_per_second // n`, so that a share tells that it is one.
    """

    how: str = "connections"
    id: str
    at: str
    run: str
    action: str
    peers: tuple[str, ...]
    rate_bytes_per_second: int | None = None
    processes: tuple[NamedProcess, ...] = ()
    before: tuple[KeptOptions, ...] = ()

    def kept(self, inode: int) -> KeptOptions | None:
        """What a connection had before; None: the defaults, or it is newer than the record."""
        return next((one for one in self.before if one.inode == inode), None)

    @property
    def usual_limit(self) -> int:
        """The value of the option that the rule changes, where nobody has set it."""
        return _UNLIMITED if self.action == "shape" else _ANY_TTL

    def is_own(self, limit: int) -> bool:
        """Whether a value of the option is one that the rule sets."""
        if self.action != "shape":
            return self.action == "drop" and limit == _CUT_TTL
        rate = self.rate_bytes_per_second or 0
        return 0 < limit <= rate and (shares := round(rate / limit)) <= _MAX_SHARES and rate // shares == limit

    def read(self, connection: Connection, opened: socket.socket) -> int:
        """The value of the option that the rule changes."""
        if self.action == "shape":
            raw = opened.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _RATE_BYTES)
            return int.from_bytes(raw, sys.byteorder)
        return opened.getsockopt(*_least_ttl(connection))

    def write(self, connection: Connection, opened: socket.socket, limit: int) -> None:
        """Set it."""
        if self.action == "shape":
            opened.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, limit.to_bytes(_RATE_BYTES, sys.byteorder))
        else:
            opened.setsockopt(*_least_ttl(connection), limit)


def _least_ttl(connection: Connection) -> tuple[int, int]:
    if connection.carries_version_4:
        return socket.IPPROTO_IP, _IP_MINTTL
    return socket.IPPROTO_IPV6, _IPV6_MINHOPCOUNT


def connections_of(run: str, peers: Sequence[str], *, max_age_seconds: float = 0.0) -> Found:
    """The connections that processes with the mark of `run` have to `peers`.

    Which processes these are may have been found `max_age_seconds` ago: to look at all of a host takes longest.
    """
    now = time.monotonic()
    found_seconds, processes = _PROCESSES.get(run, (-1.0, ()))
    if found_seconds < now - max_age_seconds:
        processes = tuple(one.process for one in processes_of(run))
        _PROCESSES.clear()
        _PROCESSES[run] = (now, processes)
    return find(processes, peers)


# The processes of the run that was looked at last, and when.
_PROCESSES: dict[str, tuple[float, tuple[ProcessId, ...]]] = {}


def options_before(record: ConnectionsRecord, connections: Iterable[Connection]) -> tuple[KeptOptions, ...]:
    """What `record.before` is for these connections: of each that has not the system's defaults."""
    usual = usual_keepalive()
    kept = []
    for connection in connections:
        with suppress(ConnectionGone), connection.opened() as opened:
            limit, keepalive = record.read(connection, opened), Keepalive.of(opened)
            is_usual = limit == record.usual_limit or record.is_own(limit)
            if not is_usual or keepalive not in (usual, PROBING):
                before = None if is_usual else limit
                kept.append(KeptOptions(inode=connection.inode, limit=before, keepalive=keepalive))
    return tuple(kept)


def usual_keepalive() -> Keepalive:
    """What a new connection has on this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as new:
        return Keepalive.of(new)


@dataclass(slots=True)
class Covered:
    """A connection that a rule applies to, since `since_seconds` (CLOCK_MONOTONIC), and how it was right before."""

    connection: Connection
    since_seconds: float
    before: TcpInfo
    busy_seconds: float
    active_seconds: float | None = None


# Held by whoever applies or removes rules in this process; and its rules, by their id.
_LOCK = threading.RLock()
_WATCHES: dict[str, RuleWatch] = {}


class RuleWatch:
    """Applies one rule to the connections that there are, and in a thread to those that come, until it is stopped."""

    def __init__(self, record: ConnectionsRecord) -> None:
        self.record = record
        self.is_active = False
        self.covered: dict[int, Covered] = {}
        self.changed_seconds = 0.0
        self.refused: tuple[Refusal, ...] = ()
        self._at_first: frozenset[int] = frozenset()
        self._ever: set[int] = set()
        self._left_alone: set[int] = set()
        self._ended: dict[int, Connection] = {}
        self._known: frozenset[int] = frozenset()
        self._namespaces: tuple[int, ...] = ()
        # The kernel's count of packets dropped for their TTL, on whatever connection, before the first was changed.
        self._drops_before: int | None = None
        self._share = record.rate_bytes_per_second or 0
        self._looked_seconds = self._scanned_seconds = 0.0
        self._stopped = threading.Event()
        self._error: str | None = None
        self._has_lapsed = False

    @classmethod
    def of(cls, record_id: str) -> RuleWatch | None:
        """The watch of a rule that this process has applied, also of one that was removed since."""
        with _LOCK:
            return _WATCHES.get(record_id)

    @classmethod
    def on(cls, run: str, peers: tuple[str, ...]) -> tuple[RuleWatch, ...]:
        """The watches of the rules that this process has applied to connections of `run` to one of `peers`."""
        with _LOCK:
            mine = [watch for watch in _WATCHES.values() if watch.record.run == run]
        return tuple(watch for watch in mine if set(watch.record.peers) & set(peers))

    @classmethod
    def apply(cls, record: ConnectionsRecord) -> Self:
        """Apply a rule, also one that was removed in the meantime; the watch's `changed_seconds` is when.

        Raises:
            PermissionError: a process's connections may not be changed.
            OSError: a connection could not be changed.
        """
        with _LOCK:
            watch = _WATCHES.setdefault(record.id, cls(record))
            assert isinstance(watch, cls)
            if not watch.is_active:
                watch._begin()
            return watch

    def _begin(self) -> None:
        self.is_active, self._stopped = True, threading.Event()
        self.covered.clear()
        # Before the first of them is changed: nothing can have noticed it by then.
        self.changed_seconds = self._looked_seconds = time.monotonic()
        self._scan()
        if not self._at_first:
            self._at_first = frozenset(self.covered)
        threading.Thread(target=self._run, args=(self._stopped,), name="connection-rule", daemon=True).start()

    def stop(self) -> None:
        """Apply it to no more connections. The caller holds the lock of this module."""
        if self.is_active:
            self.is_active, self.changed_seconds = False, time.monotonic()
            self._stopped.set()

    def look(self) -> None:
        """Apply it to what is new since the last look; nothing if it is not active."""
        with _LOCK:
            if not self.is_active:
                return
            now = time.monotonic()
            self._looked_seconds = now
            now_there = inodes(self._namespaces, self.record.peers)
            if now_there - self._known or now - self._scanned_seconds > _RESCAN_SECONDS:
                self._scan()
            elif gone := self._known - now_there:
                self._forget(gone)
            if self.record.action == "shape":
                self._divide()

    def numbers(self) -> dict[str, Any]:
        """How many connections it was applied to, and what came of it."""
        with _LOCK:
            at_first = len(self._at_first)
            told: dict[str, Any] = {"at_first": at_first, "later": len(self._ever - self._at_first)}
            if self._left_alone:
                told["left_alone"] = len(self._left_alone)
            if self.record.action == "drop":
                told["packets_dropped"] = self._num_dropped()
                now = min_ttl_drops(self._namespaces[0]) if self._namespaces else None
                if now is not None and self._drops_before is not None:
                    told["TCPMinTTLDrop"] = now - self._drops_before
            if self.refused:
                told["refused"] = [{"pid": one.process.pid, "error": one.error} for one in self.refused]
            if self._has_lapsed:
                told["lapsed"] = True
            if self._error is not None:
                told["error"] = self._error
            return told

    def _num_dropped(self) -> int:
        """How many packets the connections that are covered now have dropped since they are."""
        dropped = 0
        for covered in self.covered.values():
            with suppress(ConnectionGone), covered.connection.opened() as opened:
                dropped += TcpInfo.read(opened).packets_dropped - covered.before.packets_dropped
        return dropped

    def ended(self, peers: Sequence[str]) -> list[str]:
        """The connections to `peers` that it has shut down, by name."""
        with _LOCK:
            return [str(one) for one in self._ended.values() if one.row.peer_address in peers]

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(LOOK_SECONDS):
            with _LOCK:
                if stopped.is_set():
                    return
                if time.monotonic() - self._looked_seconds > _LAPSE_SECONDS:
                    self._has_lapsed = True
                    self.stop()
                    return
                try:
                    self.look()
                except OSError as error:
                    # The next look may succeed; that one failed is in the evidence.
                    self._error = str(error)

    def _scan(self) -> None:
        self._scanned_seconds = time.monotonic()
        found = connections_of(self.record.run, self.record.peers)
        self._known, self._namespaces = found.inodes, found.namespaces
        self.refused = found.refused
        if self._drops_before is None and found.namespaces:
            self._drops_before = min_ttl_drops(found.namespaces[0])
        self._forget(self.covered.keys() - found.inodes)
        for connection in found.connections:
            if connection.inode not in self.covered:
                with suppress(ConnectionGone):
                    self._cover(connection)

    def _forget(self, inodes: Iterable[int]) -> None:
        for inode in tuple(inodes):
            self.covered.pop(inode, None)
        self._known -= frozenset(inodes)

    def _cover(self, connection: Connection) -> None:
        record, inode = self.record, connection.inode
        with connection.opened() as opened:
            info = TcpInfo.read(opened)
            if record.action == "reset":
                # One that has ended by itself is not connected.
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                self._ended[inode] = connection
            elif record.action != "observe":
                limit = record.read(connection, opened)
                is_usual = limit == record.usual_limit or record.is_own(limit)
                if not is_usual and ((kept := record.kept(inode)) is None or kept.limit is None):
                    # Its program has set it after the record was written, which could not be undone.
                    self._left_alone.add(inode)
                    return
                record.write(connection, opened, self._share if record.action == "shape" else _CUT_TTL)
        self.covered[inode] = Covered(connection, time.monotonic(), info, info.busy_seconds)
        self._ever.add(inode)

    def _divide(self) -> None:
        """Share the rate among the connections that have data to send: it is that of the link."""
        now, rate = time.monotonic(), self.record.rate_bytes_per_second or 0
        for covered in self.covered.values():
            with suppress(ConnectionGone), covered.connection.opened() as opened:
                busy_seconds = TcpInfo.read(opened).busy_seconds
                if busy_seconds - covered.busy_seconds > _ACTIVE_RATIO * LOOK_SECONDS:
                    covered.active_seconds = now
                covered.busy_seconds = busy_seconds
        times = [one.active_seconds for one in self.covered.values() if one.active_seconds is not None]
        share = max(1, rate // max(1, sum(now - at < _ACTIVE_SECONDS for at in times)))
        if share == self._share:
            return
        self._share = share
        for covered in self.covered.values():
            with suppress(ConnectionGone), covered.connection.opened() as opened:
                self.record.write(covered.connection, opened, share)

    def covers_since(self, inode: int) -> tuple[float, TcpInfo] | None:
        """Since when a connection is covered, and how it was right before; None: it is not."""
        with _LOCK:
            covered = self.covered.get(inode)
            return None if covered is None else (covered.since_seconds, covered.before)

    def keeps(self, connection: Connection) -> bool:
        """Whether it is active and has the value of the option that `connection` has."""
        record = self.record
        return self.is_active and record.action == "drop" and connection.row.peer_address in record.peers


@dataclass(slots=True)
class _Restored:
    """What came of the undo of a rule."""

    num_restored: int = 0
    num_kept_by_others: int = 0
    failed: list[str] = field(default_factory=list)


class ConnectionRules:
    """A rule on the connections of a run's processes to other hosts."""

    how: ClassVar[str] = "connections"

    @classmethod
    def remove(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Give the connections the options back that they had; those that a process had that is gone are gone."""
        known = ConnectionsRecord.from_json(record)
        try:
            known = replace(known, peers=tuple(map(canonical, known.peers)))
        except ValueError as error:
            raise HealError(Reason("record_not_understood", error=error)) from error
        if (run := undone_run()) and run != known.run:
            raise HealError(Reason("entry_of_another_run", run=known.run))
        with _LOCK:
            watch = _WATCHES.get(known.id)
            numbers = {} if watch is None else {"connections": watch.numbers()}
            if watch is not None:
                watch.stop()
            found = connections_of(known.run, known.peers)
            came = _Restored()
            for connection in found.connections:
                try:
                    _restore(known, connection, came)
                except ConnectionGone:
                    continue
                except OSError as error:
                    came.failed.append(f"{connection}: {error.strerror}")
        accounted = {connection.inode for connection in found.connections}
        if found.refused and found.inodes - accounted:
            came.failed += [f"pid {one.process.pid}: {one.error}" for one in found.refused]
        if came.failed:
            raise HealError(
                Reason("connections_not_restored", peers=", ".join(known.peers), failed="; ".join(came.failed))
            )
        gone = [one.pid for one in known.processes if not ProcessId(one.pid, one.start_ticks).is_running()]
        evidence = {"rule": known.id, "at": known.at, "restored": came.num_restored, **numbers}
        if came.num_kept_by_others:
            evidence["kept_by_other_rules"] = came.num_kept_by_others
        return {**evidence, "gone": gone} if gone else evidence


def _restore(record: ConnectionsRecord, connection: Connection, came: _Restored) -> None:
    kept = record.kept(connection.inode)
    with connection.opened() as opened:
        if Keepalive.of(opened) == PROBING:
            (usual_keepalive() if kept is None else Keepalive(*kept.keepalive)).set_on(opened)
        if record.action not in ("drop", "shape") or not record.is_own(record.read(connection, opened)):
            return
        if any(watch.keeps(connection) for watch in _WATCHES.values() if watch.record.id != record.id):
            came.num_kept_by_others += 1
            return
        limit = record.usual_limit if kept is None or kept.limit is None else kept.limit
        record.write(connection, opened, limit)
        if record.read(connection, opened) != limit:
            came.failed.append(f"{connection}: the option is still {record.read(connection, opened)}")
        else:
            came.num_restored += 1
