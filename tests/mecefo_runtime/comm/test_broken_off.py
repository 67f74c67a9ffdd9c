"""A message whose sender is gone half-way: gloo forgets it, we do not wait for it."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from mecefo_runtime.comm.operations import EpochBroken
from mecefo_runtime.comm.rendezvous import FORM_TIMEOUT_SECONDS
from tests.mecefo_runtime.comm.test_groups import DEADLINE_SECONDS, Rendezvous, form, on_all_ranks

pytestmark = pytest.mark.unit

# Takes loopback tens of milliseconds.
NUM_ELEMENTS = 30_000_000
NUM_TRIES = 20


def test_a_receive_that_broke_off_half_way_ends_with_the_abort_not_with_its_time_out():
    # On a busy machine this thread may be late, and the message whole before it is broken off.
    for _ in range(NUM_TRIES):
        if broke_off_half_way():
            return
    pytest.fail(f"each of {NUM_TRIES} messages was over before it was broken off")


def broke_off_half_way() -> bool:
    """Abort a message while it comes, and see that all ends; returns False where it was over before."""
    rendezvous = Rendezvous()
    groups = on_all_ranks(lambda rank: form(rendezvous, rank))
    received = torch.zeros(NUM_ELEMENTS)
    ends: list[EpochBroken | None] = []

    def receive() -> None:
        try:
            groups[0].receive(received, 1, 7)
        except EpochBroken as broken:
            ends.append(broken)
        else:
            ends.append(None)

    thread = threading.Thread(target=receive)
    thread.start()
    sending = groups[1].send(torch.ones(NUM_ELEMENTS), 0, 7)
    while not received[0]:
        time.sleep(0)
    groups[1].abort()
    groups[0].abort()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive(), "only the time-out ends it"
    is_half = not received[-1]
    if is_half:
        assert ends[0] is not None, "half a message was taken for a whole one"
        with pytest.raises(EpochBroken):
            sending.wait()
    for group in groups.values():
        group.close()
    return is_half


def test_a_receive_waits_for_a_slow_peer_longer_than_the_group_took_to_form():
    rendezvous = Rendezvous()
    groups = on_all_ranks(lambda rank: form(rendezvous, rank))
    received = torch.zeros(1)
    slow = threading.Timer(1.25 * FORM_TIMEOUT_SECONDS, lambda: groups[1].send(torch.ones(1), 0, 7).wait())
    slow.start()
    groups[0].receive(received, 1, 7)
    assert received[0] == 1
    slow.join()
    for group in groups.values():
        group.close()
