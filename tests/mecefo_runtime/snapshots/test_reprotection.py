"""Nodes that lose one of them protect what they keep anew: then another one may be lost. Real processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from mecefo_runtime.job.layout import Cluster, configured_layout
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.job.state_source import NOTHING_HELD, Version, plan_pieces
from mecefo_runtime.membership.reprotection import Reprotection
from mecefo_runtime.recovery.kept_snapshots import KeptSnapshots
from mecefo_runtime.snapshots.messages import Reencode, Settle, SnapshotsHello, ToSnapshotProcess, from_snapshot_process
from mecefo_runtime.snapshots.reading import fetch_pieces
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.wire import Connection, token_matches
from mecefo_runtime.system.wire_messages import to_wire
from tests.mecefo_runtime.snapshots.real_process import LINEAGE, TOKEN, are_equal, wait_until
from tests.mecefo_runtime.snapshots.test_protected import JOB, LAYOUT, NODES, Nodes

pytestmark = pytest.mark.unit

# One rank, of a node that stays, is to have all of the state.
RESTORED = configured_layout(Cluster(1, 1, data_parallel=1, pipeline=1, num_layers=2, num_microbatches=4))


class Coordinator:
    """What processes report to: it protects anew what was lost, unless it `is_idle`."""

    def __init__(self, *, is_idle: bool = False) -> None:
        self._is_idle = is_idle
        self.kept = KeptSnapshots()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.orders: list[tuple[int, ToSnapshotProcess]] = []
        self.refuses_settling = False
        self._connections: dict[int, Connection] = {}
        self._lock = threading.RLock()
        self._now = 0.0
        self._reprotection = Reprotection(self.kept, self, self._pass_time)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _pass_time(self) -> float:
        self._now += 1.0
        return self._now

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._start(self._serve, Connection(sock))

    def _serve(self, connection: Connection) -> None:
        raw = connection.receive()
        assert token_matches(raw, TOKEN)
        del raw["token"]
        hello = from_snapshot_process(raw)
        assert isinstance(hello, SnapshotsHello)
        self._connections[hello.node] = connection
        with suppress(OSError):
            while True:
                kept = from_snapshot_process(connection.receive())
                with self._lock:
                    self.kept.learn(hello.node, kept)
                    self.look()
        with self._lock:
            self.kept.learn(hello.node, None)
            self._reprotection.open()
            del self._connections[hello.node]
        connection.close()

    def look(self) -> None:
        if not self._is_idle:
            self._reprotection.look(lambda version: self.pieces(version) is not None)

    def pieces(self, version: Version) -> tuple | None:
        offers = [one for one in self.kept.offers() if one.version == version]
        pieces, missing = plan_pieces(RESTORED, offers, NOTHING_HELD)
        return None if missing else pieces

    def emit(self, record: Record, *, step: int | None = None) -> None:
        self.events.append((record.KIND, {"step": step, **record.to_fields()}))

    def tell_snapshots(self, node: int, message: ToSnapshotProcess) -> None:
        if isinstance(message, Settle) and self.refuses_settling:
            return
        self.orders.append((node, message))
        if node in self._connections:
            with suppress(OSError):
                self._connections[node].send(to_wire(message))

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [fields for of_kind, fields in self.events if of_kind == kind]

    def close(self) -> None:
        """All processes have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


class ProtectedNodes(Nodes):
    """Four nodes and a coordinator."""

    def __init__(self, protection: Protection, limit_bytes: int = 1 << 26, *, is_idle: bool = False) -> None:
        self.coordinator = Coordinator(is_idle=is_idle)
        super().__init__(protection, limit_bytes, 2.0, self.coordinator.address)

    def snapshot(self, step: int) -> dict[str, torch.Tensor]:
        values = super().snapshot(step)
        version = Version(step, LINEAGE)
        wait_until(lambda: all(kept.agreed == version for kept in self.coordinator.kept.by_node.values()))
        return values

    def lose(self, node: int) -> None:
        self.processes[node].end()
        wait_until(lambda: node not in self.coordinator.kept.by_node)

    def lose_and_wait(self, node: int) -> dict[str, Any]:
        protected = self.coordinator.said("snapshots_protected")
        self.lose(node)
        wait_until(lambda: len(self.coordinator.said("snapshots_protected")) > len(protected))
        return self.coordinator.said("snapshots_protected")[-1]

    def restored(self, step: int) -> dict[str, torch.Tensor] | None:
        """All of the state, from whoever offers it; None: it cannot be put together."""
        version = Version(step, LINEAGE)
        pieces = self.coordinator.pieces(version)
        if pieces is None:
            return None
        units = {name: UnitState(name, JOB, is_to_come=True) for name in RESTORED.holders()}
        fetch_pieces(pieces, version, units, TOKEN)
        return {name: unit.storage for name, unit in units.items()}

    def close(self) -> None:
        super().close()
        self.coordinator.close()


