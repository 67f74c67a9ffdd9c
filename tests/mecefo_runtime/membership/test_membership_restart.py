"""The strategy that goes back to a checkpoint: after a loss nobody goes on before all ranks are there again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import Form, Probed, Stop, Trouble
from mecefo_runtime.membership.member_table import Stage
from mecefo_runtime.planners import goes_back_to, names, stops_on_loss
from tests.mecefo_runtime.membership.membership_world import CLUSTER, SimulatedRank, World
from tests.planning import layout_of

pytestmark = pytest.mark.unit

CHECKPOINT = Durable(8, "/checkpoints/step-8")
ALL = range(CLUSTER.num_ranks)


def training(*checkpoints: Durable, **settings: int) -> World:
    world = World("checkpoint", checkpoints=checkpoints, **settings)
    world.start()
    world.commit(10)
    return world


def come(world: World, *ranks: int, attempt: int = 2) -> None:
    for rank in ranks:
        world.ranks[rank] = SimulatedRank(rank, attempt)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()


def stopped(world: World) -> list[int]:
    return sorted(rank for rank, message in world.sent if isinstance(message, Stop))


def lose(world: World, rank: int) -> None:
    """Lose it, and look at what is sent before the others have obeyed."""
    del world.ranks[rank]
    world.coordinator.on_lost(rank, "supervisor")
    world.now += 0.2
    world.coordinator.tick()


def test_only_these_strategies_stop() -> None:
    assert {name: goes_back_to(name) for name in names() if stops_on_loss(name)} == {
        "checkpoint": "checkpoint",
        "reft": "snapshots",
    }
    assert goes_back_to("mecefo") is None
    assert not stops_on_loss("no-such-strategy")
    assert not stops_on_loss(None)


def test_after_a_loss_every_rank_is_told_to_end() -> None:
    world = training(CHECKPOINT)
    lose(world, 5)
    assert stopped(world) == [0, 1, 2, 3, 4, 6, 7]
    assert set(world.hung_up) >= {0, 1, 2, 3, 4, 6, 7}
    assert world.last("restarting") == {"step": None, "epoch": 1, "ranks": list(ALL)}
    assert world.coordinator.stage is Stage.GATHERING
    assert world.coordinator.members == frozenset()


def test_all_start_again_from_the_checkpoint_when_the_last_is_back() -> None:
    world = training(CHECKPOINT)
    lose(world, 5)
    come(world, *[rank for rank in ALL if rank != 5])
    assert world.kinds().count("regrouped") == 1, "they must not go on without rank 5"
    come(world, 5)
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.members == set(ALL)
    assert world.coordinator.layout == layout_of("exact", CLUSTER, ALL)
    assert world.last("checkpoint_restored") == {"step": 8, "folder": "/checkpoints/step-8"}
    assert world.last("layout")["resume_step"] == 9
    assert world.last("rejoined") == {"step": 8, "epoch": 2, "ranks": [5]}
    assert {rank.committed for rank in world.ranks.values()} == {8}


def test_without_a_checkpoint_they_begin_anew() -> None:
    world = training()
    lose(world, 0)
    come(world, *ALL)
    assert world.coordinator.stage is Stage.TRAINING
    assert world.last("layout")["resume_step"] == 1
    assert "checkpoint_restored" not in world.kinds()
    assert {rank.committed for rank in world.ranks.values()} == {0}


def test_a_rank_that_slept_through_the_end_is_told() -> None:
    world = training(CHECKPOINT)
    sleeper = world.ranks[3]
    lose(world, 3)
    world.sent.clear()
    world.coordinator.on_hello(sleeper.hello())
    assert stopped(world) == [3]
    assert world.coordinator.stage is Stage.GATHERING
    come(world, *ALL)
    assert world.coordinator.epoch == 2


def test_one_that_is_lost_while_the_others_are_awaited_ends_them_all_again() -> None:
    world = training(CHECKPOINT)
    lose(world, 5)
    come(world, 0, 1)
    world.sent.clear()
    lose(world, 0)
    assert stopped(world) == [1]
    assert world.kinds().count("restarting") == 2
    come(world, *ALL, attempt=3)
    assert world.last("rejoined") == {"step": 8, "epoch": 2, "ranks": [0, 5]}


def test_broken_groups_without_a_loss_are_a_reason_too() -> None:
    world = training(CHECKPOINT)
    world.coordinator.on_trouble(2, Trouble(1, "connection closed by peer"))
    world.now += 3.5
    for rank in world.ranks:
        world.coordinator.on_heard(rank)
    world.coordinator.tick()
    assert world.last("restarting")["epoch"] == 1


def test_a_restarted_coordinator_that_finds_a_rank_missing_ends_the_others() -> None:
    world = training(CHECKPOINT)
    world.coordinator = world.new_coordinator(begun_epoch=1)
    for rank in range(7):
        world.coordinator.on_hello(world.ranks[rank].hello())
    assert world.coordinator.stage is Stage.GATHERING
    world.coordinator.on_lost(7, "supervisor")
    assert stopped(world) == list(range(7))
    come(world, *ALL)
    assert world.coordinator.members == set(ALL)


def test_a_rank_that_is_lost_after_every_restart_ends_the_job_which_names_it() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=3)
    lose(world, 2)
    for attempt in (2, 3, 4):
        assert world.coordinator.failure is None
        come(world, *ALL, attempt=attempt)
        lose(world, 5)
    assert world.kinds().count("restarting") == 3
    assert world.coordinator.failure == (
        "no step beyond 10 was committed after the last 3 restarts: rank 5 was lost, 3 times. "
        "The newest checkpoint is of step 8: /checkpoints/step-8"
    )
    assert stopped(world)[-7:] == [0, 1, 2, 3, 4, 6, 7]


def test_a_single_new_step_is_enough_to_go_on_restarting() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=2)
    for attempt in range(2, 8):
        lose(world, 5)
        come(world, *ALL, attempt=attempt)
        for step in range(9, 10 + attempt):
            world.commit(step)
    assert world.coordinator.failure is None
    assert world.kinds().count("restarting") == 6


def test_who_dies_at_the_same_step_every_time_ends_the_job_whatever_is_repeated_before() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=3)
    for attempt in (2, 3, 4, 5):
        assert world.coordinator.failure is None
        lose(world, 5)
        if attempt < 5:
            come(world, *ALL, attempt=attempt)
            for step in (9, 10):
                world.commit(step)
    assert world.coordinator.failure is not None
    assert "no step beyond 10 was committed after the last 3 restarts: rank 5 was lost, 4 times" in (
        world.coordinator.failure
    )


def test_a_restarted_coordinator_learns_how_far_the_job_had_come() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=2)
    world.coordinator = world.new_coordinator(begun_epoch=1)
    world.start()
    for attempt in (2, 3):
        lose(world, 5)
        come(world, *ALL, attempt=attempt)
        world.commit(10)
    lose(world, 5)
    assert world.coordinator.failure is not None
    assert "no step beyond 10" in world.coordinator.failure


@pytest.mark.parametrize(("strategy", "is_told"), [("checkpoint", True), ("exact", False)])
def test_only_where_all_end_together_every_step_is_told(strategy: str, is_told: bool) -> None:
    world = World(strategy)
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    assert [message.tells_commits for _, message in world.sent if isinstance(message, Form)] == [is_told] * 8


def test_what_is_lost_while_the_others_are_awaited_counts_too() -> None:
    world = training(max_fruitless_restarts=2)
    lose(world, 3)
    for attempt in (2, 3):
        come(world, 0, 3, attempt=attempt)
        lose(world, 3)
    assert world.coordinator.failure is not None
    assert "rank 3 was lost, 3 times. There is no checkpoint" in world.coordinator.failure


def test_a_rank_that_ends_before_it_says_hello_ends_the_job_too() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=2)
    lose(world, 5)
    # The others end, as they were told: that is no news.
    for rank in world.ranks:
        world.coordinator.on_lost(rank, "supervisor", 1)
    come(world, *[rank for rank in ALL if rank != 5])
    for attempt in (2, 3):
        world.coordinator.on_lost(5, "supervisor", attempt)
    assert world.coordinator.failure is None
    world.coordinator.on_lost(5, "supervisor", 4)
    assert world.coordinator.failure is not None
    assert "rank 5 ended 3 times in a row before training could begin" in world.coordinator.failure
    assert "/checkpoints/step-8" in world.coordinator.failure


def test_a_link_that_stays_cut_ends_the_job_which_names_it() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=3)

    def ask_about_2_and_5() -> None:
        world.coordinator.on_unreachable(2, world.coordinator._epochs.awaited)
        check = world.sent[-1][1].check
        for rank in ALL:
            world.coordinator.on_probed(rank, Probed(check, (2,) if rank == 5 else ()))
        world.now += 0.2
        world.coordinator.tick()
        world.sent.clear()

    ask_about_2_and_5()
    for attempt in (2, 3, 4):
        assert world.coordinator.failure is None
        come(world, *ALL, attempt=attempt)
        ask_about_2_and_5()
    assert world.kinds().count("restarting") == 3
    assert world.coordinator.failure is not None
    assert "the link 2-5 carried nothing, 4 times" in world.coordinator.failure


def test_who_breaks_off_every_time_without_a_loss_is_named() -> None:
    world = training(CHECKPOINT, max_fruitless_restarts=1)
    for attempt in (2, 3):
        world.coordinator.on_trouble(4, Trouble(world.coordinator.epoch, "out of memory"))
        world.pass_time(3.5)
        if attempt == 2:
            come(world, *ALL)
    assert world.coordinator.failure is not None
    assert "after the last restart: rank 4 broke off: out of memory" in world.coordinator.failure


@given(data=st.data())
def test_no_epoch_ever_has_fewer_ranks(data: st.DataObject) -> None:
    """Whoever is lost, whenever, and in whatever order they come back: each epoch is of all, and none loses a rank."""
    world = training(CHECKPOINT)
    attempt = 1
    for _ in range(data.draw(st.integers(1, 4))):
        lose(world, data.draw(st.sampled_from(sorted(world.ranks))))
        attempt += 1
        back = data.draw(st.permutations(ALL))
        gone = [rank for rank in back if rank not in world.coordinator._connected]
        come(world, *gone[: data.draw(st.integers(0, len(gone)))], attempt=attempt)
    come(world, *(set(ALL) - set(world.coordinator._connected)), attempt=attempt + 1)
    world.pass_time(0.2)
    assert world.coordinator.stage is Stage.TRAINING
    layouts = [fields for kind, fields in world.events if kind == "layout"]
    assert all(len(fields["members"]) == CLUSTER.num_ranks for fields in layouts)
    assert [fields["resume_step"] for fields in layouts[1:]] == [9] * (len(layouts) - 1)
