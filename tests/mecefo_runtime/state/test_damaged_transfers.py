"""A member was sent damaged state: what the coordinator does about it, and about who sent it."""

from __future__ import annotations

import pytest

from mecefo_runtime.comm.messages import Form, Parked, Regroup, Trouble
from mecefo_runtime.job.layout import Transfer
from mecefo_runtime.membership.member_table import Stage
from tests.mecefo_runtime.membership.membership_world import World

pytestmark = pytest.mark.unit


class Forming(World):
    """A node is lost, and the next epoch is told: nobody is in it yet. `form` is the message that tells it."""

    def __init__(self, *, evicts_corrupt: bool = False) -> None:
        super().__init__(evicts_corrupt=evicts_corrupt)
        self.holds_back = False
        self.form: Form | None = None
        self.start()
        self.commit(10)
        self.holds_back = True
        self.kill(2, 3)
        assert self.coordinator.stage is Stage.FORMING and self.form is not None and self.form.transfers

    def obey(self) -> None:
        """While they are held back, ranks park, and form nothing."""
        if not self.holds_back:
            super().obey()
        while self.sent:
            number, message = self.sent.pop(0)
            if isinstance(message, Form):
                self.form = message
            elif isinstance(message, Regroup) and number in self.ranks:
                rank = self.ranks[number]
                rank.status, rank.target = "parked", message.epoch
                self.coordinator.on_parked(number, Parked(message.epoch, rank.report()))

    def report(self, epoch: int, *failed: Transfer) -> None:
        """These transfers of `epoch`, to one rank, arrived damaged."""
        damaged = tuple((transfer.unit, transfer.source) for transfer in failed)
        self.coordinator.on_trouble(failed[0].destination, Trouble(epoch, "state arrived damaged", damaged=damaged))


def test_the_next_epoch_follows_at_once_and_asks_another_holder() -> None:
    world = Forming()
    failed = world.form.transfers[0]
    world.report(world.form.epoch, failed)
    assert world.coordinator.stage is Stage.PARKING, "nobody is waited for"
    world.obey()
    again = world.form.transfers
    assert {(transfer.unit, transfer.destination) for transfer in again} >= {(failed.unit, failed.destination)}
    assert (failed.unit, failed.source) not in {(transfer.unit, transfer.source) for transfer in again}
    assert {rank for kind, fields in world.events if kind == "detected" for rank in fields["lost"]} == {2, 3}


def test_all_who_were_sent_damaged_state_are_heard_though_the_first_has_ended_the_epoch() -> None:
    world = Forming()
    epoch, first = world.form.epoch, world.form.transfers[0]
    world.report(epoch, first)
    world.report(
        epoch,
        Transfer("layer.1", first.source, next(r for r in world.ranks if r not in (first.source, first.destination))),
    )
    world.obey()
    assert world.form.epoch > epoch
    assert first.source not in [transfer.source for transfer in world.form.transfers], "it sent damaged state twice"


def test_once_all_state_is_in_place_everybody_may_be_asked_again() -> None:
    world = Forming()
    failed = world.form.transfers[0]
    world.report(world.form.epoch, failed, failed)
    world.holds_back = False
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    world.holds_back = True
    # The last of those who hold it beside the one that sent it damaged.
    others = [rank for rank, state in world.ranks.items() if failed.unit in state.units and rank != failed.source]
    world.kill(*others)
    assert failed.source in [transfer.source for transfer in world.form.transfers]


@pytest.mark.parametrize("evicts", [False, True])
def test_who_does_it_again_and_again_has_to_go_where_the_health_policy_says_so(evicts: bool) -> None:
    world = Forming(evicts_corrupt=evicts)
    failed = world.form.transfers[0]
    world.report(world.form.epoch, failed, failed)
    world.holds_back = False
    world.pass_time(1.0)
    assert world.coordinator.stage is Stage.TRAINING
    source = failed.source
    assert (source in world.coordinator.members) is not evicts
    if evicts:
        assert (world.last("detected")["lost"], world.last("detected")["how"]) == ([source], "health")
    else:
        assert f"rank {source} sent damaged state 2 times" in world.last("warning")["message"]
