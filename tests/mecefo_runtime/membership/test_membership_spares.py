"""Spare nodes take lost places, and a node that is asked to go leaves in order: in ranks that obey at once."""

from dataclasses import replace

import pytest

from mecefo_runtime.recovery.places import renamed
from tests.mecefo_runtime.membership.membership_world import CLUSTER, World

pytestmark = pytest.mark.unit

WITH_SPARE = replace(CLUSTER, nodes=5, spares=1)


def training(strategy="mecefo", cluster=WITH_SPARE, **settings):
    world = World(strategy, cluster=cluster, **settings)
    world.start()
    world.commit(3)
    return world


def test_spare_ranks_are_members_without_layers_from_the_first_epoch_on():
    world = training()
    assert world.forms[0].members == tuple(range(10))
    assert world.ranks[8].units == world.ranks[9].units == ()


def test_a_spare_node_takes_the_place_of_a_lost_one_and_the_lost_one_comes_back_as_spare():
    world = training()
    whole = world.coordinator.layout
    world.kill(2, 3)
    world.pass_time(0.2)
    assert renamed(world.coordinator.layout, {8: 2, 9: 3}) == whole
    assert world.coordinator.layout.stand_ins == ((2, 8), (3, 9))
    assert {piece.destination for piece in world.forms[-1].pieces} == {8, 9}
    taken = world.coordinator.layout
    for rank in (2, 3):
        world.ranks[rank] = type(world.ranks[0])(rank, attempt=2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    assert world.coordinator.layout == taken
    assert len(world.coordinator.members) == 10
    # The second loss is borne by the node that was lost first.
    world.kill(0, 1)
    assert dict(world.coordinator.layout.stand_ins) == {0: 2, 1: 3, 2: 8, 3: 9}


def test_after_more_losses_than_spares_the_strategy_takes_over():
    world = training()
    world.kill(2, 3)
    world.kill(4, 5)
    layout = world.coordinator.layout
    layout.check(WITH_SPARE, set(range(10)) - {2, 3, 4, 5})
    assert layout.stand_ins == ((2, 8), (3, 9))


def test_the_loss_of_a_spare_node_changes_nobodys_layers():
    world = training()
    whole = world.coordinator.layout
    world.kill(8, 9)
    assert world.coordinator.layout == whole
    assert world.forms[-1].pieces == ()


def test_a_coordinator_that_is_started_in_the_place_of_another_knows_who_stands_in():
    world = training()
    world.kill(2, 3)
    taken = world.coordinator.layout
    world.coordinator = world.new_coordinator(begun_epoch=world.coordinator.epoch)
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    world.obey()
    for rank in (2, 3):
        world.ranks[rank] = type(world.ranks[0])(rank, attempt=2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    assert world.coordinator.layout == taken
