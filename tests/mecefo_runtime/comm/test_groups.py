"""Real gloo groups between the threads of one process: what a blocked operation needs to end, and what carries it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mecefo_runtime.comm.exchange import exchange
from mecefo_runtime.comm.groups import Formation, Groups
from mecefo_runtime.comm.operations import EpochBroken, Operation
from mecefo_runtime.comm.rendezvous import FORM_TIMEOUT_SECONDS, RendezvousStore, form_timeout_seconds, gloo_listener
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.step.calibrate import PROBE_BYTES, measure_transfer
from tests.planning import layout_of

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=2, num_microbatches=2)
LAYOUT = layout_of("exact", CLUSTER, range(4))
REDUCTIONS = Background().reduction_groups(LAYOUT)
DEADLINE_SECONDS = 120.0
# Of the groups: what ends by it alone is not over before the deadline.
TIMEOUT_SECONDS = 10 * DEADLINE_SECONDS


class Rendezvous:
    """Values that threads publish for each other."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def take(self, key: str, timeout_seconds: float) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_seconds):
                raise EpochBroken(f"nobody published {key}")
            return self.values[key]


def form(rendezvous: Rendezvous, rank: int) -> Groups:
    store = RendezvousStore(rendezvous.put, rendezvous.take)
    return Groups(store, 1, rank, range(4), REDUCTIONS, timeout_seconds=TIMEOUT_SECONDS)


def on_all_ranks(act: Callable[[int], object]) -> dict[int, object]:
    """Run `act` as each rank on a thread of its own; exceptions are results too."""
    results: dict[int, object] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except EpochBroken as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    return results


@pytest.fixture
def groups():
    rendezvous = Rendezvous()
    formed = on_all_ranks(lambda rank: form(rendezvous, rank))
    yield formed
    for group in formed.values():
        group.close()


def test_every_rank_gets_the_very_same_sum(groups):
    parts = {rank: torch.tensor([0.1 * rank, 1.0], dtype=torch.float64) for rank in range(4)}
    sums = on_all_ranks(lambda rank: exchange(groups[rank], 0, parts[rank]))
    assert all(torch.equal(sums[rank], sums[0]) for rank in range(4))
    assert sums[0].tolist() == pytest.approx([0.6, 4.0])


def test_nobody_has_the_sum_before_everybody_has_added(groups):
    may_add = threading.Event()
    has_sum = threading.Event()

    def add(rank: int) -> None:
        if rank == 3:
            assert may_add.wait(DEADLINE_SECONDS)
        exchange(groups[rank], 0, torch.ones(1))
        has_sum.set()

    watcher: list[bool] = []

    def watch() -> None:
        watcher.append(has_sum.wait(0.3))
        may_add.set()

    thread = threading.Thread(target=watch)
    thread.start()
    on_all_ranks(add)
    thread.join()
    assert watcher == [False]
    assert has_sum.is_set()


def test_gradients_are_summed_over_the_holders_of_a_unit(groups):
    holders = LAYOUT.holders()["layer.0"]

    def reduce(rank: int) -> float | None:
        if rank not in holders:
            return None
        tensor = torch.tensor([float(rank + 1)])
        work = groups[rank].start_all_reduce(tensor, holders)
        assert work is not None
        work.wait()
        return float(tensor)

    sums = on_all_ranks(reduce)
    assert {sums[rank] for rank in holders} == {float(sum(rank + 1 for rank in holders))}


def test_abort_ends_a_blocked_receive_long_before_its_time_out(groups):
    blocked = threading.Event()

    def act(rank: int) -> object:
        if rank == 0:
            assert blocked.wait(DEADLINE_SECONDS)
            return groups[1].abort()
        if rank == 1:
            work = groups[1].start_receive(torch.empty(1), 2, 7)
            blocked.set()
            with pytest.raises(RuntimeError):
                work.wait()
            return "ended"
        return None

    results = on_all_ranks(act)
    assert results[1] == "ended"
    assert isinstance(results[0], int) and results[0] > 0


def test_an_address_that_gloo_publishes_says_where_it_listens(groups):
    store = groups[0]._store
    assert store.listeners
    assert all(address == "127.0.0.1" and 1024 < port < 65536 for address, port in store.listeners)


@pytest.mark.parametrize("blob", [b"", b"1234567", bytes(8), b"\xff" * 40])
def test_something_else_names_none(blob):
    assert gloo_listener(blob) is None


def test_a_formation_whose_peers_never_come_is_given_up_by_its_own_time_out():
    rendezvous = Rendezvous()
    told = threading.Event()
    formation = Formation(lambda: form(rendezvous, 0), told.set)
    assert told.wait(DEADLINE_SECONDS)
    assert formation.done
    with pytest.raises(EpochBroken):
        formation.take()


class Closing:
    """Groups of which it is only known whether they were closed."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def close(self) -> None:
        assert not self.is_closed.is_set()
        self.is_closed.set()


@pytest.mark.parametrize("is_late", [False, True])
def test_groups_that_nobody_takes_are_closed(is_late):
    groups: Any = Closing()
    may_form, told = threading.Event(), threading.Event()

    def form_late() -> Groups:
        assert may_form.wait(DEADLINE_SECONDS)
        return groups

    formation = Formation(form_late, told.set)
    if is_late:
        formation.abandon()
    may_form.set()
    assert told.wait(DEADLINE_SECONDS)
    formation.abandon()
    assert groups.is_closed.wait(DEADLINE_SECONDS)
    with pytest.raises(EpochBroken):
        formation.take()


def test_groups_that_were_taken_stay_open():
    groups: Any = Closing()
    told = threading.Event()
    formation = Formation(lambda: groups, told.set)
    assert told.wait(DEADLINE_SECONDS)
    assert formation.take() is groups
    formation.abandon()
    assert not groups.is_closed.is_set()


def test_how_fast_state_moves_is_measured_when_the_ways_are_open(groups, monkeypatch):
    """With NCCL the first message between two ranks takes much longer than all others."""
    seconds = 1.0
    num_sends = dict.fromkeys(groups, 0)

    def measure(rank: int) -> float | None:
        send = groups[rank].send

        def slow_at_first(tensor: torch.Tensor, destination: int, tag: int) -> Operation:
            if num_sends[rank] == 0:
                time.sleep(seconds)
            num_sends[rank] += 1
            return send(tensor, destination, tag)

        monkeypatch.setattr(groups[rank], "send", slow_at_first)
        return measure_transfer(groups[rank], torch.device("cpu"))

    speeds = on_all_ranks(measure)
    assert all(count > 1 for count in num_sends.values())
    assert min(speeds.values()) > PROBE_BYTES / seconds


def test_many_members_have_more_time_to_form():
    assert form_timeout_seconds(2) == form_timeout_seconds(8) == FORM_TIMEOUT_SECONDS
    assert form_timeout_seconds(32) == 4 * FORM_TIMEOUT_SECONDS


# Two gloo ranks of one process do not always find each other on a busy machine.
@pytest.mark.nightly
def test_a_process_that_ends_right_after_its_groups_ends_well():
    needs = "from mecefo_runtime.training.two_ranks import on_two_ranks"
    program = f"{needs}; print(on_two_ranks(lambda groups: groups.rank))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0, 1]\n", "")
