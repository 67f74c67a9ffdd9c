"""The coordinator when members cannot reach each other: all are asked, the fewest go, and come back by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mecefo_runtime.comm.messages import Evicted, Form, FromCoordinator, Goodbye, Peers, Probe, Probed, Trouble
from mecefo_runtime.membership.member_table import Stage
from tests.mecefo_runtime.membership.membership_world import SimulatedRank, World

pytestmark = pytest.mark.unit


class WorldWithLinks(World):
    """Ranks that try to reach each other over links, of which those in `cut` carry nothing."""

    def __init__(self) -> None:
        self.is_obeying = False
        super().__init__()
        self.cut: set[frozenset[int]] = set()
        self.mute: set[int] = set()
        self.waiting: set[int] = set()
        self.later: list[tuple[int, dict]] = []

    def send(self, rank: int, message: FromCoordinator) -> None:
        (self.later if self.is_obeying else self.sent).append((rank, message))

    def cut_links(self, *pairs: tuple[int, int]) -> None:
        self.cut |= {frozenset(pair) for pair in pairs}

    def unreachable(self, rank: int, addresses: dict[int, str]) -> list[int]:
        return [peer for peer in addresses if frozenset((rank, peer)) in self.cut]

    def obey(self) -> None:
        while self.sent:
            rank, message = self.sent[0]
            if isinstance(message, Probe):
                self.sent.pop(0)
                if rank not in self.mute:
                    unreachable = self.unreachable(rank, message.addresses)
                    self.coordinator.on_probed(rank, Probed(message.check, tuple(unreachable)))
            elif isinstance(message, Evicted) and message.is_cut_off:
                self.sent.pop(0)
                self.ranks[rank] = SimulatedRank(rank, self.ranks[rank].attempt)
                self.waiting.add(rank)
            elif isinstance(message, Peers):
                self.sent.pop(0)
                if not self.unreachable(rank, message.addresses):
                    self.waiting.discard(rank)
                    self.coordinator.on_hello(self.ranks[rank].hello())
            elif isinstance(message, Form) and (peers := self.unreachable(rank, message.addresses)):
                self.sent.pop(0)
                self.ranks[rank].status, self.ranks[rank].target = "parked", message.epoch
                self.coordinator.on_trouble(rank, Trouble(message.epoch, "cannot reach", None, tuple(peers)))
            else:
                # This one only: what is sent meanwhile is for us to look at.
                self.later = self.sent[1:]
                self.sent, self.is_obeying = self.sent[:1], True
                super().obey()
                self.sent, self.is_obeying = self.later, False

    def ask_to_return(self) -> None:
        for rank in sorted(self.waiting):
            self.coordinator.on_cut_off(rank)
        self.obey()


@pytest.fixture
def world() -> WorldWithLinks:
    world = WorldWithLinks()
    world.start()
    world.commit(10)
    return world


def test_of_each_rank_that_goes_its_own_links_are_told(world):
    world.cut_links((0, 1), (2, 3))
    world.coordinator.on_unreachable(1, 1)
    world.obey()
    told = {tuple(fields["lost"]): fields["cut_links"] for kind, fields in world.events if kind == "detected"}
    assert told == {(1,): [[0, 1]], (3,): [[2, 3]]}


def test_a_cut_link_costs_one_of_its_ends_which_is_said(world):
    world.cut_links((2, 5))
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.members == {0, 1, 2, 3, 4, 6, 7}
    detected = [fields for kind, fields in world.events if kind == "detected"]
    assert detected == [{"step": None, "epoch": 1, "lost": [5], "how": "peers", "cut_links": [[2, 5]]}]


def test_who_goes_is_told_over_which_links(world):
    world.cut_links((2, 5), (5, 7), (1, 6))
    world.coordinator.on_unreachable(2, 1)
    asked, world.sent = world.sent, []
    for rank, question in asked:
        world.coordinator.on_probed(rank, Probed(question.check, tuple(world.unreachable(rank, question.addresses))))
    evicted = {rank: message.cut_off_from for rank, message in world.sent if isinstance(message, Evicted)}
    assert evicted == {5: (2, 7), 6: (1,)}


def test_of_a_partition_the_smaller_group_goes_whoever_told_of_it(world):
    world.cut_links(*((small, large) for small in (0, 1, 2) for large in (3, 4, 5, 6, 7)))
    world.coordinator.on_unreachable(7, 1)
    world.obey()
    assert world.coordinator.members == {3, 4, 5, 6, 7}
    assert world.waiting == {0, 1, 2}


def test_when_all_can_reach_each_other_again_nobody_goes(world):
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    assert world.coordinator.members == set(range(8))
    assert world.coordinator.epoch == 1
    assert "detected" not in world.kinds()


def test_who_left_the_epoch_over_a_link_that_is_whole_again_gets_another_one(world):
    world.ranks[2].status, world.ranks[2].target = "parked", 2
    world.coordinator.on_trouble(2, Trouble(1, "timed out", None, (5,)))
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    assert (world.coordinator.epoch, world.coordinator.members) == (2, set(range(8)))
    assert world.last("layout")["reason"] == "retry"


def test_a_link_that_is_cut_while_groups_are_formed_does_not_keep_them_from_being_formed(world):
    world.cut_links((1, 6))
    world.kill(4)
    world.pass_time(1.0)
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.members == {0, 1, 2, 3, 5, 7}
    assert [fields["lost"] for kind, fields in world.events if kind == "detected"] == [[4], [6]]


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(world):
    world.cut_links((2, 5))
    world.mute = {3}
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    assert world.coordinator.members == set(range(8))
    world.pass_time(2.5)
    assert world.coordinator.members == {0, 1, 2, 3, 4, 6, 7}


def test_a_death_that_is_heard_of_meanwhile_is_a_death(world):
    world.mute = set(range(8))
    world.coordinator.on_unreachable(2, 1)
    world.kill(5)
    world.obey()
    assert world.coordinator.members == {0, 1, 2, 3, 4, 6, 7}
    assert [fields["how"] for kind, fields in world.events if kind == "detected"] == ["supervisor"]


def test_who_was_cut_off_comes_back_when_the_link_is_whole_and_not_before(world):
    world.cut_links((2, 5))
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    world.ask_to_return()
    world.pass_time(2.0)
    assert 5 not in world.coordinator.members
    world.cut.clear()
    world.commit(20)
    world.ask_to_return()
    world.pass_time(1.0)
    assert world.coordinator.members == set(range(8))
    assert world.last("rejoined")["ranks"] == [5]


def test_who_is_cut_off_at_the_end_is_told_of_it(world):
    world.cut_links((2, 5))
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    for rank in world.coordinator.members:
        world.coordinator.on_finished(rank)
    assert world.coordinator.stage is Stage.ENDED
    assert (5, Goodbye()) in world.sent
    world.sent.clear()
    world.coordinator.on_cut_off(5)
    assert world.sent == [(5, Goodbye())]


def test_what_is_told_of_another_epoch_or_by_a_stranger_counts_for_nothing(world):
    world.coordinator.on_unreachable(2, 7)
    world.coordinator.on_unreachable(99, 1)
    assert world.sent == []
    world.coordinator.on_probed(2, Probed(1, (5,)))
    world.obey()
    assert world.coordinator.members == set(range(8))


def test_who_is_cut_off_is_no_newcomer_because_its_connection_broke(world):
    world.cut_links((2, 5))
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    world.coordinator.on_hello(replace(world.ranks[5].hello(), is_cut_off=True))
    world.pass_time(2.0)
    assert world.coordinator.epoch == 2
    assert "rejoin_requested" not in world.kinds()


def test_a_restarted_coordinator_does_not_wait_for_who_is_cut_off(world):
    world.cut_links((2, 5))
    world.coordinator.on_unreachable(2, 1)
    world.obey()
    world.coordinator = world.new_coordinator(begun_epoch=2)
    world.coordinator.on_hello(replace(world.ranks[5].hello(), is_cut_off=True))
    for rank in world.ranks:
        if rank != 5:
            world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.members == {0, 1, 2, 3, 4, 6, 7}
    world.cut.clear()
    world.ask_to_return()
    world.pass_time(1.0)
    assert world.coordinator.members == set(range(8))
