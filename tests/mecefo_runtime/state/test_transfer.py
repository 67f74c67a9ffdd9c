"""Units on their way between ranks: several at once, checked beside, and told apart when they arrive damaged."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from mecefo_runtime.comm.operations import Operation
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Transfer
from mecefo_runtime.state.transfer import StateCorrupt, move_units
from mecefo_runtime.state.units import UnitState
from tests.mecefo_runtime.comm.test_groups import DEADLINE_SECONDS, Rendezvous, form, on_all_ranks

pytestmark = pytest.mark.unit

JOB = JobConfig()
NAMES = ("layer.0", "layer.1", "layer.2", "layer.3")


@pytest.fixture
def groups():
    rendezvous = Rendezvous()
    formed = on_all_ranks(lambda rank: form(rendezvous, rank))
    yield formed
    for group in formed.values():
        group.close()


@pytest.fixture
def held() -> dict[str, UnitState]:
    units = {name: UnitState(name, JOB) for name in NAMES}
    for number, unit in enumerate(units.values()):
        unit.storage.normal_(generator=torch.Generator().manual_seed(number))
    return units


class Sides:
    """Rank 0 holds all units and rank 1 half of them; rank 3 is to get them, rank 2 is there for nothing."""

    transfers = tuple(Transfer(name, number % 2, 3) for number, name in enumerate(NAMES))

    def __init__(self, groups, held: dict[str, UnitState]) -> None:
        self.groups, self.held = groups, held
        self.received = {name: UnitState(name, JOB, is_to_come=True) for name in NAMES}
        self.damaged: tuple[Transfer, ...] = ()

    def move(self, rank: int) -> tuple[float, int] | None:
        try:
            if rank == 3:
                return move_units(self.groups[rank], self.received, {}, self.transfers)
            return move_units(self.groups[rank], self.held, {}, self.transfers)
        except StateCorrupt as error:
            self.damaged = error.damaged
            raise


def test_units_arrive_as_they_were_from_several_ranks_at_once(groups, held):
    sides = Sides(groups, held)
    results = on_all_ranks(sides.move)
    size = held["layer.0"].storage.nbytes
    assert [moved_bytes for _, moved_bytes in (results[rank] for rank in range(4))] == [2 * size, 2 * size, 0, 4 * size]
    for name in NAMES:
        assert torch.equal(sides.received[name].storage, held[name].storage)


def test_what_arrives_damaged_is_told_with_its_sender_and_the_rest_is_received(groups, held, monkeypatch):
    sides = Sides(groups, held)
    send = groups[1].send

    def flip(tensor: Tensor, destination: int, tag: int) -> Operation:
        # What goes into the checksum is what was there, what goes out is not.
        if tensor.dtype == torch.float32:
            tensor = tensor.clone()
            tensor[7] += 1.0
        return send(tensor, destination, tag)

    monkeypatch.setattr(groups[1], "send", flip)
    results = on_all_ranks(sides.move)
    assert results[3] == "state arrived damaged: layer.1 from rank 1, layer.3 from rank 1"
    assert sides.damaged == (Transfer("layer.1", 1, 3), Transfer("layer.3", 1, 3))
    assert all(torch.equal(sides.received[name].storage, held[name].storage) for name in ("layer.0", "layer.2"))


def test_no_unit_waits_for_the_checksum_of_another(groups, held, monkeypatch):
    """All are on their way before the first checksum is known, and the training thread computes none."""
    sides = Sides(groups, held)
    begun, are_all_begun = [], threading.Event()
    checksum = UnitState.checksum

    def wait_for_all(unit: UnitState) -> int:
        assert threading.current_thread().name.startswith("checksum")
        assert are_all_begun.wait(DEADLINE_SECONDS), "a unit was held back"
        return checksum(unit)

    def note(send, tensor: Tensor, destination: int, tag: int) -> Operation:
        if tensor.dtype == torch.float32:
            begun.append(tag)
            if len(begun) == len(NAMES):
                are_all_begun.set()
        return send(tensor, destination, tag)

    for rank in (0, 1):
        monkeypatch.setattr(groups[rank], "send", lambda *told, send=groups[rank].send: note(send, *told))
    monkeypatch.setattr(UnitState, "checksum", wait_for_all)

    results = on_all_ranks(sides.move)
    assert len(results) == 4, "a checksum was computed elsewhere"
    assert len(begun) == len(NAMES)
    assert all(torch.equal(sides.received[name].storage, held[name].storage) for name in NAMES)
