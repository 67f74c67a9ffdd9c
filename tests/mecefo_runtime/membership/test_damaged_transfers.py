"""A member was sent damaged state: what the coordinator does about it, and about who sent it."""

from __future__ import annotations

import pytest

from mecefo_runtime.membership.member_table import Stage
from tests.mecefo_runtime.membership.test_membership import World

pytestmark = pytest.mark.unit


class Forming(World):
    """A node is lost, and the next epoch is told: nobody is in it yet. `form` is the message that tells it."""

    def __init__(self, *, evicts_corrupt: bool = False) -> None:
        super().__init__(evicts_corrupt=evicts_corrupt)
        self.holds_back = False
        self.form: dict = {}
        self.start()
        self.commit(10)
        self.holds_back = True
        self.kill(2, 3)
        assert self.coordinator.stage is Stage.FORMING and self.form["transfers"]

    def obey(self) -> None:
        """While they are held back, ranks park, and form nothing."""
        if not self.holds_back:
            super().obey()
        while self.sent:
            number, message = self.sent.pop(0)
            if message["type"] == "form":
                self.form = message
            elif message["type"] == "regroup" and number in self.ranks:
                rank = self.ranks[number]
                rank.status, rank.target = "parked", message["epoch"]
                self.coordinator.on_parked(number, {**rank.report(), "epoch": message["epoch"]})

    def report(self, epoch: int, *failed: list) -> None:
        """These transfers of `epoch`, to one rank, arrived damaged."""
        damaged = [(unit, source) for unit, source, _ in failed]
        self.coordinator.on_trouble(failed[0][2], epoch, "state arrived damaged", damaged=damaged)


def test_the_next_epoch_follows_at_once_and_asks_another_holder() -> None:
    world = Forming()
    failed = world.form["transfers"][0]
    world.report(world.form["epoch"], failed)
    assert world.coordinator.stage is Stage.PARKING, "nobody is waited for"
    world.obey()
    again = world.form["transfers"]
    assert {(unit, destination) for unit, _, destination in again} >= {(failed[0], failed[2])}
    assert [failed[0], failed[1]] not in [[unit, source] for unit, source, _ in again]
    assert {rank for kind, fields in world.events if kind == "detected" for rank in fields["lost"]} == {2, 3}


def test_all_who_were_sent_damaged_state_are_heard_though_the_first_has_ended_the_epoch() -> None:
    world = Forming()
    epoch, first = world.form["epoch"], world.form["transfers"][0]
    world.report(epoch, first)
    world.report(epoch, ["layer.1", first[1], next(rank for rank in world.ranks if rank not in first)])
    world.obey()
    assert world.form["epoch"] > epoch
    assert first[1] not in [source for _, source, _ in world.form["transfers"]], "it sent damaged state twice"


def test_once_all_state_is_in_place_everybody_may_be_asked_again() -> None:
    world = Forming()
    failed = world.form["transfers"][0]
    world.report(world.form["epoch"], failed, failed)
    world.holds_back = False
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    world.holds_back = True
    # The last of those who hold it beside the one that sent it damaged.
    others = [rank for rank, state in world.ranks.items() if failed[0] in state.units and rank != failed[1]]
    world.kill(*others)
    assert failed[1] in [source for _, source, _ in world.form["transfers"]]


@pytest.mark.parametrize("evicts", [False, True])
def test_who_does_it_again_and_again_has_to_go_where_the_health_policy_says_so(evicts: bool) -> None:
    world = Forming(evicts_corrupt=evicts)
    failed = world.form["transfers"][0]
    world.report(world.form["epoch"], failed, failed)
    world.holds_back = False
    world.pass_time(1.0)
    assert world.coordinator.stage is Stage.TRAINING
    source = failed[1]
    assert (source in world.coordinator.members) is not evicts
    if evicts:
        assert (world.last("detected")["lost"], world.last("detected")["how"]) == ([source], "health")
    else:
        assert f"rank {source} sent damaged state 2 times" in world.last("warning")["message"]
