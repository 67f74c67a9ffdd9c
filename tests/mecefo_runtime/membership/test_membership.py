"""The coordinator's state machine, driven with simulated ranks: every message sent and every report made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import (
    Evicted,
    Form,
    Goodbye,
    Parked,
    Regroup,
    Stop,
    Trouble,
    Unhealthy,
)
from mecefo_runtime.job.step_report import LateCommit
from mecefo_runtime.membership.gathering import START_TIMEOUT_SECONDS
from mecefo_runtime.membership.member_table import Stage
from mecefo_runtime.membership.pending_losses import LOSS_GRACE_SECONDS
from mecefo_runtime.membership.transitions import REJOIN_GRACE_SECONDS
from mecefo_runtime.system.job_records import RatingsAgreed
from mecefo_runtime.system.json_values import to_json
from tests.mecefo_runtime.membership.membership_world import CLUSTER, TOTALS, SimulatedRank, World
from tests.planning import COSTS, layout_of

pytestmark = pytest.mark.unit


def test_start_waits_for_every_rank_and_forms_the_configured_layout() -> None:
    world = World()
    for rank in range(7):
        world.coordinator.on_hello(world.ranks[rank].hello())
    assert world.coordinator.stage is Stage.GATHERING
    world.coordinator.on_hello(world.ranks[7].hello())
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.epoch == 1
    assert world.coordinator.layout == layout_of("ndb", CLUSTER, range(8))


def test_what_members_agree_on_on_their_way_in_is_said_once_and_stands_for_the_rest_of_the_job() -> None:
    world = World(rating_origin=RatingsAgreed(were_given=False))
    world.agreed = replace(COSTS, commit_seconds=0.5, message_seconds=0.25)
    world.start()
    assert [fields["costs"] for kind, fields in world.events if kind == "ratings"] == [to_json(world.agreed)]
    assert {form.ratings for form in world.forms} == {COSTS}
    world.forms.clear()
    world.commit(10)
    world.kill(4, 5)
    assert {form.ratings for form in world.forms} == {world.agreed}
    assert world.kinds().count("ratings") == 1


def test_a_job_that_is_not_rated_has_no_ratings() -> None:
    world = World()
    world.start()
    assert {form.ratings for form in world.forms} == {None}
    assert "ratings" not in world.kinds()


def test_step_is_repeated_when_a_survivor_lacks_its_gradients() -> None:
    world = World()
    world.start()
    world.commit(10)
    for rank in (0, 1, 2):
        world.ranks[rank].ready = 11
    world.kill(4, 5)
    assert world.last("layout")["commit_step"] is None
    assert world.last("layout")["resume_step"] == 11
    assert world.coordinator.members == {0, 1, 2, 3, 6, 7}


def test_step_is_committed_when_all_survivors_have_its_gradients_though_nobody_applied_it() -> None:
    world = World()
    world.start()
    world.commit(10)
    for rank in world.ranks.values():
        rank.ready = 11
    world.kill(4)
    assert world.last("layout")["commit_step"] == 11
    assert world.last("layout")["resume_step"] == 12


def test_step_that_one_survivor_applied_is_applied_by_the_others_too() -> None:
    world = World()
    world.start()
    world.commit(10)
    for rank in world.ranks.values():
        rank.ready = 11
    world.ranks[6].ready, world.ranks[6].committed = None, 11
    world.kill(0)
    assert world.last("layout")["commit_step"] == 11
    assert {rank.committed for rank in world.ranks.values()} == {11}


def test_a_rank_that_applied_what_another_does_not_have_is_an_error_and_not_papered_over() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.ranks[6].committed = 11
    world.kill(0)
    assert world.coordinator.stage is Stage.ENDED
    assert "before all had its gradients" in world.last("job_failed")["reason"]


def test_second_loss_during_the_regroup_is_part_of_the_next_epoch() -> None:
    world = World()
    world.start()
    world.commit(10)
    del world.ranks[4]
    world.coordinator.on_lost(4, "supervisor")
    del world.ranks[6]
    world.coordinator.on_lost(6, "supervisor")
    world.pass_time(0.2)
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.members == {0, 1, 2, 3, 5, 7}


def test_loss_while_groups_are_formed_starts_the_next_epoch() -> None:
    world = World()
    world.start()
    world.commit(10)
    del world.ranks[4]
    world.coordinator.on_lost(4, "supervisor")
    while not any(isinstance(message, Form) for _, message in world.sent):
        number, message = world.sent.pop(0)
        rank = world.ranks[number]
        rank.status, rank.target = "parked", message.epoch
        world.coordinator.on_parked(number, Parked(message.epoch, rank.report()))
    assert world.coordinator.stage is Stage.FORMING
    del world.ranks[6]
    world.coordinator.on_lost(6, "supervisor")
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    assert world.coordinator.epoch == 3
    assert world.coordinator.members == {0, 1, 2, 3, 5, 7}


def test_connection_loss_waits_a_moment_for_the_rest_of_the_node() -> None:
    world = World()
    for node in range(4):
        world.coordinator.on_supervisor(node)
    world.start()
    world.commit(10)
    world.coordinator.on_supervisor_lost(2)
    for rank in (4, 5):
        del world.ranks[rank]
        world.coordinator.on_lost(rank, "connection")
    world.obey()
    assert world.coordinator.epoch == 2
    assert world.kinds().count("layout") == 2


def test_silent_rank_is_lost_by_heartbeat() -> None:
    world = World()
    world.start()
    world.commit(3)
    del world.ranks[5]
    world.pass_time(3.0)
    assert world.last("detected") == {"step": None, "epoch": 1, "lost": [5], "how": "heartbeat"}
    assert 5 not in world.coordinator.members
    assert world.hung_up == [5]


def test_repaired_node_rejoins_at_a_boundary_and_the_layout_is_the_configured_one_again() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.kill(4, 5)
    world.commit(20)
    for rank in (4, 5):
        world.ranks[rank] = SimulatedRank(rank, attempt=2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    assert world.coordinator.members == set(range(8))
    assert world.coordinator.layout == layout_of("ndb", CLUSTER, range(8))
    assert world.last("rejoined") == {"step": 20, "epoch": 3, "ranks": [4, 5]}
    assert world.ranks[4].committed == 20


def test_rank_of_an_old_epoch_is_evicted_and_comes_back_as_a_newcomer() -> None:
    world = World()
    world.start()
    world.commit(10)
    sleeper = world.ranks[3]
    world.kill(3, how="heartbeat")
    world.ranks[3] = sleeper
    world.coordinator.on_hello(sleeper.hello())
    assert (3, Evicted(2)) in world.sent
    world.obey()
    world.pass_time(1.0)
    assert 3 in world.coordinator.members
    assert world.ranks[3].committed == 10


def test_losing_every_holder_of_a_layer_is_a_clear_stop() -> None:
    world = World()
    world.start()
    world.commit(10)
    holders = [rank for rank in range(8) if "layer.3" in world.ranks[rank].units]
    world.kill(*holders)
    assert world.coordinator.stage is Stage.ENDED
    assert "no living rank holds head, layer.2, layer.3" in world.last("job_failed")["reason"]


def test_restarted_coordinator_learns_the_epoch_and_training_goes_on() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.kill(4, 5)
    world.commit(12)
    world.coordinator = world.new_coordinator()
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    assert world.coordinator.stage is Stage.TRAINING
    assert world.last("coordinator_restarted") == {"step": None, "epoch": 2, "members": [0, 1, 2, 3, 6, 7]}
    world.obey()
    world.kill(0)
    assert world.coordinator.epoch == 3
    assert world.ranks[1].committed == 12


def test_ranks_that_finish_while_they_say_hello_to_a_successor_end_the_job() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.coordinator = world.new_coordinator()
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    assert world.coordinator.stage is Stage.TRAINING
    # Without a connection to say so by, they had finished when it was there: then they say hello once more.
    for rank in world.ranks.values():
        rank.status = "finished"
        world.coordinator.on_hello(rank.hello())
    assert world.coordinator.stage is Stage.ENDED
    assert world.coordinator.failure is None


def lose_everybody_and_the_coordinator(checkpoints: tuple[Durable, ...]) -> World:
    world = World(checkpoints=checkpoints)
    world.start()
    world.commit(10)
    world.coordinator = world.new_coordinator(begun_epoch=world.coordinator.epoch)
    world.ranks = {rank: SimulatedRank(rank, attempt=2) for rank in world.ranks}
    world.start()
    return world


def test_a_successor_that_finds_nobody_with_state_goes_back_to_the_newest_checkpoint() -> None:
    world = lose_everybody_and_the_coordinator((Durable(9, "step-9"), Durable(6, "step-6")))
    assert world.coordinator.stage is Stage.TRAINING
    assert world.last("checkpoint_restored")["folder"] == "step-9"
    assert world.last("layout")["resume_step"] == 10
    assert world.coordinator.epoch == 2, "who wakes up from the epoch before must not take itself for a member"


def test_a_successor_that_finds_nobody_with_state_and_no_checkpoint_does_not_begin_anew() -> None:
    world = lose_everybody_and_the_coordinator(())
    assert world.coordinator.stage is Stage.ENDED
    assert "there is no checkpoint" in str(world.coordinator.failure)


def test_a_successor_whose_predecessor_began_nothing_begins() -> None:
    world = World()
    world.coordinator = world.new_coordinator(begun_epoch=0)
    world.start()
    assert world.coordinator.epoch == 1 and world.last("layout")["reason"] == "start"


def test_restarted_coordinator_misses_a_rank_that_died_with_it() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.coordinator = world.new_coordinator()
    del world.ranks[2]
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    assert world.coordinator.stage is Stage.GATHERING
    world.pass_time(2.5)
    assert world.coordinator.members == {0, 1, 3, 4, 5, 6, 7}
    assert world.coordinator.stage is Stage.TRAINING


def test_job_ends_when_all_members_finished() -> None:
    world = World(steps=10)
    world.start()
    world.commit(10)
    for rank in range(8):
        assert world.coordinator.stage is Stage.TRAINING
        world.coordinator.on_finished(rank)
    assert world.coordinator.stage is Stage.ENDED
    assert all(message == Goodbye() for _, message in world.sent)


def test_loss_after_the_last_step_still_commits_it_everywhere() -> None:
    world = World(steps=10)
    world.start()
    world.commit(9)
    for rank in world.ranks.values():
        rank.ready = 10
    world.ranks[0].ready, world.ranks[0].committed = None, 10
    del world.ranks[7]
    world.coordinator.on_lost(7, "supervisor")
    for number, message in [item for item in world.sent if isinstance(item[1], Regroup)]:
        world.coordinator.on_parked(number, Parked(message.epoch, world.ranks[number].report()))
    assert (1, Goodbye(LateCommit(10, TOTALS))) in world.sent


def test_background_takeover_runs_at_once_with_what_there_is_and_balances_later() -> None:
    world = World(takeover="background")
    world.start()
    world.commit(10)
    world.kill(3)
    first = world.coordinator.layout
    assert first is not None
    hit = CLUSTER.cell_of(3)[0]
    assert hit not in {replica.replica for replica in first.replicas}
    assert world.last("layout")["num_transfers"] == 0
    assert world.last("layout")["num_fetched_in_background"] == 3
    assert first.num_microbatches == CLUSTER.num_microbatches
    world.commit(12)
    assert world.last("layout")["reason"] == "balance"
    assert world.last("layout")["num_transfers"] == 0
    assert world.coordinator.layout == layout_of("ndb", CLUSTER, set(range(8)) - {3})


def test_a_loss_before_the_fetched_state_is_there_does_not_count_on_it() -> None:
    world = World(takeover="background")
    world.start()
    world.commit(10)
    world.kill(3)
    neighbour = next(rank for rank in world.ranks.values() if rank.background.of(rank.rank))
    assert neighbour.missing()
    world.kill(next(rank for rank in world.ranks if rank != neighbour.rank))
    holdings = neighbour.report().holdings
    assert world.coordinator.stage is Stage.TRAINING
    assert not neighbour.missing() & set(holdings)


def test_a_rank_whose_state_differs_gets_its_peers() -> None:
    world = World()
    world.start()
    world.commit(10)
    rank = world.ranks[6]
    rank.distrusted = (rank.units[-1],)
    world.coordinator.on_diverged(1)
    world.obey()
    assert world.coordinator.epoch == 2
    assert world.last("layout")["reason"] == "heal"
    assert world.last("layout")["num_transfers"] == 1
    assert world.coordinator.members == set(range(8))
    assert not rank.distrusted


def test_a_loss_on_the_way_is_what_the_next_epoch_is_said_to_be_for() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.coordinator.on_diverged(1)
    assert world.coordinator.stage is Stage.PARKING
    del world.ranks[3]
    world.coordinator.on_lost(3, "supervisor")
    world.obey()
    assert world.last("layout")["reason"] == world.last("regrouped")["reason"] == "loss"


def test_a_rank_that_spoils_steps_is_sent_away_and_its_replica_taken_over() -> None:
    world = World()
    world.start()
    world.commit(10)
    world.coordinator.on_unhealthy(Unhealthy(1, 6, "its gradients are not finite"))
    assert (6, Stop("its gradients are not finite")) in world.sent
    del world.ranks[6]
    world.pass_time(0.2)
    assert world.last("detected") == {"step": None, "epoch": 1, "lost": [6], "how": "health"}
    assert world.coordinator.members == set(range(8)) - {6}
    world.coordinator.on_unhealthy(Unhealthy(1, 5, "late news of an old epoch"))
    assert 5 in world.coordinator.members


def test_a_step_whose_gradients_are_not_finite_is_not_committed_by_a_regroup_either() -> None:
    world = World()
    world.start()
    world.commit(10)
    for rank in world.ranks.values():
        rank.ready, rank.norm = 11, float("nan")
    world.kill(4)
    assert world.last("layout")["commit_step"] is None
    assert world.last("layout")["resume_step"] == 11


def test_it_is_called_in_time_for_whatever_it_waits_for() -> None:
    """Signs of life alone would put the next look off for ever."""

    def heard_at(seconds: float) -> None:
        world.now = seconds
        for rank in world.ranks:
            world.coordinator.on_heard(rank)

    world = World()
    assert world.coordinator.next_deadline() == START_TIMEOUT_SECONDS
    world.start()
    assert world.coordinator.next_deadline() == 2.0, "when a rank becomes silent"
    world.coordinator.on_trouble(2, Trouble(1, "connection closed by peer"))
    heard_at(2.9)
    assert world.coordinator.next_deadline() == 3.0, "when the epoch is formed again, should nobody turn out to be lost"
    world.pass_time(1.0)
    assert world.coordinator.epoch == 2
    world.coordinator.on_supervisor(2)
    del world.ranks[4]
    world.coordinator.on_lost(4, "connection")
    assert world.coordinator.next_deadline() == pytest.approx(world.now + LOSS_GRACE_SECONDS)
    world.pass_time(0.2)
    world.ranks[4] = SimulatedRank(4, attempt=2)
    del world.ranks[5]
    world.coordinator.on_lost(5, "supervisor")
    world.obey()
    world.coordinator.on_hello(world.ranks[4].hello())
    assert world.coordinator.next_deadline() == pytest.approx(world.now + REJOIN_GRACE_SECONDS), "for its neighbour"


@given(st.data())
def test_no_schedule_of_losses_and_rejoins_loses_or_doubles_a_step(data: st.DataObject) -> None:
    """At any moment any rank may be anywhere in the step; `obey` asserts the commit rule for every survivor."""
    world = World(
        data.draw(st.sampled_from(["ndb", "exact", "mecefo", "oobleck-like"])),
        takeover=data.draw(st.sampled_from(["auto", "direct", "background"])),
    )
    world.start()
    committed = 0
    for _ in range(data.draw(st.integers(1, 6))):
        committed += data.draw(st.integers(1, 3))
        world.commit(committed)
        # Nobody applies a step before all have its gradients, so these are the moments that can be.
        moment = data.draw(st.sampled_from(["nobody ready", "some ready", "all ready", "some applied"]))
        alive = sorted(world.ranks)
        some = data.draw(st.sets(st.sampled_from(alive), min_size=1, max_size=len(alive)))
        for number, rank in world.ranks.items():
            rank.ready, rank.has_totals = None, False
            if moment in ("all ready", "some applied") or (moment == "some ready" and number in some):
                rank.ready = committed + 1
            if moment == "some applied" and number in some:
                rank.ready, rank.committed = None, committed + 1
        victims = data.draw(st.sets(st.sampled_from(alive), min_size=1, max_size=2))
        world.kill(*victims)
        if world.coordinator.stage is Stage.ENDED:
            reasons = ("no living rank holds ", "every rank that held state is lost")
            assert world.last("job_failed")["reason"].startswith(reasons)
            held = {unit for rank in world.ranks.values() for unit in set(rank.units) - rank.missing()}
            assert held < {"embedding", "layer.0", "layer.1", "layer.2", "layer.3", "head"}
            return
        assert world.coordinator.stage is Stage.TRAINING
        committed_now = {rank.committed for rank in world.ranks.values()}
        assert len(committed_now) == 1
        committed = committed_now.pop()
        if data.draw(st.booleans()):
            for number in set(range(8)) - set(world.ranks):
                world.ranks[number] = SimulatedRank(number, attempt=2)
                world.coordinator.on_hello(world.ranks[number].hello())
            world.pass_time(1.0)
            assert world.coordinator.members == set(range(8))
            assert {rank.committed for rank in world.ranks.values()} == {committed}
