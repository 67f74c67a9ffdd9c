"""Who finishes what its pipeline has in flight, and who leaves at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mecefo_runtime.comm.operations import EpochBroken, EpochOver
from mecefo_runtime.training import drain as drain_module
from mecefo_runtime.training.drain import Drain

pytestmark = pytest.mark.unit

PATIENCE_SECONDS = 2.0


class Client:
    """What the coordinator has called for."""

    must_leave = False
    lost: frozenset[int] = frozenset()

    def call(self, *lost: int) -> None:
        self.lost, self.must_leave = frozenset(lost), True

    def wait_until(self, is_done: Callable[[], bool], timeout_seconds: float) -> bool:
        assert timeout_seconds == PATIENCE_SECONDS
        if self.must_leave:
            raise EpochOver("called")
        return False


class Clock:
    """A monotonic clock that stands still."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(drain_module, "time", clock)
    return clock


def make() -> tuple[Drain, Client]:
    client: Any = Client()
    return Drain(client, PATIENCE_SECONDS), client


def test_undisturbed_ranks_compute_on() -> None:
    drain, _ = make()
    with drain.computing([0, 4]):
        assert not drain.must_stop() and not drain.is_under_way()


@pytest.mark.parametrize(("lost", "finishes"), [((1, 5), True), ((2, 4), False), ((), False)])
def test_a_pipeline_that_lost_nobody_finishes_first(lost: tuple[int, ...], finishes: bool) -> None:
    drain, client = make()
    with drain.computing([0, 4]):
        client.call(*lost)
        assert drain.is_under_way() is finishes
        if finishes:
            assert drain.must_stop()
        else:
            with pytest.raises(EpochOver):
                drain.must_stop()
    # What waits for the lost ranks, in a reduction or a commit, is ended.
    assert not drain.is_under_way()


def test_a_later_call_may_end_it() -> None:
    drain, client = make()
    with drain.computing([0, 4]):
        client.call(1)
        assert drain.must_stop()
        client.call(1, 4)
        with pytest.raises(EpochOver):
            drain.must_stop()


def test_it_takes_no_longer_than_the_last_pipeline_and_some_patience(clock: Clock) -> None:
    drain, client = make()
    with drain.computing([0, 4]):
        clock.now += 5.0
    with drain.computing([0, 4]):
        clock.now += 50.0
        client.call(1)
        assert drain.is_under_way()
        clock.now += 5.0 + PATIENCE_SECONDS - 0.1
        assert drain.must_stop()
        clock.now += 0.2
        assert not drain.is_under_way()
        with pytest.raises(EpochOver):
            drain.must_stop()


def test_a_pipeline_whose_last_stage_was_called_first_waits_for_the_call() -> None:
    drain, client = make()
    with pytest.raises(EpochBroken, match="nobody called"):
        drain.stopped()
    client.call(1)
    with pytest.raises(EpochOver):
        drain.stopped()
