"""How tensors travel: the choice, the lanes, and staging between real gloo groups of one process's threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.nccl import ConfirmedWork
from mecefo_runtime.comm.operations import NOT_YET, EpochBroken, Operation, Waiter, wait_all
from mecefo_runtime.comm.rendezvous import RendezvousStore
from mecefo_runtime.comm.transport import Lane, Staged, lanes
from mecefo_runtime.job.background import Background, ShadowUnit
from mecefo_runtime.job.layout import Cluster, Transfer
from mecefo_runtime.state.transfer import STATE_TAG
from mecefo_runtime.system.devices import choose_way
from tests.mecefo_runtime.comm.test_groups import (
    DEADLINE_SECONDS,
    REDUCTIONS,
    TIMEOUT_SECONDS,
    Rendezvous,
    on_all_ranks,
)
from tests.mecefo_runtime.membership.membership_world import World
from tests.planning import layout_of

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=2, gpus_per_node=3, data_parallel=2, pipeline=3, num_layers=6, num_microbatches=4)
LAYOUT = layout_of("exact", CLUSTER, range(6))
UUIDS = st.sampled_from([None, *(f"GPU-{letter}" for letter in "abcdefgh")])


# ---- the choice ----


@given(st.dictionaries(st.integers(0, 20), UUIDS, min_size=1))
def test_nccl_is_chosen_exactly_when_every_member_has_a_gpu_of_its_own(found: dict[int, str | None]) -> None:
    has_own = all(
        mine is not None and all(mine != other for peer, other in found.items() if peer != rank)
        for rank, mine in found.items()
    )
    assert choose_way(found) == ("nccl" if has_own and len(found) > 1 else "gloo")


@pytest.mark.parametrize(("num_gpus", "backend"), [(0, "gloo"), (4, "gloo"), (8, "nccl")])
def test_the_log_says_of_every_epoch_what_its_groups_use(num_gpus: int, backend: str) -> None:
    world = World()
    for rank in world.ranks.values():
        device = f"GPU-{rank.rank % num_gpus}" if num_gpus else None
        world.coordinator.on_hello(replace(rank.hello(), nccl_device=device))
    assert world.last("layout")["group_backend"] == backend


@given(st.dictionaries(st.integers(0, 20), UUIDS, min_size=1), st.randoms())
def test_the_order_in_which_members_are_known_changes_nothing(found: dict[int, str | None], random) -> None:
    shuffled = list(found.items())
    random.shuffle(shuffled)
    assert choose_way(dict(shuffled)) == choose_way(found)


# ---- lanes ----


def test_neighbours_of_a_pipeline_have_a_lane_each_way():
    found = lanes(LAYOUT, Background(), (), tuple(range(6)), measures_transfer=False)
    pipelines = [[span.rank for span in replica.spans] for replica in LAYOUT.replicas]
    expected = set()
    for first, second, third in pipelines:
        expected |= {(first, second), (second, first), (second, third), (third, second)}
    assert {(lane.source, lane.destination) for lane in found} == expected
    assert not any(lane.is_state for lane in found)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1])), st.booleans())
def test_every_message_of_state_has_its_lane_and_all_members_walk_the_same_way(
    pairs: list[tuple[int, int]], measures: bool
) -> None:
    transfers = [Transfer("layer.0", source, destination) for source, destination in pairs[::2]]
    shadows = tuple(ShadowUnit("layer.1", destination, 1, source) for source, destination in pairs[1::2])
    members = tuple(range(6))
    found = lanes(LAYOUT, Background(shadows), transfers, members, measures_transfer=measures)
    assert list(found) == sorted(set(found))
    for source, destination in pairs:
        assert Lane.of(source, destination, STATE_TAG) in found
    assert all(Lane(rank, (rank + 1) % 6, True) in found for rank in members) or not measures
    again = lanes(LAYOUT, Background(shadows[::-1]), transfers[::-1], members, measures_transfer=measures)
    assert again == found


def test_a_shadow_that_has_its_unit_needs_no_lane():
    found = lanes(LAYOUT, Background((ShadowUnit("layer.1", 5, 1),)), (), (0,), measures_transfer=True)
    assert not any(lane.is_state for lane in found)


# ---- staging ----


@pytest.fixture
def staged():
    rendezvous = Rendezvous()

    def form(rank: int) -> Groups:
        store = RendezvousStore(rendezvous.put, rendezvous.take)
        return Groups(store, 1, rank, range(4), REDUCTIONS, timeout_seconds=TIMEOUT_SECONDS, must_stage=True)

    formed = on_all_ranks(form)
    yield formed
    for group in formed.values():
        group.close()


def test_what_is_sent_is_what_it_was_when_the_send_began(staged):
    received = torch.zeros(1000)

    def act(rank: int) -> None:
        if rank == 0:
            tensor = torch.arange(1000.0)
            sending = staged[0].send(tensor, 1, 3)
            tensor.zero_()
            sending.wait()
        elif rank == 1:
            staged[1].receive(received, 0, 3)

    on_all_ranks(act)
    assert torch.equal(received, torch.arange(1000.0))


def test_a_received_tensor_changes_when_it_is_waited_for_and_messages_keep_their_tags(staged):
    later, sooner = torch.zeros(1), torch.zeros(1)

    def act(rank: int) -> bool | None:
        if rank == 2:
            wait_all([staged[2].send(torch.tensor([tag * 1.0]), 3, tag) for tag in (5, 6)])
        if rank == 3:
            receiving = [staged[3].start_receive(later, 2, 6), staged[3].start_receive(sooner, 2, 5)]
            was_untouched = not later and not sooner
            wait_all(receiving)
            return was_untouched
        return None

    assert on_all_ranks(act)[3] is True
    assert (float(later), float(sooner)) == (6.0, 5.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_a_view_is_reduced_in_place(staged, dtype):
    holders = REDUCTIONS[0]
    flat = {rank: torch.full((10,), rank + 1, dtype=dtype) for rank in holders}

    def act(rank: int) -> None:
        if rank in holders:
            work = staged[rank].start_all_reduce(flat[rank][2:5], holders)
            assert work is not None
            work.wait()

    on_all_ranks(act)
    total = sum(rank + 1 for rank in holders)
    for rank in holders:
        assert flat[rank].tolist() == [rank + 1] * 2 + [total] * 3 + [rank + 1] * 5


def test_an_abort_ends_a_staged_receive_and_leaves_the_tensor_alone(staged):
    blocked = threading.Event()
    tensor = torch.full((3,), 7.0)

    def act(rank: int) -> None:
        if rank == 0:
            assert blocked.wait(DEADLINE_SECONDS)
            staged[1].abort()
        elif rank == 1:
            work = staged[1].start_receive(tensor, 2, 7)
            blocked.set()
            with pytest.raises(EpochBroken):
                work.wait()

    on_all_ranks(act)
    assert tensor.tolist() == [7.0] * 3


# ---- NCCL's operations: when one counts as done ----


class Owner:
    """What waits need of groups."""

    waiter = Waiter()
    timeout = timedelta(seconds=0.2)

    def is_given_up(self) -> bool:
        return False


class DeviceWork:
    """An operation of a device as torch shows it: complete from the `completes_at`-th look on."""

    def __init__(self, completes_at: int, error: str | None = None) -> None:
        self.num_looks = 0
        self.is_released = False
        self._completes_at = completes_at
        self._error = error

    def is_completed(self) -> bool:
        self.num_looks += 1
        return self.num_looks >= self._completes_at

    def wait(self) -> bool:
        self.is_released = True
        if self._error is not None:
            raise RuntimeError(self._error)
        return True


def wait_for(work: DeviceWork, is_aborted, finish=None) -> None:
    wait_all([Operation(ConfirmedWork(work, is_aborted), Owner(), is_message=False, finish=finish)])


def test_an_operation_of_a_device_is_done_when_the_device_says_so():
    work, finished = DeviceWork(3), []
    wait_for(work, lambda: False, lambda: finished.append(work.num_looks))
    assert finished == [3] and work.is_released


def test_an_operation_that_an_abort_completed_is_not_done():
    # The abort comes first, then the device reports the kernel as over: whoever looked in the other order would take
    # what is in the tensor for the sum.
    work = DeviceWork(4)
    with pytest.raises(EpochBroken, match="aborted"):
        wait_for(work, lambda: work.num_looks >= 4, lambda: pytest.fail("it is not done"))


def test_what_nccl_found_is_raised():
    with pytest.raises(EpochBroken, match="remote process exited"):
        wait_for(DeviceWork(1, "remote process exited"), lambda: False)


def test_a_peer_that_never_answers_is_given_up_by_the_time_out():
    work = DeviceWork(10**9)
    with pytest.raises(EpochBroken, match=NOT_YET):
        wait_for(work, lambda: False)
    assert work.num_looks > 1


def test_the_staging_of_a_carrier_that_is_closed_elsewhere_ends_nothing():
    class Carrier:
        pass

    staged = Staged(Carrier())  # type: ignore[arg-type]
    assert staged.abort() == 0
    staged.close()
