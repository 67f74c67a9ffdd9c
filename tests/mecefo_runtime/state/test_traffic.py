"""Links of known speed: when what is posted is there, and that whoever receives it does not go on before."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import EpochBroken, Operation, wait_all
from mecefo_runtime.job.config import PRESETS, JobConfig
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.prediction.device_model import emulating
from mecefo_runtime.prediction.named_devices import named_device
from mecefo_runtime.prediction.rated_link import RatedLink
from mecefo_runtime.state.traffic import MAX_EARLY_SECONDS, Traffic
from mecefo_runtime.step.calibrate import PROBE_BYTES, measure_transfer
from mecefo_runtime.system.dilation import MAX_CARRIED_SECONDS
from mecefo_runtime.training.two_ranks import on_two_ranks

pytestmark = pytest.mark.unit

SLOW, FAST = Link(1e6, 0.5), Link(1e9, 0.001)
LINKS = Links(between_nodes=SLOW, inside_node=FAST)
DEADLINE_SECONDS = 120.0


def link(rank: int = 0, links: Links = LINKS) -> RatedLink:
    return RatedLink(links, rank, gpus_per_node=2)


def test_a_message_takes_latency_and_bytes_of_the_link_that_it_goes_over():
    assert link().post(2e6, 1, "message", 10.0) == pytest.approx(10.0 + FAST.message_seconds(2e6))
    assert link().post(2e6, 2, "message", 10.0) == pytest.approx(10.0 + 2.0 + 0.5)


def test_what_is_posted_together_is_carried_one_after_the_other():
    sender = link()
    dues = [sender.post(1e6, 2, "state", 10.0) for _ in range(3)]
    assert dues == pytest.approx([11.5, 12.5, 13.5])
    # Activations do not wait behind state, nor a message within the node behind one that leaves it.
    assert sender.post(1e6, 2, "message", 10.0) == pytest.approx(11.5)
    assert sender.post(1e6, 1, "state", 10.0) == pytest.approx(10.0 + FAST.message_seconds(1e6))


def test_what_comes_from_several_shares_the_way_in():
    receiver = link()
    assert receiver.arrive(1e6, 2, "state", 11.5) == pytest.approx(11.5)
    assert receiver.arrive(1e6, 3, "state", 11.5) == pytest.approx(12.5)
    assert receiver.arrive(1e6, 2, "message", 11.5) == pytest.approx(11.5)
    assert receiver.rated_seconds == pytest.approx(3 * 1.5)


def test_reductions_follow_each_other_on_the_slowest_link_between_their_holders():
    reducer = link()
    assert reducer.reduce(8e6, (0, 1), 10.0) == pytest.approx(10.0 + FAST.all_reduce_seconds(8e6, 2))
    of_three = SLOW.all_reduce_seconds(9e6, 3)
    assert of_three == pytest.approx(4 * (3.0 + 0.5))
    assert reducer.reduce(9e6, (0, 1, 2), 10.0) == pytest.approx(10.0 + of_three)
    assert reducer.reduce(9e6, (0, 1, 2), 10.0) == pytest.approx(10.0 + 2 * of_three)


def test_half_the_bandwidth_takes_twice_as_long():
    half = Links(Link(SLOW.bandwidth_bytes_per_second / 2))
    whole = Links(Link(SLOW.bandwidth_bytes_per_second))
    for kind in ("message", "state"):
        taken = [link(links=links).post(3e6, 2, kind, 0.0) for links in (whole, half)]
        assert taken[1] == pytest.approx(2 * taken[0])
    assert link(links=half).reduce(3e6, (0, 2), 0.0) == pytest.approx(2 * link(links=whole).reduce(3e6, (0, 2), 0.0))


def test_of_an_emulated_device_its_own_bytes_count():
    device = named_device("a100-7b")
    job = emulating(JobConfig(PRESETS["7b"], nodes=4, gpus_per_node=8, data_parallel=4, pipeline=8), device)
    traffic = Traffic.of(job, 0)
    costs = device.costs
    assert traffic.moved_bytes("layer.3", 4) == costs.layer_state_bytes * 3 // 4
    assert traffic.moved_bytes("head", 4) == costs.head_state_bytes * 3 // 4
    # To rank 8, on another node, by InfiniBand.
    due_seconds = traffic.post_state("layer.3", 4, 8) - time.monotonic()
    assert due_seconds == pytest.approx(costs.layer_state_bytes * 0.75 / 25e9, abs=0.02)
    reduced = traffic.reduce(("layer.3", "layer.4"), 4, (0, 8, 16, 24), 100.0) - 100.0
    assert reduced == pytest.approx(1.5 * 2 * costs.layer_state_bytes / 4 / 25e9, rel=1e-3)
    own = Traffic.of(replace(job, emulation=None), 0)
    assert own.moved_bytes("layer.3", 4) == 4
    assert Traffic.of(job.unpaced(), 0).link is None


def test_an_activation_is_here_unchanged_when_it_is_due_and_no_sooner():
    x_BTH = torch.randn(2, 3, 5)
    links = Links(Link(x_BTH.nbytes / 0.2, 0.1))

    def act(groups: Groups) -> tuple[float, float | None, bool]:
        traffic = Traffic(link(groups.rank, links))
        began = time.monotonic()
        if groups.rank == 0:
            operation, _kept = traffic.send(groups, x_BTH, 1, 7, began)
            wait_all([operation])
            return began, None, True
        received_BTH = torch.empty(2, 3, 5)
        due_seconds = traffic.receive(groups, received_BTH, 0, 7, began)
        assert time.monotonic() >= due_seconds - MAX_EARLY_SECONDS
        assert traffic.link is not None and traffic.link.rated_seconds == pytest.approx(0.3)
        return began, due_seconds, torch.equal(received_BTH, x_BTH)

    (posted_seconds, _, _), (_, due_seconds, is_equal) = on_two_ranks(act)
    assert is_equal
    assert due_seconds == pytest.approx(posted_seconds + 0.3)


def test_without_links_nothing_waits_and_nothing_is_added():
    x_BTH = torch.randn(2, 3, 5)

    def act(groups: Groups) -> bool:
        traffic = Traffic()
        if groups.rank == 0:
            operation, kept = traffic.send(groups, x_BTH, 1, 7, 0.0)
            wait_all([operation])
            return kept is x_BTH
        received_BTH = torch.empty(2, 3, 5)
        assert traffic.receive(groups, received_BTH, 0, 7, time.monotonic()) == 0.0
        traffic.wait(groups, time.monotonic() + DEADLINE_SECONDS)
        return torch.equal(received_BTH, x_BTH) and traffic.link is None

    assert on_two_ranks(act) == [True, True]


@pytest.mark.parametrize("late_seconds", [0.0, 3.0])
def test_what_a_sender_was_late_by_is_not_added_to_what_its_message_took(late_seconds):
    x_BTH = torch.randn(2, 3, 5)
    posted = threading.Event()

    def act(groups: Groups) -> tuple[float, float, bool]:
        traffic = Traffic(keeps_time=True)
        if groups.rank == 0:
            began = time.monotonic()
            operation, _kept = traffic.send(groups, x_BTH, 1, 7, began - late_seconds)
            posted.set()
            wait_all([operation])
            return began, 0.0, True
        received_BTH = torch.empty(2, 3, 5)
        assert posted.wait(DEADLINE_SECONDS)
        began = time.monotonic()
        ready_seconds = traffic.receive(groups, received_BTH, 0, 7, began - 10.0)
        return ready_seconds, time.monotonic() - began, torch.equal(received_BTH, x_BTH)

    (sent_seconds, _, _), (ready_seconds, waited_seconds, is_equal) = on_two_ranks(act)
    assert is_equal
    # It lay there already: all that counts is for how long it was waited for.
    assert 0 <= ready_seconds - (sent_seconds - late_seconds) <= waited_seconds


@pytest.mark.parametrize("delay_seconds", [0.0, 0.1])
def test_a_message_takes_its_rating_unless_all_of_late_take_longer(delay_seconds):
    rated_seconds, num_messages = 0.05, 12
    x_BTH = torch.randn(2, 3, 5)
    turn = threading.Semaphore(0)

    def act(groups: Groups) -> list[float]:
        traffic = Traffic(keeps_time=True)
        traffic.message_seconds = rated_seconds
        delays = []
        for number in range(num_messages):
            if groups.rank == 1:
                turn.release()
                delays.append(traffic.receive(groups, torch.empty(2, 3, 5), 0, number, 0.0) - 1000.0)
                continue
            assert turn.acquire(timeout=DEADLINE_SECONDS)
            # The other one waits by now; what is sent is under way for so long.
            time.sleep(0.01)
            sent = threading.Event()
            send = groups.send
            groups.send = lambda *message, send=send, sent=sent: sent.wait(delay_seconds) or send(*message)
            operation, _kept = traffic.send(groups, x_BTH, 1, number, 1000.0)
            groups.send = send
            wait_all([operation])
        return delays

    delays = on_two_ranks(act)[1]
    # One that is slow may be the machine's doing.
    assert delays[0] == pytest.approx(rated_seconds)
    assert delays[-1] >= max(rated_seconds, delay_seconds) - 1e-6
    assert (delays[-1] == pytest.approx(rated_seconds)) == (not delay_seconds)


def test_who_is_later_than_its_message_begins_with_it_no_sooner():
    x_BTH = torch.randn(2, 3, 5)

    def act(groups: Groups) -> float:
        traffic = Traffic(keeps_time=True)
        if groups.rank == 0:
            operation, _kept = traffic.send(groups, x_BTH, 1, 7, 50.0)
            wait_all([operation])
            return 0.0
        return traffic.receive(groups, torch.empty(2, 3, 5), 0, 7, 60.0)

    assert on_two_ranks(act)[1] >= 60.0


def test_who_waits_for_a_link_hears_of_the_end_of_the_epoch():
    is_over = threading.Event()

    def act(groups: Groups) -> str:
        if groups.rank == 0:
            # It must not be gone before the other one has connected.
            is_over.wait(DEADLINE_SECONDS)
            return ""
        threading.Timer(0.05, groups.abort).start()
        with pytest.raises(EpochBroken) as broken:
            Traffic(link()).wait(groups, time.monotonic() + DEADLINE_SECONDS)
        is_over.set()
        return str(broken.value)

    began = time.monotonic()
    assert on_two_ranks(act)[1] == "the epoch is over"
    assert time.monotonic() - began < DEADLINE_SECONDS / 2


def test_state_moves_no_faster_than_its_link_for_planners():
    slow = Links(Link(PROBE_BYTES / 10.0))
    speeds = on_two_ranks(lambda groups: measure_transfer(groups, torch.device("cpu"), Traffic(link(links=slow))))
    assert speeds == [pytest.approx(PROBE_BYTES / 10.0)] * 2


def test_what_makes_the_real_link_slower_than_the_rated_one_shows_in_all_that_comes_later():
    x_BTH, delay_seconds, num_messages = torch.randn(2, 3, 5), 0.15, 10
    links = Links(Link(x_BTH.nbytes / 0.1))
    turn = threading.Semaphore(0)

    def act(groups: Groups) -> list[float]:
        traffic = Traffic(link(groups.rank, links))
        seconds = []
        for number in range(num_messages):
            if groups.rank == 1:
                turn.release()
                received_BTH = torch.empty(2, 3, 5)
                seconds.append(traffic.receive(groups, received_BTH, 0, number, time.monotonic()))
                continue
            assert turn.acquire(timeout=DEADLINE_SECONDS)
            # What a message takes counts for as long as somebody waits for it.
            time.sleep(0.02)
            send = groups.send

            def send_late(tensor: torch.Tensor, destination: int, tag: int, send: Any = send) -> Operation:
                time.sleep(delay_seconds)
                return send(tensor, destination, tag)

            groups.send = send_late  # type: ignore[method-assign]
            seconds.append(time.monotonic())
            operation, _kept = traffic.send(groups, x_BTH, 1, number, seconds[-1])
            groups.send = send  # type: ignore[method-assign]
            wait_all([operation])
        return seconds

    posted, here = on_two_ranks(act)
    took = [end - begin for begin, end in zip(posted, here, strict=True)]
    # The first one may be the machine's doing.
    assert took[0] == pytest.approx(0.1, abs=1e-3)
    assert took[-1] >= delay_seconds - MAX_CARRIED_SECONDS
