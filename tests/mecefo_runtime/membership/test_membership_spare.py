"""SPARe in the coordinator: masked losses move no state, and a wipe-out goes back to what is saved."""

import pytest

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.job.layout import Cluster, configured_layout
from tests.mecefo_runtime.membership.membership_world import World

pytestmark = pytest.mark.unit

# Two replicas hold each shard: g and g + 1.
CLUSTER = Cluster(4, 1, data_parallel=4, pipeline=1, num_layers=2, num_microbatches=8)


def training(**settings):
    world = World("spare", cluster=CLUSTER, **settings)
    world.start()
    world.commit(3)
    return world


def test_a_lost_replica_is_masked_without_any_state_that_moves():
    world = training()
    world.kill(1)
    layout = world.coordinator.layout
    assert {replica.replica for replica in layout.replicas} == {0, 2, 3}
    assert layout.assignment.depth == world.last("layout")["stack_depth"] == 2
    assert world.forms[-1].pieces == ()
    layout.check(CLUSTER, world.coordinator.members)


def test_without_saved_state_a_wipe_out_ends_the_job_with_what_was_lost():
    world = training()
    world.kill(1)
    world.commit(4)
    world.kill(0)
    reason = world.last("job_failed")["reason"]
    assert "2 whole replicas of 4 do not hold all shards" in reason
    assert "no snapshot and no checkpoint" in reason


def test_with_a_checkpoint_all_ranks_start_again_after_a_wipe_out():
    world = training(checkpoints=(Durable(2, "step-2"),))
    world.kill(1)
    world.commit(4)
    world.kill(0)
    assert "restarting" in world.kinds()
    assert "job_failed" not in world.kinds()


def test_when_the_lost_are_back_everybody_computes_one_shard_again():
    world = training()
    world.kill(1)
    world.commit(4)
    world.ranks[1] = type(world.ranks[0])(1, attempt=2)
    world.coordinator.on_hello(world.ranks[1].hello())
    world.obey()
    assert world.coordinator.layout == configured_layout(CLUSTER)
