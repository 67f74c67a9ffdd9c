"""The coordinator when state has to come from a checkpoint: which one, and what becomes of damaged ones."""

from __future__ import annotations

import pytest

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import Trouble
from mecefo_runtime.job.state_source import CheckpointSource
from mecefo_runtime.membership.member_table import Stage
from tests.mecefo_runtime.membership.membership_world import World

pytestmark = pytest.mark.unit


def test_state_that_is_lost_comes_from_the_newest_checkpoint_that_is_whole() -> None:
    world = World(checkpoints=(Durable(9, "step-9"), Durable(6, "step-6")))
    world.start()
    world.commit(10)
    holders = [rank for rank in range(8) if "layer.3" in world.ranks[rank].units]
    world.kill(*holders)
    assert world.last("checkpoint_restored") == {"step": 9, "folder": "step-9"}
    assert {rank.committed for rank in world.ranks.values()} == {9}
    assert world.coordinator.stage is Stage.TRAINING


def test_a_checkpoint_that_a_rank_finds_damaged_is_not_tried_again() -> None:
    world = World(checkpoints=(Durable(9, "step-9"), Durable(6, "step-6")), must_resume=True)
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    assert world.last("checkpoint_restored")["folder"] == "step-9"
    world.sent.clear()
    world.coordinator.on_trouble(2, Trouble(1, "step-9/head/data: truncated", refused=CheckpointSource("step-9")))
    world.pass_time(1.0)
    assert world.last("checkpoint_restored") == {"step": 6, "folder": "step-6"}
    assert world.coordinator.epoch == 2
    assert {rank.committed for rank in world.ranks.values()} == {6}


def test_a_checkpoint_that_is_saved_anew_where_a_damaged_one_was_is_a_good_one() -> None:
    world = World(checkpoints=(Durable(9, "step-9", "old"), Durable(6, "step-6", "old")), must_resume=True)
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    world.sent.clear()
    world.coordinator.on_trouble(2, Trouble(1, "step-9/head/data: truncated", refused=CheckpointSource("step-9")))
    world.pass_time(1.0)
    world.commit(10)
    world.checkpoints = (Durable(9, "step-9", "new"), Durable(6, "step-6", "old"))
    world.kill(*[rank for rank, simulated in world.ranks.items() if "head" in simulated.units])
    assert world.last("checkpoint_restored") == {"step": 9, "folder": "step-9"}


def test_what_is_saved_after_a_return_is_never_mixed_with_what_was_saved_before() -> None:
    world = World(checkpoints=(Durable(6, "step-6"),))
    world.start()
    world.commit(10)
    first = world.ranks[0].lineage
    world.kill(7)
    assert {rank.lineage for rank in world.ranks.values()} == {first}, "it is the same course of training"
    world.kill(*[rank for rank, simulated in world.ranks.items() if "head" in simulated.units])
    assert world.last("checkpoint_restored")["step"] == 6
    (second,) = {rank.lineage for rank in world.ranks.values()}
    assert first and second and second != first


def test_when_no_checkpoint_is_whole_the_stop_names_what_is_wrong_with_each() -> None:
    world = World(checkpoints=(Durable(9, "step-9"),), must_resume=True)
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    world.sent.clear()
    world.coordinator.on_trouble(2, Trouble(1, "step-9/head/data: truncated", refused=CheckpointSource("step-9")))
    world.pass_time(1.0)
    assert world.coordinator.stage is Stage.ENDED
    assert "step-9/head/data: truncated" in world.last("job_failed")["reason"]
