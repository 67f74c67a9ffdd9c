"""What the soak found in the coordinator's state machine, one schedule for each."""

from __future__ import annotations

import pytest

from mecefo_runtime.comm.messages import Form, Formed
from mecefo_runtime.membership.gathering import START_TIMEOUT_SECONDS
from mecefo_runtime.membership.member_table import Stage
from tests.mecefo_runtime.membership.membership_model import HEARTBEAT_TIMEOUT_SECONDS, World

pytestmark = pytest.mark.unit


def in_training(num_moves: int = 12, num_steps: int = 100) -> World:
    world = World("ndb", num_steps)
    go_on(world, num_moves)
    assert world.coordinator.stage is Stage.TRAINING
    return world


def go_on(world: World, num_moves: int = 1, *, without: frozenset[int] = frozenset()) -> None:
    for _ in range(num_moves):
        world.tell_news()
        for link in list(world.links):
            world.deliver_up(link)
        for rank, process in world.ranks.items():
            world.deliver_down(rank)
            if process.is_alive and not process.is_hung and rank not in without:
                process.act()
        world.pass_time(0.005)


def members_lost(world: World) -> list[int]:
    return [rank for kind, fields in world.events if kind == "detected" for rank in fields["lost"]]


def test_a_coordinator_that_was_stopped_blames_nobody_for_the_silence() -> None:
    world = in_training()
    world.now += 2 * HEARTBEAT_TIMEOUT_SECONDS
    world.coordinator.tick()
    go_on(world, 5)
    assert members_lost(world) == []
    assert world.coordinator.stage is Stage.TRAINING


def test_a_rank_that_stays_silent_is_lost_all_the_same() -> None:
    world = in_training()
    world.ranks[1].is_hung = True
    world.pass_time(1.5 * HEARTBEAT_TIMEOUT_SECONDS)
    assert members_lost(world) == [1]


def silence(world: World) -> None:
    """All of them are there and nothing of them is heard, until they are found lost."""
    for rank in world.ranks.values():
        rank.is_hung = True
    world.pass_time(1.5 * HEARTBEAT_TIMEOUT_SECONDS)
    world.pass_time(0.2)
    assert sorted(members_lost(world)) == [0, 1, 2, 3]


def test_a_coordinator_that_hears_nobody_waits_for_them_and_goes_on_with_them_in_their_epoch() -> None:
    world = in_training()
    silence(world)
    assert world.coordinator.stage is Stage.GATHERING
    assert world.coordinator.failure is None
    for rank in world.ranks.values():
        rank.is_hung = False
    world.settle()
    assert world.coordinator.failure is None
    # They were never told another one.
    assert [kind for kind, _ in world.events].count("layout") == 1
    (back,) = [fields for kind, fields in world.events if kind == "coordinator_restarted"]
    assert (back["epoch"], back["members"]) == (1, [0, 1, 2, 3])


def test_a_coordinator_that_hears_nobody_does_not_wait_for_ever() -> None:
    world = in_training()
    silence(world)
    world.pass_time(2 * START_TIMEOUT_SECONDS)
    assert world.coordinator.failure == "ranks [0, 1, 2, 3] did not come back within 120 s; see their logs"


def test_a_coordinator_that_hears_nobody_begins_no_second_cluster_with_who_is_started_anew() -> None:
    world = in_training()
    silence(world)
    for rank in (2, 3):
        world.kill(rank)
        world.start(rank)
    go_on(world, 30)
    assert world.coordinator.stage is Stage.GATHERING
    assert [kind for kind, _ in world.events].count("layout") == 1


def test_news_of_an_epoch_that_has_begun_while_one_of_its_members_is_already_lost() -> None:
    world = in_training()
    world.kill(0)
    while not any(link.up and isinstance(link.up[-1], Formed) for link in world.links):
        go_on(world)
    assert world.coordinator.stage is Stage.FORMING
    world.kill(1)
    # The end of its connection is heard of first: it may be the first sign of a node's, and is waited upon.
    world.news.clear()
    for link in sorted(world.links, key=lambda link: link.rank != 1):
        while link.up:
            world.deliver_up(link)
    world.pass_time(0.2)
    while world.coordinator.stage is not Stage.TRAINING:
        go_on(world)
        world.pass_time(0.02)
    assert world.coordinator.members == {2, 3}
    assert set(members_lost(world)) == {0, 1}


