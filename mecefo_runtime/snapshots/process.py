"""A node's snapshot process: owns the memory that its ranks write snapshots to, and outlives them.

It trusts who has the run's token. One thread serves each connection; the shelf is behind one lock, and checksums are
computed and bytes are sent outside Python's.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from mecefo_runtime.comm.messages import SnapshotOffers, SnapshotsHello
from mecefo_runtime.job.config import JobConfig, SnapshotConfig
from mecefo_runtime.job.protection import groups_of
from mecefo_runtime.job.state_source import Offer, SnapshotSource, Version
from mecefo_runtime.snapshots.codes import Unrecoverable
from mecefo_runtime.snapshots.messages import (
    Describe,
    Described,
    Fetch,
    Fetched,
    Keep,
    Read,
    ReadParity,
    Refused,
    Reserve,
    Reserved,
    Store,
    Stored,
    Welcome,
    to_snapshots,
)
from mecefo_runtime.snapshots.parity import Members, Parity, encode, find_part, rebuild_part
from mecefo_runtime.snapshots.shelf import NotHeld, Shelf, ShelfFull, is_outdated
from mecefo_runtime.system.process import begin_session
from mecefo_runtime.system.wire import Connection, Message, WireError, limit_send_time, token_matches
from mecefo_runtime.system.wire_messages import to_wire

# A peer that encodes waits for what this node's ranks are still writing.
DESCRIBE_TIMEOUT_SECONDS = 20.0
HELLO_TIMEOUT_SECONDS = 10.0
RECONNECT_SECONDS = 0.05
# What can be had is told again so often, though nothing has changed.
REPORT_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 0.5


class SnapshotProcess:
    """Serves the ranks of `node`, and whoever restores from here, on `listener`.

    `pid` is this process's: ranks open its memory by it. `on_change` hears of every change of what can be had.
    """

    def __init__(self, listener: socket.socket, token: str, node: int, pid: int, config: SnapshotConfig) -> None:
        self._listener = listener
        self._token = token
        self._node = node
        self._pid = pid
        self._config = config
        self._shelf = Shelf(config.memory_bytes)
        self.on_change: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        # How many connections each rank has: a new process of it may be there before the old one's is gone.
        self._writing: Counter[int] = Counter()
        # The ranks of this node that write a version, and those who wait to hear that it is complete.
        self._ranks: dict[Version, tuple[int, ...]] = {}
        self._waiting: dict[Version, list[Connection]] = {}
        self._parities: dict[Version, Parity] = {}
        self._unreachable: dict[int, float] = {}
        self._to_protect: queue.SimpleQueue[tuple[Version, Mapping[int, str]]] = queue.SimpleQueue()
        host, port = listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        threading.Thread(target=self._protect, name="parity", daemon=True).start()

    def serve(self) -> None:
        """Take connections until the listener is closed."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def kept(self) -> SnapshotOffers:
        """What can be had here."""
        source = SnapshotSource(self._node, self.address)
        with self._changed:
            offers = tuple(Offer(version, source, shares) for version, shares in self._shelf.offers().items())
            parities = tuple(parity.held() for parity in self._parities.values())
            return SnapshotOffers(self.address, self._shelf.kept, offers, parities)

    # ---- connections ----

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(HELLO_TIMEOUT_SECONDS)
        connection = Connection(sock)
        ranks: set[int] = set()
        try:
            if not token_matches(connection.receive(), self._token):
                return
            sock.settimeout(None)
            limit_send_time(sock)
            connection.send(to_wire(Welcome(self._node)))
            while True:
                self._answer(connection, connection.receive(), ranks)
        except (WireError, OSError):
            # It is gone, or it is none of ours.
            return
        finally:
            with self._changed:
                self._writing.subtract(ranks)
            with suppress(OSError):
                connection.close()

    def _answer(self, connection: Connection, raw: Message, ranks: set[int]) -> None:
        message = to_snapshots(raw)
        try:
            match message:
                case Reserve(rank, num_bytes):
                    connection.send(to_wire(self._reserve(rank, num_bytes, ranks)))
                case Store():
                    self._store(connection, message)
                case Keep(version):
                    self._keep(version)
                case Describe(version):
                    connection.send(to_wire(self._describe(version)))
                case Fetch() | Read() | ReadParity():
                    content = memoryview(self._read(message))
                    connection.send(to_wire(Fetched(len(content), zlib.crc32(content))))
                    connection.send_bytes(content)
        except (ShelfFull, NotHeld, Unrecoverable) as error:
            connection.send(to_wire(Refused(str(error))))

    # ---- what ranks write ----

    def _reserve(self, rank: int, num_bytes: int, ranks: set[int]) -> Reserved:
        with self._changed:
            number, region = self._shelf.reserve(rank, num_bytes, +self._writing)
            if rank not in ranks:
                ranks.add(rank)
                self._writing[rank] += 1
        return Reserved(number, self._pid, region.descriptor, num_bytes)

    def _store(self, connection: Connection, stored: Store) -> None:
        version = stored.version
        with self._changed:
            self._shelf.store(stored.region, stored.buffer, stored.sequence, version, stored.parts)
            self._ranks[version] = stored.ranks
            self._waiting.setdefault(version, []).append(connection)
            self._changed.notify_all()
            is_complete = self._is_complete(version)
        self.on_change()
        if is_complete:
            self._to_protect.put((version, stored.processes))

    def _keep(self, version: Version) -> None:
        with self._changed:
            if version == self._shelf.kept:
                # Another rank of this node has said so.
                return
            self._shelf.keep(version, +self._writing)
            kept = set(self._shelf.offers())
            for known in (self._ranks, self._waiting, self._parities):
                for outdated in [one for one in known if one not in kept and is_outdated(one, version)]:
                    del known[outdated]
        self.on_change()

    # ---- what others read ----

    def _describe(self, version: Version) -> Described:
        with self._changed:
            # Ranks that have begun a newer one will not complete this one any more.
            self._changed.wait_for(
                lambda: self._is_complete(version) or any(is_outdated(version, newer) for newer in self._ranks),
                DESCRIBE_TIMEOUT_SECONDS,
            )
            return self._shelf.describe(version, self._ranks_of(version))

    def _read(self, wanted: Fetch | Read | ReadParity) -> bytes | bytearray | memoryview:
        if isinstance(wanted, Fetch):
            return self._fetch(wanted)
        with self._changed:
            if isinstance(wanted, Read):
                ranks = self._ranks_of(wanted.version)
                return self._shelf.read_bytes(wanted.version, ranks, wanted.first, wanted.num_bytes)
            parity = self._parities.get(wanted.version)
            place = (wanted.row, wanted.index)
            if parity is None or parity.group.nodes != wanted.nodes or place not in parity.stripes:
                raise NotHeld(f"a parity of step {wanted.version.step} is not here")
            # Not checked here: what is rebuilt from it is.
            return parity.stripes[place].data[wanted.first : wanted.first + wanted.num_bytes]

    def _fetch(self, wanted: Fetch) -> bytes | bytearray | memoryview:
        with self._changed:
            parity = self._parities.get(wanted.version)
            try:
                return self._shelf.read(wanted.version, wanted.unit, wanted.share)
            except NotHeld:
                if parity is None or (found := find_part(parity, wanted.unit, wanted.share)) is None:
                    raise
        node, part = found
        with self._members(parity.addresses) as members:
            return rebuild_part(parity, node, part, members)

    def _is_complete(self, version: Version) -> bool:
        """Whether all ranks of this node have stored theirs."""
        try:
            self._shelf.describe(version, self._ranks_of(version))
        except NotHeld:
            return False
        return True

    def _ranks_of(self, version: Version) -> tuple[int, ...]:
        if version not in self._ranks:
            raise NotHeld(f"of step {version.step} there is nothing here")
        return self._ranks[version]

    # ---- protection ----

    def _members(self, addresses: Mapping[int, str]) -> Members:
        return Members(self._node, addresses, self._token, self._read, self._unreachable)

    def _protect(self) -> None:
        while True:
            version, processes = self._to_protect.get()
            unprotected = self._why_unprotected(version, processes)
            with self._changed:
                waiting = self._waiting.pop(version, [])
            self.on_change()
            for connection in waiting:
                with suppress(OSError):
                    connection.send(to_wire(Stored(version, unprotected)))

    def _why_unprotected(self, version: Version, processes: Mapping[int, str]) -> str | None:
        """Compute this node's parities of `version`; returns why there are none that should be."""
        config = self._config
        if config.protection == "none":
            return None
        groups = groups_of({*processes, self._node}, config.protection, config.group_size, config.nodes_per_rack)
        group = next(group for group in groups if self._node in group.nodes)
        if not group.num_parities:
            return "no other node has a snapshot process"
        # Those that are named now are there, whatever was found before.
        self._unreachable.clear()
        try:
            with self._changed:
                own = self._shelf.describe(version, self._ranks_of(version))
            with self._members(processes) as members:
                parity = encode(version, group, own, members)
        except (OSError, NotHeld) as error:
            return str(error) or type(error).__name__
        with self._changed:
            num_bytes = self._shelf.num_bytes + sum(one.num_bytes for one in self._parities.values())
            if num_bytes + parity.num_bytes > config.memory_bytes:
                return f"{parity.num_bytes} bytes are needed for parity, of {config.memory_bytes} {num_bytes} are taken"
            self._parities[version] = parity
        return None


