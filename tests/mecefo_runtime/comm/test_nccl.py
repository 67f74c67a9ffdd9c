"""The use of NCCL's groups, with gloo's in their place: who forms what with whom, and what goes where.

Nothing here tells whether NCCL itself does what torch's sources say; see docs/explanation/devices.md.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

from mecefo_runtime.comm import nccl
from mecefo_runtime.comm.exchange import exchange
from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.nccl import Nccl
from mecefo_runtime.comm.operations import EpochBroken, Owner, wait_all
from mecefo_runtime.comm.rendezvous import RendezvousStore
from mecefo_runtime.comm.transport import lanes
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.layout import Transfer
from mecefo_runtime.state.transfer import STATE_TAG
from tests.mecefo_runtime.comm.test_groups import (
    DEADLINE_SECONDS,
    LAYOUT,
    REDUCTIONS,
    TIMEOUT_SECONDS,
    Rendezvous,
    on_all_ranks,
)

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
TRANSFER = Transfer("layer.0", 3, 0)
LANES = lanes(LAYOUT, Background(), [TRANSFER], tuple(range(4)), measures_transfer=False)


class Work:
    """A work of gloo that can be asked whether it is complete, as NCCL's can."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._error: str | None = None
        self._is_completed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work.wait(timedelta(seconds=DEADLINE_SECONDS))
        except RuntimeError as error:
            self._error = str(error)
        self._is_completed.set()

    def is_completed(self) -> bool:
        return self._is_completed.is_set()

    def wait(self) -> bool:
        if self._error is not None:
            raise RuntimeError(self._error)
        return True


class Communicator:
    """Stands for ProcessGroupNCCL: the same calls, and like it no use before it was connected."""

    formed: list[tuple[str, list[int]]]

    class Options:
        _timeout = timedelta()
        group_name = ""
        global_ranks_in_group: list[int]

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        assert options._timeout == timedelta(seconds=TIMEOUT_SECONDS)
        self._arguments = store, rank, size
        self._options = options
        self.num_aborts = 0
        self._group: Any = None

    def eager_connect_single_device(self, device: torch.device) -> None:
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=DEADLINE_SECONDS)
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        self._group = gloo(*self._arguments, options)
        Communicator.formed.append((self._options.group_name, self._options.global_ranks_in_group))

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Work:
        return Work(self._group.send(tensors, destination, tag))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        return Work(self._group.recv(tensors, source, tag))

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        return Work(self._group.allreduce(tensors))

    def abort(self) -> None:
        self.num_aborts += 1


@pytest.fixture
def groups(monkeypatch):
    Communicator.formed = []
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Communicator, raising=False)
    for name in ("set_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    rendezvous = Rendezvous()

    def form(rank: int) -> Groups:
        def form_nccl(owner: Owner) -> Nccl:
            store = RendezvousStore(rendezvous.put, rendezvous.take, nccl.FORM_TIMEOUT_SECONDS)
            return Nccl(store, "1", rank, LANES, REDUCTIONS, owner, CPU)

        store = RendezvousStore(rendezvous.put, rendezvous.take)
        # Staging is only what a tensor in host memory would not get: here, what stands for NCCL.
        return Groups(
            store,
            1,
            rank,
            range(4),
            REDUCTIONS,
            timeout_seconds=TIMEOUT_SECONDS,
            form_device_groups=form_nccl,
            must_stage=True,
        )

    formed = on_all_ranks(form)
    yield formed
    for group in formed.values():
        group.close()


def test_every_lane_and_every_reduction_is_formed_once_by_each_of_its_members(groups):
    names = [name for name, _ in Communicator.formed]
    assert sorted(set(names)) == sorted(
        [f"1/{lane.source}-to-{lane.destination}-{'state' if lane.is_state else 'activations'}" for lane in LANES]
        + ["1/" + "-".join(map(str, holders)) for holders in REDUCTIONS]
    )
    for name, ranks in Communicator.formed:
        assert names.count(name) == len(ranks)


def test_both_sides_of_a_pipeline_may_ask_in_orders_that_one_communicator_could_not_serve(groups):
    first, second = (span.rank for span in LAYOUT.replicas[0].spans)
    received = {rank: [torch.zeros(1) for _ in range(3)] for rank in (first, second)}

    def act(rank: int) -> None:
        if rank == first:
            wait_all([groups[first].send(torch.tensor([10.0 + i]), second, 2 * i) for i in range(3)])
            for index, tensor in enumerate(received[first]):
                groups[first].receive(tensor, second, 2 * index + 1)
        elif rank == second:
            sends = []
            for index, tensor in enumerate(received[second]):
                sends.append(groups[second].send(torch.tensor([20.0 + index]), first, 2 * index + 1))
                groups[second].receive(tensor, first, 2 * index)
            wait_all(sends)

    on_all_ranks(act)
    assert [float(t) for t in received[second]] == [10.0, 11.0, 12.0]
    assert [float(t) for t in received[first]] == [20.0, 21.0, 22.0]


def test_state_travels_on_its_own_lane_and_gradients_are_summed(groups):
    state, holders = torch.zeros(4), REDUCTIONS[0]

    def act(rank: int) -> float | None:
        if rank == TRANSFER.source:
            groups[rank].send(torch.arange(4.0), TRANSFER.destination, STATE_TAG).wait()
        elif rank == TRANSFER.destination:
            groups[rank].receive(state, TRANSFER.source, STATE_TAG)
        if rank not in holders:
            return None
        gradient = torch.tensor([rank + 1.0])
        wait_all([groups[rank].start_all_reduce(gradient, holders)])
        return float(gradient)

    sums = on_all_ranks(act)
    assert state.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert {sums[rank] for rank in holders} == {sum(rank + 1.0 for rank in holders)}


def test_an_abort_reaches_every_communicator_once_and_nothing_starts_or_ends_well_after_it(groups):
    first, second = (span.rank for span in LAYOUT.replicas[0].spans)
    device_groups = groups[first]._device
    communicators = list(device_groups._groups.values())
    work = groups[first].start_receive(torch.zeros(1), second, 1)
    # It does arrive, but after the abort nobody can tell that from what the abort itself brought to an end.
    groups[first].abort()
    groups[second].send(torch.ones(1), first, 1)
    with pytest.raises(EpochBroken, match="aborted"):
        work.wait()
    with pytest.raises(EpochBroken, match="aborted"):
        groups[first].send(torch.zeros(1), second, 2)
    groups[first].abort()
    device_groups.close()
    assert [communicator.num_aborts for communicator in communicators] == [1] * len(communicators)
    assert not device_groups._groups


def test_an_abort_that_does_not_end_is_not_taken_for_one_that_did(groups, monkeypatch):
    monkeypatch.setattr(nccl, "ABORT_DEADLINE_SECONDS", 0.05)
    device_groups = groups[0]._device
    may_end = threading.Event()
    for communicator in device_groups._groups.values():
        communicator.abort = may_end.wait
    with pytest.raises(RuntimeError, match="did not end its operations"):
        device_groups.close()
    may_end.set()


def test_the_commit_does_not_go_by_nccl(groups):
    for group in groups.values():
        group._must_stage = False

    def act(rank: int) -> list[float]:
        groups[rank]._device.abort()
        return exchange(groups[rank], 0, torch.tensor([rank + 1.0], dtype=torch.float64)).tolist()

    assert list(on_all_ranks(act).values()) == [[10.0]] * 4
