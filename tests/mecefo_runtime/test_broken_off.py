"""A message whose sender is gone half-way: gloo forgets it, we do not wait for it."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from mecefo_runtime.operations import EpochBroken
from mecefo_runtime.rendezvous import FORM_TIMEOUT_SECONDS
from tests.mecefo_runtime.test_groups import DEADLINE_SECONDS, Rendezvous, form, on_all_ranks

pytestmark = pytest.mark.unit

# Takes loopback tens of milliseconds.
NUM_ELEMENTS = 30_000_000


def test_a_receive_that_broke_off_half_way_ends_with_the_abort_not_with_its_time_out():
    rendezvous = Rendezvous()
    groups = on_all_ranks(lambda rank: form(rendezvous, rank))
    received = torch.zeros(NUM_ELEMENTS)
    errors: list[str] = []

    def receive() -> None:
        with pytest.raises(EpochBroken) as broken:
            groups[0].receive(received, 1, 7)
        errors.append(str(broken.value))

    thread = threading.Thread(target=receive)
    thread.start()
    sending = groups[1].send(torch.ones(NUM_ELEMENTS), 0, 7)
    while not received[0]:
        time.sleep(0)
    groups[1].abort()
    groups[0].abort()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive(), "only the time-out of 60 s ends it"
    assert not received[-1], "it was over before it was broken off"
    assert errors
    with pytest.raises(EpochBroken):
        sending.wait()
    for group in groups.values():
        group.close()


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