class _Reports:
    """Tells the coordinator what can be had, whenever that changes, and again when there is another coordinator."""

    def __init__(self, address: str, hello: Message, kept: Callable[[], SnapshotOffers]) -> None:
        self._address = address
        self._hello = hello
        self._kept = kept
        self._has_changed = threading.Event()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def note(self) -> None:
        """Something has changed."""
        self._has_changed.set()

    def _run(self) -> None:
        while True:
            try:
                connection = Connection.open(self._address, self._hello, CONNECT_TIMEOUT_SECONDS)
            except OSError:
                time.sleep(RECONNECT_SECONDS)
                continue
            is_over = threading.Event()
            threading.Thread(target=self._await_end, args=(connection, is_over), daemon=True).start()
            self._has_changed.set()
            while not is_over.is_set():
                self._has_changed.wait(REPORT_SECONDS)
                self._has_changed.clear()
                with suppress(OSError):
                    connection.send(to_wire(self._kept()))
            with suppress(OSError):
                connection.close()

    def _await_end(self, connection: Connection, is_over: threading.Event) -> None:
        # The coordinator tells snapshot processes nothing: what can be read is its end.
        with suppress(WireError):
            connection.receive()
        is_over.set()
        self._has_changed.set()


def run_snapshot_process(environment: Mapping[str, str], node: int, listener: socket.socket) -> int:
    """Keep the snapshots of `node` until whoever started this process ends it, or is gone.

    Variables: MECEFO_JOB (JSON), MECEFO_COORDINATOR (`host:port`), MECEFO_TOKEN.
    """
    job = JobConfig.from_dict(json.loads(environment["MECEFO_JOB"]))
    assert job.snapshots is not None
    # A session of its own: whoever ends those of the ranks does not end this one.
    begin_session(is_idle=job.priority == "idle")
    token = environment["MECEFO_TOKEN"]
    process = SnapshotProcess(listener, token, node, os.getpid(), job.snapshots)
    hello = {"token": token, **to_wire(SnapshotsHello(node))}
    process.on_change = _Reports(environment["MECEFO_COORDINATOR"], hello, process.kept).note
    process.serve()
    return 0
