"""What survives a coordinator: seen by whoever is forked after it was noted, whoever noted it."""

from __future__ import annotations

import pytest

from mecefo_runtime.membership.succession import Succession
from mecefo_runtime.system.process import run_apart

pytestmark = pytest.mark.unit


def test_a_successor_knows_the_newest_epoch_of_its_predecessors():
    succession = Succession()
    assert succession.epoch == 0

    def lead(epochs: list[int]) -> str:
        known = succession.epoch
        for epoch in epochs:
            succession.note(epoch)
        return str(known)

    assert run_apart(lambda: lead([0])) == "0"
    assert run_apart(lambda: lead([1, 5])) == "0"
    # A successor has no epoch of its own to begin with.
    assert run_apart(lambda: lead([0, 300])) == "5"
    assert succession.epoch == 300
    assert Succession().epoch == 0


def test_neither_epochs_nor_steps_go_back():
    succession = Succession()
    succession.note(2, 10)
    succession.note(3, 4)
    succession.note(1, 11)
    assert (succession.epoch, succession.step) == (3, 11)
