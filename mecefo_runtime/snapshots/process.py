"""A node's snapshot process: owns the memory that its ranks write snapshots to, and outlives them.

It trusts clients that have the run's token. One thread serves each connection. What is kept is looked up behind one
lock; checksums are computed and bytes are sent outside of it, and of Python's.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from mecefo_runtime.job.config import SnapshotConfig
from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.job.state_source import Offer, SnapshotSource, Version
from mecefo_runtime.snapshots.checksums import checksum_of, checksums_of
from mecefo_runtime.snapshots.codes import Unrecoverable
from mecefo_runtime.snapshots.contents import Contents
from mecefo_runtime.snapshots.inspection import SnapshotInspection
from mecefo_runtime.snapshots.messages import (
    Describe,
    Described,
    Fetch,
    Fetched,
    Keep,
    NotStored,
    Offers,
    Read,
    ReadParity,
    Reencode,
    Refused,
    Reserve,
    Reserved,
    SnapshotsHello,
    Store,
    Stored,
    ToSnapshotProcess,
    Welcome,
    to_snapshots,
)
from mecefo_runtime.snapshots.protecting import Protector
from mecefo_runtime.snapshots.reports import Reports
from mecefo_runtime.snapshots.shelf import NotHeld, ShelfFull, Snapshot, is_outdated
from mecefo_runtime.system.process import begin_session, give_way
from mecefo_runtime.system.strangers import StrangerThreads
from mecefo_runtime.system.wire import Connection, Message, WireError, limit_send_time, token_matches
from mecefo_runtime.system.wire_messages import to_wire

# A peer that encodes waits for what this node's ranks are still writing.
DESCRIBE_TIMEOUT_SECONDS = 20.0
HELLO_TIMEOUT_SECONDS = 10.0
# After an accept that failed.
_PAUSE_SECONDS = 0.1


def no_announcement(step: int, phase: str) -> None:
    """Ignore a phase: there is no observer."""


def _is_listening(listener: socket.socket) -> bool:
    """Whether it still takes connections: neither closed nor shut down."""
    try:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


class SnapshotProcess:
    """Serves the ranks of `node`, and whoever restores from here, on `listener`.

    `pid` is this process's: ranks open its memory by it. `announce` hears when a version's parity is begun, with its
    step and `encode`. Nodes that are `apart` protect each other in different groups, as far as that can be.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        node: int,
        pid: int,
        config: SnapshotConfig,
        announce: Callable[[int, str], None] = no_announcement,
        apart: Sequence[Collection[int]] = (),
    ) -> None:
        self._listener = listener
        self._token = token
        self._node = node
        self._pid = pid
        self._config = config
        self._contents = Contents(config.memory_bytes)
        self._reports: Reports | None = None
        self._strangers = StrangerThreads()
        # Once the coordinator knows of it, its ranks have the CPU first.
        self.gives_way = False
        self._changed = threading.Condition()
        # How many connections each rank has: a new process of it may be there before the old one's is gone.
        self._writing: Counter[int] = Counter()
        self._protector = Protector(node, token, config, self._contents, self._changed, announce, apart)
        # Ranks that wait to hear that a version is complete.
        self._waiting: dict[Version, list[Connection]] = {}
        self._to_protect: queue.SimpleQueue[Store | Reencode] = queue.SimpleQueue()
        host, port = listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        threading.Thread(target=self._protect, name="parity", daemon=True).start()

    def serve(self) -> None:
        """Take connections until the listener is closed."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if not _is_listening(self._listener):
                    return
                # Of want of descriptors, or whoever came has gone: not the end.
                time.sleep(_PAUSE_SECONDS)
                continue
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def attend(self, coordinator: str, token: str) -> None:
        """The job's ranks have this `token` from now on, and its coordinator, which hears what can be had, is there."""
        self._token = self._protector.token = token
        hello = {"token": token, **to_wire(SnapshotsHello(self._node))}
        if self._reports is None:
            self._reports = Reports(coordinator, hello, self.kept, self.obey)
            threading.Thread(target=self._give_way, args=(self._reports,), daemon=True).start()
        else:
            self._reports.attend(coordinator, hello)

    def _give_way(self, reports: Reports) -> None:
        # Not before: ranks protect nothing in an epoch that was formed before the coordinator knew of this process.
        reports.has_told.wait()
        if self.gives_way:
            give_way()

    def _note(self) -> None:
        if self._reports is not None:
            self._reports.note()

    def kept(self) -> SnapshotOffers:
        """What this process can provide."""
        source = SnapshotSource(self._node, self.address)
        with self._changed:
            contents = self._contents
            offers = tuple(Offer(version, source, shares) for version, shares in contents.offers().items())
            failed = self._protector.failed
            return SnapshotOffers(self.address, contents.shelf.kept, offers, contents.held(), failed)

    def obey(self, order: ToSnapshotProcess) -> None:
        """Carry out a request of the coordinator."""
        if isinstance(order, Reencode):
            self._to_protect.put(order)
            return
        with self._changed:
            self._contents.settle(order.version, order.generation)
        self._note()

    def inspect(self) -> SnapshotInspection:
        """The view of this process that observers get."""
        return SnapshotInspection(self._contents.shelf, self._changed)

    # ---- connections ----

    def _serve(self, sock: socket.socket) -> None:
        # What is sent after its announcement must not wait until that is acknowledged, which takes 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock)
        ranks: set[int] = set()
        try:
            with self._strangers.waiting(sock):
                hello = connection.receive_hello(HELLO_TIMEOUT_SECONDS)
            if not token_matches(hello, self._token):
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
                case Offers():
                    connection.send(to_wire(self.kept()))
                case Reserve(rank, num_bytes):
                    connection.send(to_wire(self._reserve(rank, num_bytes, ranks)))
                case Store():
                    self._store(connection, message)
                case Keep(version):
                    self._keep(version)
                case Describe(version, generation):
                    connection.send(to_wire(self._describe(version, generation)))
                case Fetch() | Read() | ReadParity():
                    pieces = self._read(message)
                    connection.send(to_wire(Fetched(sum(map(len, pieces)), checksum_of(pieces))))
                    for piece in pieces:
                        connection.send_bytes(piece)
        except (ShelfFull, NotHeld, Unrecoverable) as error:
            reason = str(error)
            answer = NotStored(message.version, reason) if isinstance(message, Store) else Refused(reason)
            connection.send(to_wire(answer))

    # ---- what ranks write ----

    def _reserve(self, rank: int, num_bytes: int, ranks: set[int]) -> Reserved:
        with self._changed:
            contents = self._contents
            contents.forget_spare()
            number, region = contents.shelf.reserve(rank, num_bytes, +self._writing, contents.parity_bytes)
            if rank not in ranks:
                ranks.add(rank)
                self._writing[rank] += 1
        return Reserved(number, self._pid, region.descriptor, num_bytes)

    def _store(self, connection: Connection, stored: Store) -> None:
        version, contents = stored.version, self._contents
        with self._changed:
            written = contents.shelf.written(stored.region, stored.buffer, stored.parts)
        snapshot = Snapshot(stored.sequence, version, stored.parts, tuple(map(checksums_of, written)))
        with self._changed:
            contents.shelf.store(stored.region, stored.buffer, snapshot)
            contents.ranks[version] = stored.ranks
            self._waiting.setdefault(version, []).append(connection)
            self._changed.notify_all()
            is_complete = contents.is_complete(version)
        self._note()
        if is_complete:
            self._to_protect.put(stored)

    def _keep(self, version: Version) -> None:
        with self._changed:
            if version == self._contents.shelf.kept:
                # Another rank of this node has said so.
                return
            self._contents.keep(version, +self._writing)
            for outdated in [one for one in self._waiting if is_outdated(one, version)]:
                if outdated not in self._contents.ranks:
                    del self._waiting[outdated]
            self._changed.notify_all()
        self._note()

    # ---- what others read ----

    def _describe(self, version: Version, generation: int) -> Described:
        with self._changed:
            contents = self._contents
            # What is here of other courses of training already is older.
            older = {known for known in self._known(generation) if known.lineage != version.lineage}
            self._changed.wait_for(
                lambda: contents.is_complete(version, generation) or self._is_given_up(version, generation, older),
                DESCRIBE_TIMEOUT_SECONDS,
            )
            return contents.describe(version, generation)

    def _is_given_up(self, version: Version, generation: int, older: Collection[Version]) -> bool:
        """Whether what is not complete will not be any more."""
        failed = self._protector.failed
        if failed is not None and failed.version == version and failed.generation >= generation > 0:
            return True
        return any(is_outdated(version, newer) for newer in self._known(generation) - set(older))

    def _known(self, generation: int) -> set[Version]:
        """What may be newer than a version, so that nobody continues with that one."""
        # Ranks that have begun a newer one will not complete it; it is protected again until all ranks have another.
        kept = self._contents.shelf.kept
        return set(self._contents.ranks) if not generation else {kept} if kept is not None else set()

    def _read(self, wanted: Fetch | Read | ReadParity) -> Sequence[memoryview]:
        """What is wanted, in pieces: where it lies, as far as it does."""
        if not isinstance(wanted, Fetch):
            return self._protector.read(wanted)
        version, unit, share = wanted.version, wanted.unit, wanted.share
        try:
            with self._changed:
                found = self._contents.find(version, unit, share)
        except NotHeld:
            rebuilt = self._protector.rebuilt(version, unit, share)
            if rebuilt is None:
                raise
            return [rebuilt]
        return [found.checked()]

    # ---- protection ----

    def _protect(self) -> None:
        while True:
            wanted = self._to_protect.get()
            if isinstance(wanted, Reencode):
                self._protector.protect_again(wanted)
                self._note()
                continue
            version = wanted.version
            unprotected = self._protector.protect(version, wanted.processes)
            with self._changed:
                waiting = self._waiting.pop(version, [])
            # First: what all ranks agree on must be known to be here when one of them is lost the next moment.
            if self._reports is not None:
                self._reports.tell()
            for connection in waiting:
                with suppress(OSError):
                    connection.send(to_wire(Stored(version, unprotected)))


