"""Nodes that protect each other: whatever their code can bear is rebuilt bit for bit, by those who are left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from itertools import combinations, count

import pytest
import torch

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Cluster, configured_layout
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.job.state_source import ParitySource, Piece, Share, SnapshotSource, Version
from mecefo_runtime.snapshots.peer import SnapshotPeer
from mecefo_runtime.snapshots.reading import fetch_pieces
from mecefo_runtime.snapshots.writing import LOST, SnapshotWriter
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.stored import StoredStateRefused
from mecefo_runtime.state.units import UnitState
from tests.mecefo_runtime.snapshots.real_process import (
    LINEAGE,
    MODEL,
    TOKEN,
    Process,
    are_equal,
    fill,
    started,
    wait_until,
)

pytestmark = pytest.mark.unit

NODES = 4
JOB = JobConfig(MODEL, NODES, 1, data_parallel=NODES, pipeline=1)
LAYOUT = configured_layout(Cluster(NODES, 1, data_parallel=NODES, pipeline=1, num_layers=2, num_microbatches=4))


class Nodes:
    """Four nodes with a rank each, which hold the same state and copy a quarter of it."""

    def __init__(self, protection: Protection, limit_bytes: int = 1 << 26, *patience_seconds: float) -> None:
        self.warnings: list[str] = []
        self.processes = [Process(limit_bytes, node, protection, *patience_seconds) for node in range(NODES)]
        self.sources = {node: process.source for node, process in enumerate(self.processes)}
        self.states = [ModelState(JOB, LAYOUT, rank, {}, 0) for rank in range(NODES)]
        self.writers: list[SnapshotWriter] = []
        addresses = {node: source.address for node, source in self.sources.items()}
        for rank, (process, state) in enumerate(zip(self.processes, self.states, strict=True)):
            writer = SnapshotWriter(process.source.address, TOKEN, rank, 1, self.warnings.append)
            writer.enter(state, LINEAGE, (rank,), addresses)
            process.writers.append(writer)
            self.writers.append(writer)

    def begin(self, step: int) -> dict[str, torch.Tensor]:
        """The state after `step` is copied, and all of it told."""
        values = fill(self.states, step)
        for writer in self.writers:
            writer.begin(step + 1)
            writer.finish()
        return values

    def snapshot(self, step: int) -> dict[str, torch.Tensor]:
        values = self.begin(step)
        wait_until(lambda: all(writer.stored_step == step for writer in self.writers))
        for writer in self.writers:
            writer.agree(step)
        return values

    def fetch(self, step: int, lost: tuple[int, ...], but_not_from: int | None = None) -> dict[str, torch.Tensor]:
        """All of the state: what `lost` nodes had is rebuilt by the first that lives."""
        units = {name: UnitState(name, JOB, is_to_come=True) for name in LAYOUT.holders()}
        first = next(node for node in range(NODES) if node not in lost)
        pieces = []
        for name in units:
            for node in range(NODES):
                if node == but_not_from:
                    continue
                own = self.sources[node]
                source: SnapshotSource | ParitySource = own
                if node in lost:
                    source = ParitySource(first, self.sources[first].address, node)
                pieces.append(Piece(name, source, 0, Share(node, NODES)))
        fetch_pieces(pieces, Version(step, LINEAGE), units, TOKEN)
        return {name: unit.storage for name, unit in units.items()}

    def close(self) -> None:
        for process in self.processes:
            process.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Nodes]]:
    yield from started(Nodes)


@pytest.mark.parametrize(("protection", "num_lost"), [("xor", 1), ("pq", 2)])
def test_what_lost_nodes_had_is_rebuilt_bit_for_bit(start, protection: Protection, num_lost: int) -> None:
    nodes = start(protection)
    nodes.snapshot(1)
    values = nodes.snapshot(2)
    assert not nodes.warnings
    lost: tuple[int, ...] = tuple(range(num_lost))
    for node in lost:
        nodes.processes[node].end()
    assert are_equal(nodes.fetch(2, lost), values)


@pytest.mark.parametrize("protection", ["xor", "pq"])
def test_a_node_rebuilds_for_any_other_that_does_not_answer(start, protection: Protection) -> None:
    """Nobody is dead: those that are asked for are as good as lost to whoever does not ask them."""
    nodes = start(protection)
    values = nodes.snapshot(1)
    for lost in combinations(range(NODES), 1 if protection == "xor" else 2):
        assert are_equal(nodes.fetch(1, lost), values)


@pytest.mark.parametrize(("protection", "num_lost"), [("none", 1), ("copy", 2), ("xor", 2), ("pq", 3)])
def test_more_than_the_code_can_bear_is_refused(start, protection: Protection, num_lost: int) -> None:
    nodes = start(protection)
    nodes.snapshot(1)
    # Of pairs, both: nodes 0 and 2 have each other's copies.
    lost = (0, 2, 3)[:num_lost]
    for node in lost:
        nodes.processes[node].end()
    reason = "is not here" if protection == "none" else "stripes are lost, more than there is parity for|is not here"
    with pytest.raises(StoredStateRefused, match=reason):
        nodes.fetch(1, lost)


def test_what_is_damaged_elsewhere_counts_as_lost_when_a_node_is_rebuilt(start) -> None:
    """Node 0 is lost, and a bit of what node 1 has: P+Q bears both, and nothing that is damaged is used."""
    nodes = start("pq")
    values = nodes.snapshot(1)
    nodes.processes[0].end()
    nodes.processes[1].damage(nodes.states[1].units["layer.0"].views(Share(1, NODES))[0])
    with pytest.raises(StoredStateRefused, match=r"node 1's snapshots: layer\.0 of step 1, from rank 1 is damaged"):
        nodes.fetch(1, (0,))
    assert are_equal(nodes.fetch(1, (0, 1)), values)


def test_who_did_not_answer_in_time_is_asked_again_where_it_matters(start) -> None:
    nodes = start("xor", 1 << 26, 0.2)
    values = nodes.snapshot(1)
    stopped = nodes.processes[2].child
    nodes.processes[1].end()
    stopped.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoredStateRefused, match="more than there is parity for"):
            nodes.fetch(1, (1,), but_not_from=2)
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert are_equal(nodes.fetch(1, (1,)), values)


def test_a_process_that_is_gone_refuses_connections_at_once(start) -> None:
    """Nothing of it goes on to listen: nobody waits for its answer, and its successor has its address."""
    nodes = start("xor")
    nodes.snapshot(1)
    nodes.processes[1].end()
    with pytest.raises(ConnectionRefusedError):
        SnapshotPeer(nodes.sources[1].address, TOKEN)
    nodes.processes[1].start()
    with SnapshotPeer(nodes.sources[1].address, TOKEN):
        pass


def test_a_death_in_the_middle_of_an_encoding_leaves_the_version_before_as_it_was(start) -> None:
    """Two nodes of a P+Q group at once, while both have begun the parity of the next version."""
    nodes = start("pq")
    values = nodes.snapshot(1)
    lost = nodes.processes[2:]
    for process in lost:
        process.hold(2)
    nodes.begin(2)
    assert [process.next_line() for process in lost] == ["encode of step 2"] * 2
    for process in lost:
        process.end()
    assert are_equal(nodes.fetch(1, (2, 3)), values)


def test_without_room_for_parity_the_snapshot_counts_and_the_reason_is_told(start) -> None:
    nodes = start("pq")
    nodes.snapshot(1)
    needed = 3 * sum(unit.storage.nbytes for unit in nodes.states[0].units.values()) // NODES
    nodes = start("pq", needed)
    nodes.snapshot(1)
    assert any("bytes are needed for parity" in warning for warning in nodes.warnings), nodes.warnings


def test_the_others_do_not_wait_for_what_a_lost_process_had(start) -> None:
    """It is started again, its rank begins another snapshot, and with it all the others."""
    nodes = start("xor")
    nodes.snapshot(1)
    nodes.begin(2)
    nodes.processes[1].end()
    wait_until(lambda: nodes.writers[1].stored_step == LOST)
    nodes.processes[1].start()
    steps = count(3)

    def is_kept_again() -> bool:
        agreed = min(writer.stored_step for writer in nodes.writers)
        for writer in nodes.writers:
            writer.agree(agreed)
        nodes.begin(next(steps))
        return agreed >= 3

    wait_until(is_kept_again)
