"""What survives a coordinator: seen by whoever is forked after it was noted, whoever noted it."""

from __future__ import annotations

import pytest

from mecefo_runtime.membership.coordinator_checkpoint import CoordinatorCheckpoint
from mecefo_runtime.system.process import run_apart

pytestmark = pytest.mark.unit


def test_a_successor_knows_the_newest_epoch_of_its_predecessors():
    checkpoint = CoordinatorCheckpoint()
    assert checkpoint.epoch == 0

    def lead(epochs: list[int]) -> str:
        known = checkpoint.epoch
        for epoch in epochs:
            checkpoint.note(epoch)
        return str(known)

    assert run_apart(lambda: lead([0])) == "0"
    assert run_apart(lambda: lead([1, 5])) == "0"
    # A successor has no epoch of its own to begin with.
    assert run_apart(lambda: lead([0, 300])) == "5"
    assert checkpoint.epoch == 300
    assert CoordinatorCheckpoint().epoch == 0


def test_neither_epochs_nor_steps_go_back():
    checkpoint = CoordinatorCheckpoint()
    checkpoint.note(2, 10)
    checkpoint.note(3, 4)
    checkpoint.note(1, 11)
    assert (checkpoint.epoch, checkpoint.step) == (3, 11)
