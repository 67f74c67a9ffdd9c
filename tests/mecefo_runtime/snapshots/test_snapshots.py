"""Ranks and a real snapshot process: what was copied is there when the ranks are gone, bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Cluster, configured_layout
from mecefo_runtime.job.state_source import Piece, Share, Version
from mecefo_runtime.snapshots import writing
from mecefo_runtime.snapshots.messages import Store
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

JOB = JobConfig(MODEL, nodes=1, gpus_per_node=2, data_parallel=2, pipeline=1)
LAYOUT = configured_layout(Cluster(1, 2, data_parallel=2, pipeline=1, num_layers=2, num_microbatches=6))


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    yield from started(Process)


class Ranks:
    """Both ranks of a job of two replicas, with the same state, and what they copy of it."""

    def __init__(self, process: Process, every_steps: int = 1) -> None:
        self.warnings: list[str] = []
        self.states = [ModelState(JOB, LAYOUT, rank, {}, 0) for rank in (0, 1)]
        address = process.source.address
        self.announce: Callable[[int, str], None] = lambda step, phase: None
        told = every_steps, self.warnings.append, lambda step, phase: self.announce(step, phase)
        self.writers = [SnapshotWriter(address, TOKEN, rank, *told) for rank in (0, 1)]
        process.writers += self.writers
        for writer, state in zip(self.writers, self.states, strict=True):
            writer.enter(state, LINEAGE, (0, 1), {})

    def fill(self, step: int) -> dict[str, torch.Tensor]:
        """The state after `step`."""
        return fill(self.states, step)

    def copy(self, step: int) -> None:
        """What happens during the step after `step`, up to its optimizer."""
        for writer in self.writers:
            writer.begin(step + 1)
            writer.advance()
        for writer in self.writers:
            writer.finish()

    def commit(self) -> int:
        """What the commit of a step tells everybody."""
        agreed = min(writer.stored_step for writer in self.writers)
        for writer in self.writers:
            writer.agree(agreed)
        return agreed

    def snapshot(self, step: int) -> dict[str, torch.Tensor]:
        values = self.fill(step)
        self.copy(step)
        wait_until(lambda: all(writer.stored_step == step for writer in self.writers))
        self.commit()
        return values

    def snapshot_until_kept(self, first_step: int, newer_than: int = 0) -> tuple[int, dict[str, torch.Tensor]]:
        """Step until all have a newer one; returns which, and the state after it."""
        steps, values = count(first_step), {}

        def is_kept() -> bool:
            step = next(steps)
            values[step] = self.fill(step)
            self.copy(step)
            return self.commit() > newer_than

        wait_until(is_kept)
        kept = self.commit()
        return kept, values[kept]


def fetch(process: Process, step: int, shares: int = 2) -> dict[str, torch.Tensor]:
    units = {name: UnitState(name, JOB, is_to_come=True) for name in LAYOUT.holders()}
    pieces = [Piece(name, process.source, 0, Share(index, shares)) for name in units for index in range(shares)]
    fetch_pieces(pieces, Version(step, LINEAGE), units, TOKEN)
    return {name: unit.storage for name, unit in units.items()}


def test_what_both_ranks_copied_comes_back_bit_for_bit(start) -> None:
    process = start()
    ranks = Ranks(process)
    for step in (1, 2, 3):
        values = ranks.snapshot(step)
    ranks.fill(4)
    assert are_equal(fetch(process, 3), values)
    assert not ranks.warnings


def test_a_state_that_changes_after_the_copy_is_not_in_it(start) -> None:
    process = start()
    ranks = Ranks(process)
    values = ranks.fill(1)
    ranks.copy(1)
    ranks.fill(2)
    wait_until(lambda: all(writer.stored_step == 1 for writer in ranks.writers))
    assert are_equal(fetch(process, 1), values)


def test_no_snapshot_is_begun_before_all_ranks_have_the_last_one(start) -> None:
    process = start()
    ranks = Ranks(process)
    first = ranks.snapshot(1)
    ranks.fill(2)
    ranks.copy(2)
    wait_until(lambda: all(writer.stored_step == 2 for writer in ranks.writers))
    # Nobody has agreed on step 2: what all of them have is step 1, and must stay.
    ranks.fill(3)
    ranks.copy(3)
    assert are_equal(fetch(process, 1), first)
    assert all(writer.stored_step == 2 for writer in ranks.writers)
    with pytest.raises(StoredStateRefused, match=r"node 3's snapshots: .* at step 3 is not here"):
        fetch(process, 3)


def test_in_the_middle_of_a_copy_the_version_before_is_there_and_this_one_is_not(start) -> None:
    process = start()
    ranks = Ranks(process)
    values, found = ranks.snapshot(1), []

    def look(step: int, phase: str) -> None:
        found.append((step, phase))
        with pytest.raises(StoredStateRefused, match="is not here"):
            fetch(process, 2)
        assert are_equal(fetch(process, 1), values)

    ranks.announce = look
    newer = ranks.snapshot(2)
    assert are_equal(fetch(process, 2), newer)
    assert found == [(2, "snapshot")] * 2


def test_only_every_so_many_steps_are_copied(start) -> None:
    ranks = Ranks(start(), every_steps=5)
    for step in range(1, 5):
        ranks.fill(step)
        ranks.copy(step)
    assert all(writer.stored_step == 0 for writer in ranks.writers)
    ranks.snapshot(5)


def test_snapshots_outlive_the_ranks(start, tmp_path: Path) -> None:
    """The rank is another process, and is killed in the middle of a copy."""
    process = start()
    ready = tmp_path / "ready"
    pid = os.fork()
    if pid == 0:
        try:
            ranks = Ranks(process)
            ranks.snapshot(1)
            ranks.fill(2)
            for writer in ranks.writers:
                writer.begin(3)
                writer.advance()
            # Of the last unit not everything is copied yet.
            ready.touch()
            signal.pause()
        finally:
            os._exit(1)
    wait_until(ready.exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = fetch(process, 1)
    reference = Ranks(process)
    assert are_equal(found, reference.fill(1))


def test_without_room_training_goes_on_and_the_reason_is_told(start) -> None:
    ranks = Ranks(start(1 << 12))
    ranks.fill(1)
    ranks.copy(1)
    assert all(writer.stored_step == 0 for writer in ranks.writers)
    assert len(ranks.warnings) == 2 and all("no snapshots: " in w and "bytes are needed" in w for w in ranks.warnings)


def test_a_snapshot_that_is_not_kept_is_said_and_another_one_is_begun(start, monkeypatch) -> None:
    """The answer is not taken for one to what a rank asks next: it is given other memory, and goes on."""
    ranks = Ranks(start())
    ranks.snapshot(1)
    ranks.fill(2)
    send = SnapshotWriter._send

    def send_wrongly(writer: SnapshotWriter, message: object) -> None:
        if isinstance(message, Store):
            message = replace(message, region=99)
        send(writer, message)

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotWriter, "_send", send_wrongly)
        ranks.copy(2)
    wait_until(lambda: all(writer.stored_step == LOST for writer in ranks.writers))
    assert all("step 2 is not kept: there is no buffer" in warning for warning in ranks.warnings)
    assert len(ranks.warnings) == 2
    ranks.commit()
    ranks.snapshot(3)
    assert len(ranks.warnings) == 2


def test_training_does_not_wait_for_memory_that_is_long_in_coming(start, monkeypatch) -> None:
    monkeypatch.setattr(writing, "RESERVE_TIMEOUT_SECONDS", 0.0)
    ranks = Ranks(process := start())
    kept, values = ranks.snapshot_until_kept(1)
    assert are_equal(fetch(process, kept), values)
    assert not ranks.warnings


def test_a_process_that_is_started_again_gets_new_snapshots(start) -> None:
    process = start()
    ranks = Ranks(process)
    ranks.snapshot(1)
    process.end()
    wait_until(lambda: all(writer.stored_step == LOST for writer in ranks.writers))
    # While there is none, it is asked for now and then.
    for step in range(2, 6):
        ranks.commit()
        ranks.copy(step)
    assert len(ranks.warnings) == 2 and all("cannot be reached" in warning for warning in ranks.warnings)
    process.start()
    kept, values = ranks.snapshot_until_kept(6, newer_than=1)
    assert are_equal(fetch(process, kept), values)
    with pytest.raises(StoredStateRefused, match="is not here"):
        fetch(process, 1)


def test_who_does_not_know_the_token_gets_nothing(start) -> None:
    process = start()
    Ranks(process).snapshot(1)
    units = {"head": UnitState("head", JOB, is_to_come=True)}
    with pytest.raises(StoredStateRefused, match="connection closed"):
        fetch_pieces([Piece("head", process.source, 0, Share(0, 2))], Version(1, LINEAGE), units, "another token")


def test_a_process_that_is_gone_is_named(start) -> None:
    process = start()
    Ranks(process).snapshot(1)
    process.close()
    with pytest.raises(StoredStateRefused, match="node 3's snapshots: ") as refused:
        fetch(process, 1)
    assert refused.value.source == process.source