def test_a_successor_that_comes_during_the_regroup_is_taken_in_by_it() -> None:
    world = in_training()
    world.kill(3)
    while world.coordinator.stage is not Stage.PARKING:
        go_on(world, without=frozenset({0}))
        world.pass_time(0.02)
    world.start(3)
    for link in list(world.links):
        world.deliver_up(link)
    assert world.coordinator.stage is Stage.PARKING
    world.settle()
    assert world.coordinator.failure is None


def test_a_coordinator_lost_over_a_rejoin_is_succeeded_by_one_that_takes_the_parked_members_on() -> None:
    world = in_training()
    world.kill(3)
    world.pass_time(0.3)
    go_on(world, 20)
    world.start(3)
    while world.coordinator.stage is not Stage.JOINING:
        go_on(world)
        world.pass_time(0.1)
    for rank in range(3):
        world.deliver_down(rank)
    world.kill_coordinator()
    world.kill(3)
    go_on(world, 10)
    world.start_coordinator()
    world.settle()
    assert world.coordinator.failure is None


def test_a_coordinator_lost_over_the_first_epoch_does_not_begin_the_job_again() -> None:
    world = World("ndb", 12)
    for link in list(world.links):
        world.deliver_up(link)
    for rank, process in world.ranks.items():
        world.deliver_down(rank)
        process.act()
        assert process.state == "forming"
    world.kill_coordinator()
    for rank in world.ranks:
        world.deliver_down(rank)
    go_on(world, 10)
    trained = max(rank.committed for rank in world.ranks.values())
    assert trained > 0
    world.start_coordinator()
    world.settle()
    assert world.coordinator.failure is None
    first, *others = [fields for kind, fields in world.events if kind == "layout"]
    assert first["resume_step"] == 1
    assert all(fields["resume_step"] > trained for fields in others)


def test_ranks_that_die_before_they_ever_connect_do_not_delay_the_start() -> None:
    world = World("ndb", 12)
    world.kill(2)
    world.ranks[2].link.up.clear()
    for link in list(world.links):
        world.deliver_up(link)
    go_on(world, 6)
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.members == {0, 1, 3}


def test_a_coordinator_lost_after_its_goodbye_is_succeeded_by_one_that_knows_the_job_is_done() -> None:
    world = World("ndb", 3)
    while any(rank.is_alive for rank in world.ranks.values()):
        go_on(world)
    assert world.coordinator.stage is Stage.ENDED
    world.kill_coordinator()
    world.start_coordinator()
    while world.news:
        world.tell_news()
    assert world.coordinator.stage is Stage.ENDED
    assert world.coordinator.failure is None


def test_the_last_step_may_be_over_before_the_last_news_of_the_epoch_it_was_trained_in() -> None:
    world = World("ndb", 1)
    while world.coordinator.stage is not Stage.FORMING:
        go_on(world)
    for rank in world.ranks:
        world.deliver_down(rank)
    for _ in range(40):
        for rank in world.ranks.values():
            rank.act()
    links = sorted(world.links, key=lambda link: link.rank)
    for link in links:
        while link.up:
            world.deliver_up(link)
    assert world.coordinator.stage is Stage.ENDED


def test_the_leader_of_an_epoch_can_repeat_what_the_last_one_may_not_have_said() -> None:
    world = in_training()
    world.kill(0)
    world.pass_time(0.3)
    go_on(world, 20)
    world.start(0)
    for link in list(world.links):
        if link.rank == 0:
            world.deliver_up(link)
    world.kill(1)
    world.pass_time(0.3)
    sent: list[dict] = []
    plain = world.send
    world.send = lambda rank, message: (sent.append(message), plain(rank, message))[1]
    while not any(isinstance(message, Form) for message in sent):
        go_on(world)
    form = next(message for message in sent if isinstance(message, Form))
    assert 0 in form.members
    assert form.leader != 0, "a newcomer knows of no step that the lost leader may have committed and not told"