class Observer(Protocol):
    """Who sees what a snapshot process does and keeps, as hooks see a rank (`mecefo_runtime.training.hooks`)."""

    def announce(self, step: int, phase: str) -> None:
        """The parity of the snapshot of `step` is begun; it waits until this returns."""

    def expose(self, subject: SnapshotInspection) -> None:
        """What the process keeps can be seen by `subject`."""


def start_snapshot_process(
    environment: RankEnvironment,
    listener: socket.socket,
    observe: Callable[[], Observer | None] = lambda: None,
) -> SnapshotProcess:
    """Make this process the snapshot process of its node, in a session of its own; it is to `serve`.

    `observe` is called here.
    """
    job, node, token = environment.job, environment.node, environment.token
    assert job.snapshots is not None
    # A session of its own: whoever ends those of the ranks does not end this one.
    begin_session(is_idle=job.priority == "idle")
    observer = observe()
    given = job.snapshots, no_announcement if observer is None else observer.announce, job.cluster().nodes_by_stage()
    process = SnapshotProcess(listener, token, node, os.getpid(), *given)
    process.gives_way = job.priority != "idle"
    if observer is not None:
        observer.expose(process.inspect())
    process.attend(environment.coordinator, token)
    return process


def run_snapshot_process(
    environment: RankEnvironment,
    listener: socket.socket,
    observe: Callable[[], Observer | None] = lambda: None,
) -> int:
    """Keep the snapshots of a node, as `start_snapshot_process` says, until whoever started this process ends it."""
    start_snapshot_process(environment, listener, observe).serve()
    return 0
