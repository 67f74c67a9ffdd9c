"""State that moves while a step computes: begun once, checked, and counted only when it is whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mecefo_runtime.job.background import Background, ShadowUnit
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout, Replica, Span, Transfer
from mecefo_runtime.state.fetch import Fetching
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.transfer import StateCorrupt
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE

pytestmark = pytest.mark.unit

JOB = JobConfig(nodes=1, gpus_per_node=2, data_parallel=2, pipeline=1)
# Rank 0 computes; rank 1 gets one layer in step 3 and another one in step 4.
LAYOUT = Layout(4, (Replica(0, (Span(0, 0, 4),), 6),))
BACKGROUND = Background((ShadowUnit("layer.1", 1, 3, 0), ShadowUnit("layer.2", 1, 4, 0)))


class Done:
    """An operation that needs no waiting."""

    is_message = False
    finish = None

    def wait(self) -> None:
        """It is done."""


class Wire:
    """What has been sent, by tag: in the order of the test, senders come before receivers."""

    def __init__(self) -> None:
        self.sent: dict[int, Tensor] = {}

    def of(self, rank: int) -> Any:
        wire = self

        class Groups:
            def __init__(self) -> None:
                self.rank = rank
                self.received: list[tuple[Tensor, int]] = []

            def send(self, tensor: Tensor, destination: int, tag: int) -> Done:
                assert (rank, destination) == (0, 1)
                assert tag not in wire.sent
                wire.sent[tag] = tensor
                return Done()

            def start_receive(self, tensor: Tensor, source: int, tag: int) -> Done:
                assert (source, rank) == (0, 1)
                self.received.append((tensor, tag))
                return Done()

        return Groups()


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecefo_runtime.state.transfer.wait_all", lambda operations: None)


class Side:
    """One of the two ranks."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.groups = wire.of(rank)
        self.wire = wire
        self.state = ModelState(JOB, LAYOUT, rank, {}, STEP_STATS_SIZE, BACKGROUND)
        self.fetching = Fetching(BACKGROUND, self.groups, self.state)

    def deliver(self) -> None:
        """What was sent arrives."""
        for tensor, tag in self.groups.received:
            tensor.copy_(self.wire.sent.pop(tag))
        self.groups.received.clear()
        assert not self.wire.sent


def both() -> tuple[Side, Side]:
    wire = Wire()
    source, destination = Side(wire, 0), Side(wire, 1)
    for unit in source.state.units.values():
        unit.storage.normal_()
    return source, destination


def test_each_unit_comes_in_its_step_and_counts_when_it_is_there() -> None:
    source, destination = both()
    for step, there in ((2, set()), (3, {"layer.1"}), (4, {"layer.1", "layer.2"}), (5, {"layer.1", "layer.2"})):
        for side in (source, destination):
            side.fetching.begin(step)
        before = destination.fetching.received
        source.fetching.finish()
        destination.deliver()
        assert destination.fetching.received == before, "not before it was checked"
        destination.fetching.finish()
        assert destination.fetching.received == there
        for unit in there:
            assert torch.equal(destination.state.units[unit].storage, source.state.units[unit].storage)
    assert source.fetching.received == frozenset()


def test_a_step_that_is_computed_again_begins_it_once() -> None:
    source, destination = both()
    for _ in range(2):
        for side in (source, destination):
            side.fetching.begin(3)
    assert len(destination.groups.received) == 2  # the unit and its checksum
    source.fetching.finish()
    destination.deliver()
    destination.fetching.finish()
    assert destination.fetching.received == {"layer.1"}


def test_what_arrives_damaged_is_refused() -> None:
    source, destination = both()
    for side in (source, destination):
        side.fetching.begin(3)
    source.fetching.finish()
    destination.deliver()
    destination.state.units["layer.1"].storage[7] += 1.0
    with pytest.raises(StateCorrupt, match=r"damaged: layer\.1 from rank 0") as refused:
        destination.fetching.finish()
    assert refused.value.damaged == (Transfer("layer.1", 0, 1),)
    assert destination.fetching.received == frozenset()
