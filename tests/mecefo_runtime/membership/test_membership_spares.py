"""Spare nodes take lost places, and a node that is asked to go leaves in order: in ranks that obey at once."""

from dataclasses import replace

import pytest

from mecefo_runtime.job.layout import Cluster
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


def drain(world, node):
    world.coordinator.on_leaving(node)
    world.obey()


def test_a_node_that_is_asked_to_go_leaves_at_a_step_boundary_and_a_spare_has_its_place():
    world = training()
    whole = world.coordinator.layout
    drain(world, 1)
    assert renamed(world.coordinator.layout, {8: 2, 9: 3}) == whole
    assert world.coordinator.members == set(range(10)) - {2, 3}
    assert not any(piece.source.rank in (2, 3) for piece in world.forms[-1].pieces)
    assert sorted(world.hung_up) == [2, 3]
    assert "loss" not in [fields["reason"] for kind, fields in world.events if kind == "regrouped"]
    assert world.kinds().index("drain_requested") < world.kinds().index("detected")
    assert world.last("detected") == {"step": None, "epoch": 1, "lost": [2, 3], "how": "drain"}
    # What comes of their processes is nobody's loss.
    epoch = world.coordinator.epoch
    world.kill(2, 3)
    assert world.coordinator.epoch == epoch


def test_without_spares_the_strategy_takes_over_before_the_node_is_gone():
    world = training(cluster=CLUSTER)
    drain(world, 1)
    assert world.coordinator.members == {0, 1, 4, 5, 6, 7}
    world.coordinator.layout.check(CLUSTER, world.coordinator.members)


def test_what_only_the_leaving_hold_they_give_before_they_go():
    # A single replica: every layer is held once.
    single = Cluster(3, 1, data_parallel=1, pipeline=2, num_layers=4, num_microbatches=4, spares=1)
    world = training(cluster=single)
    drain(world, 0)
    first, second = {form.epoch: form for form in world.forms[-5:]}.values()
    assert first.members == (0, 1, 2)
    assert {(piece.source.rank, piece.destination) for piece in first.pieces} == {(0, 2)}
    assert first.layout.stand_ins == ((0, 2),)
    assert first.layout.find(0) is None
    assert (second.members, second.pieces, second.layout) == ((1, 2), (), first.layout)
    assert world.hung_up == [0]


def test_while_state_is_fetched_in_the_background_the_leaving_train_on():
    world = training(takeover="background")
    whole = world.coordinator.layout
    drain(world, 1)
    assert renamed(world.forms[-1].layout, {}) == whole
    assert set(world.forms[-1].members) == set(range(10))
    world.commit(world.forms[-1].background.last_step)
    assert renamed(world.coordinator.layout, {8: 2, 9: 3}) == whole
    assert world.coordinator.members == set(range(10)) - {2, 3}
    assert world.forms[-1].pieces == ()


def test_a_node_without_which_the_job_cannot_go_on_stays_with_a_warning():
    tiny = replace(CLUSTER, nodes=1, gpus_per_node=2, data_parallel=1, pipeline=2, num_microbatches=4)
    world = training(cluster=tiny)
    drain(world, 0)
    assert world.coordinator.members == {0, 1}
    assert "asked to go, and stay" in world.last("warning")["message"]
    # Once, and no more.
    num = len(world.forms)
    world.commit(4)
    world.pass_time(1.0)
    assert len(world.forms) == num


def test_a_loss_in_the_middle_of_a_drain_is_a_loss_like_any_other():
    world = training()
    world.coordinator.on_leaving(1)
    world.sent.clear()
    world.kill(2, 3)
    assert dict(world.coordinator.layout.stand_ins) == {2: 8, 3: 9}
    world.coordinator.layout.check(WITH_SPARE, world.coordinator.members)


def test_a_drained_node_that_is_repaired_is_the_spare_and_is_not_asked_to_go_again():
    world = training()
    drain(world, 1)
    for rank in (2, 3):
        world.ranks[rank] = type(world.ranks[0])(rank, attempt=2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    assert world.coordinator.members == set(range(10))
    world.pass_time(1.0)
    assert world.coordinator.members == set(range(10))


def test_where_a_loss_starts_all_ranks_again_a_drained_node_does_too():
    world = training(cluster=CLUSTER, strategy="checkpoint")
    drain(world, 1)
    assert world.last("detected")["how"] == "drain"
    assert world.kinds().index("detected") < world.kinds().index("restarting")
    assert not world.coordinator.members
    # With a spare node nothing has to start again.
    world = training(strategy="checkpoint")
    drain(world, 1)
    assert "restarting" not in world.kinds()
    assert world.coordinator.members == set(range(10)) - {2, 3}
