"""Bits flipped in snapshots: on the very memory that a snapshot process owns, here this process."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import pytest

from chaos.errors import EffectNotSeen, InjectionError, TargetNotFound
from chaos.faults.base import Act, FaultContext, OwnedProcess
from chaos.faults.storage.snapshot import FlippedMemory, FlipSnapshotBit
from chaos.faults.watch import Watch
from chaos.in_process import snapshot_agent
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.checksums import checksums_of
from mecefo_runtime.snapshots.inspection import SnapshotInspection
from mecefo_runtime.snapshots.messages import Part
from mecefo_runtime.snapshots.shelf import Shelf, Snapshot
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import do_nothing

pytestmark = pytest.mark.unit

NODE = ResolvedTarget(ranks=(0,), nodes=(1,))
PARTS = (Part("layer.0", Share(0, 2), 0, 1500), Part("head", Share(0, 2), 1536, 300))
LINEAGE = "first"


class Node:
    """Node 1, whose snapshot process this is; it answers as its agent would."""

    def __init__(self) -> None:
        self.shelf = Shelf(1 << 20)
        self.inspection = SnapshotInspection(self.shelf, threading.Lock())
        self.process = ProcessId.of(os.getpid())
        self.number, self.region = self.shelf.reserve(0, 2048, {0})

    def snapshot(self, step: int, buffer: int, *, is_agreed: bool = True) -> None:
        sequence = self.region.begin(buffer)
        memory = self.region.buffer(buffer)
        memory[:] = bytes((step * 31 + place) % 256 for place in range(len(memory)))
        checksums = tuple(map(checksums_of, self.shelf.written(self.number, buffer, PARTS)))
        version = Version(step, LINEAGE)
        self.shelf.store(self.number, buffer, Snapshot(sequence, version, PARTS, checksums))
        if is_agreed:
            self.shelf.keep(version, {0})

    def content(self) -> list[bytes]:
        return [bytes(self.region.buffer(buffer)) for buffer in (0, 1)]

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return (OwnedProcess("snapshots", self.process, node=1),) if 1 in nodes else ()

    async def ask(self, node: int, question: str, arguments: dict[str, object]) -> dict[str, object]:
        assert node == 1
        kind = getattr(snapshot_agent, question.rpartition(":")[2])
        return kind(arguments, self.inspection, lambda told: None).begin(0, "")


@pytest.fixture
def node():
    found = Node()
    yield found
    found.region.close()


def fault_of(seed: int = 7, **parameters: object) -> FlipSnapshotBit:
    fault = FlipSnapshotBit(FlipSnapshotBit.Parameters.model_validate(parameters))
    fault.seed = seed
    return fault


def context_of(node: Node) -> FaultContext:
    return FaultContext(processes=node, inside=node, watch=Watch(), run_folder=None)


def prepare(fault: FlipSnapshotBit, node: Node) -> Act:
    asyncio.run(fault.look(NODE, context_of(node)))
    return fault.prepare(NODE, context_of(node))


def strike(fault: FlipSnapshotBit, node: Node) -> Act:
    act = prepare(fault, node)
    asyncio.run(fault.apply(act, context_of(node)))
    return act


def verify(fault: FlipSnapshotBit, act: Act, node: Node) -> dict[str, object]:
    return asyncio.run(fault.verify(act, context_of(node), 1.0))


def flipped(before: list[bytes], after: list[bytes]) -> list[tuple[int, int]]:
    """(buffer, byte) of every bit that differs."""
    return [
        (buffer, place)
        for buffer, (one, other) in enumerate(zip(before, after, strict=True))
        for place, (a, b) in enumerate(zip(one, other, strict=True))
        for _ in range((a ^ b).bit_count())
    ]


@pytest.mark.parametrize(("unit", "bits"), [(None, 1), ("head", 1), ("layer.0", 64)])
def test_bits_of_a_stored_part_are_flipped_and_the_process_refuses_it(node, unit, bits) -> None:
    node.snapshot(4, 1)
    before = node.content()
    fault = fault_of(unit=unit, bits=bits)
    act = prepare(fault, node)
    assert node.content() == before, "nothing is changed before the record is written"
    asyncio.run(fault.apply(act, context_of(node)))
    places = flipped(before, node.content())
    assert len(places) == bits
    evidence = verify(fault, act, node)
    (seen,) = evidence["parts"]
    part = next(part for part in PARTS if part.unit == seen["unit"])
    assert unit in (None, part.unit)
    assert all(buffer == 1 and part.first <= place < part.first + part.num_bytes for buffer, place in places)
    assert "is damaged in chunk 0: CRC-32" in seen["refused"]
    assert (seen["step"], seen["is_agreed"], seen["still_there"]) == (4, True, True)


def test_without_the_flip_the_process_gives_the_part(node, monkeypatch) -> None:
    node.snapshot(4, 0)
    monkeypatch.setattr(FlipSnapshotBit, "apply", do_nothing)
    fault = fault_of()
    with pytest.raises(EffectNotSeen, match="the bits are as they were"):
        verify(fault, strike(fault, node), node)


def test_a_flip_that_the_process_does_not_notice_is_not_seen(node) -> None:
    """What is flipped before it is checksummed is kept faithfully."""
    node.snapshot(4, 0)
    fault = fault_of()
    act = strike(fault, node)
    (place,) = node.shelf.offers()
    snapshot = Snapshot(
        node.region.sequence(0), place, PARTS, tuple(map(checksums_of, node.shelf.written(node.number, 0, PARTS)))
    )
    node.shelf.store(node.number, 0, snapshot)
    with pytest.raises(EffectNotSeen, match="still delivers it"):
        verify(fault, act, node)


def test_what_a_restore_would_read_is_struck(node) -> None:
    """Not the newer one, on which nobody has agreed; where nothing is agreed on, the newest."""
    node.snapshot(4, 0)
    node.snapshot(5, 1, is_agreed=False)
    (part,) = FlippedMemory.from_json(prepare(fault_of(), node).undo_record).parts
    assert (part.step, part.is_agreed) == (4, True)
    node.snapshot(6, 0, is_agreed=False)
    (part,) = FlippedMemory.from_json(prepare(fault_of(), node).undo_record).parts
    assert (part.step, part.is_agreed) == (6, False)


def test_the_seed_says_which_bit(node) -> None:
    node.snapshot(4, 0)
    one, same, other = (prepare(fault_of(seed), node).undo_record for seed in (1, 1, 2))
    assert one == same != other


def test_it_is_flipped_back_however_often_it_is_undone(node) -> None:
    node.snapshot(4, 0)
    before = node.content()
    act = strike(fault_of(bits=5), node)
    assert node.content() != before
    for _ in range(2):
        assert FlipSnapshotBit.undo(act.undo_record) == {
            "undone": "node 1: flipped back: the snapshot of step 4 was still there"
        }
        assert node.content() == before


def test_what_was_written_over_is_left_alone(node) -> None:
    node.snapshot(4, 0)
    fault = fault_of()
    act = strike(fault, node)
    node.snapshot(5, 0)
    newer = node.content()
    with pytest.raises(EffectNotSeen, match="the next snapshot was begun there"):
        verify(fault, act, node)
    assert "written over since" in FlipSnapshotBit.undo(act.undo_record)["undone"]
    assert node.content() == newer
    late = prepare(fault, node)
    node.snapshot(6, 0)
    newer = node.content()
    with pytest.raises(InjectionError, match="begins another snapshot"):
        asyncio.run(fault.apply(late, context_of(node)))
    assert node.content() == newer


def test_memory_that_is_gone_or_of_somebody_else_is_not_touched(node, tmp_path) -> None:
    node.snapshot(4, 0)
    act = strike(fault_of(), node)
    (part,) = FlippedMemory.from_json(act.undo_record).parts
    gone = FlippedMemory(parts=(replace(part, start_ticks=part.start_ticks - 1),))
    assert FlipSnapshotBit.undo(gone.to_json()) == {"undone": "node 1: ended with its process"}
    with (tmp_path / "file").open("wb+") as file:
        other = FlippedMemory(parts=(replace(part, descriptor=file.fileno()),))
        assert FlipSnapshotBit.undo(other.to_json()) == {"undone": "node 1: ended with its memory"}


def test_where_there_is_nothing_to_flip_it_says_so(node) -> None:
    with pytest.raises(TargetNotFound, match="no complete snapshot yet"):
        prepare(fault_of(), node)
    node.snapshot(4, 0)
    with pytest.raises(TargetNotFound, match=r"keeps nothing of layer\.5"):
        prepare(fault_of(unit="layer.5"), node)
    fault = fault_of()
    asyncio.run(fault.look(NODE, context_of(node)))
    node.node_processes = lambda nodes: ()
    with pytest.raises(TargetNotFound, match="has no snapshot process"):
        fault.prepare(NODE, context_of(node))