@pytest.fixture
def start() -> Iterator[Callable[..., ProtectedNodes]]:
    started: list[ProtectedNodes] = []

    def start_nodes(*arguments: Any, **settings: Any) -> ProtectedNodes:
        started.append(ProtectedNodes(*arguments, **settings))
        wait_until(lambda: len(started[-1].coordinator.kept.by_node) == NODES)
        return started[-1]

    yield start_nodes
    for nodes in started:
        nodes.close()


def test_one_node_after_the_other_is_lost_and_nothing_of_the_state(start) -> None:
    """XOR bears one loss: each of these is one, for what was lost before is kept by the others, and protected."""
    nodes = start("xor")
    values = nodes.snapshot(5)
    for node in (1, 3):
        protected = nodes.lose_and_wait(node)
        assert protected["step"] == 5 and protected["is_reencoded"] and protected["seconds"] > 0
        assert are_equal(nodes.restored(5), values)
    assert [(one["nodes"], one["losses_left"]) for one in nodes.coordinator.said("snapshots_unprotected")] == [
        ([1], 0),
        ([3], 0),
    ]
    # Two are left, and have copies of all.
    nodes.lose(2)
    assert are_equal(nodes.restored(5), values)


def test_without_it_a_second_loss_is_one_too_many(start) -> None:
    nodes = start("xor", is_idle=True)
    values = nodes.snapshot(5)
    nodes.lose(1)
    assert are_equal(nodes.restored(5), values)
    nodes.lose(3)
    assert nodes.restored(5) is None


def test_nothing_goes_before_all_have_what_is_to_come_in_its_place(start) -> None:
    """Another node dies when parities are complete, and nobody was told yet: the older ones are still there."""
    nodes = start("pq")
    nodes.coordinator.refuses_settling = True
    values = nodes.snapshot(5)
    nodes.lose(1)
    version = Version(5, LINEAGE)

    def generations(node: int) -> set[int]:
        kept = nodes.coordinator.kept.by_node.get(node)
        return set() if kept is None else {one.generation for one in kept.parities if one.version == version}

    wait_until(lambda: all(generations(node) == {0, 1} for node in (0, 2, 3)))
    nodes.lose(3)
    assert are_equal(nodes.restored(5), values)
    nodes.coordinator.refuses_settling = False
    wait_until(lambda: bool(nodes.coordinator.said("snapshots_protected")))
    assert all(len(generations(node)) == 1 for node in (0, 2))
    assert are_equal(nodes.restored(5), values)


def test_a_process_that_was_started_again_helps_to_protect_what_is_left(start) -> None:
    nodes = start("xor")
    values = nodes.snapshot(5)
    nodes.lose(1)
    nodes.processes[1].start()
    wait_until(lambda: bool(nodes.coordinator.said("snapshots_protected")))
    nodes.lose_and_wait(0)
    nodes.lose(3)
    assert are_equal(nodes.restored(5), values)


def test_without_room_the_reason_is_told_and_what_there_is_stays(start) -> None:
    num_bytes = sum(unit.storage.nbytes for unit in ModelState(JOB, LAYOUT, 0, {}, 0).units.values())
    # Two buffers and a parity of a third, but not what is to be taken over, and its parity.
    nodes = start("xor", num_bytes * 3 // NODES)
    values = nodes.snapshot(5)
    assert not nodes.warnings, nodes.warnings
    nodes.lose(1)
    wait_until(lambda: bool(nodes.coordinator.said("warning")))
    assert "stays as protected as it is" in nodes.coordinator.said("warning")[0]["message"]
    assert are_equal(nodes.restored(5), values)
    assert not nodes.coordinator.said("snapshots_protected")
    orders = [order for _, order in nodes.coordinator.orders if isinstance(order, Reencode)]
    assert {order.generation for order in orders} == {1}
