"""The coordinator has a step completed: what survivors say of it, and what they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import Regroup
from mecefo_runtime.job.step_report import HealthHistory
from mecefo_runtime.membership.membership import Stage
from tests.mecefo_runtime.membership.membership_world import CLUSTER, World

pytestmark = pytest.mark.unit


def compute(world: World, share: float = 1.0, **said: int) -> None:
    """Every rank has computed this much of its replica's share of the step in flight."""
    for rank in world.ranks.values():
        assert rank.layout is not None
        place = rank.layout.find(rank.rank)
        assert place is not None
        microbatches = rank.layout.microbatches_of(place[0].replica)
        rank.compute(*microbatches[: round(share * len(microbatches))], **said)


def begun(strategy: str = "exact", **made: object) -> World:
    world = World(strategy, **made)
    world.start()
    world.commit(10)
    return world


def test_survivors_are_told_who_is_lost_and_what_counts() -> None:
    world = begun()
    compute(world)
    sent: list[tuple[int, object]] = []
    send = world.send
    world.send = lambda rank, message: (sent.append((rank, message)), send(rank, message))[1]  # type: ignore[method-assign]
    world.kill(2, 3)
    calls = [(rank, message.lost) for rank, message in sent if isinstance(message, Regroup)]
    # The first one was heard of a moment sooner.
    assert calls == [
        *((rank, (2,)) for rank in (0, 1, 3, 4, 5, 6, 7)),
        *((rank, (2, 3)) for rank in sorted(world.ranks)),
    ]
    completion = world.forms[-1].completion
    assert completion is not None and completion.step == 11
    # Two of four replicas lost a rank.
    assert {work.replica for work in completion.kept} == {0, 1}
    kept = [index for work in completion.kept for index in work.microbatches]
    assigned = [index for share in completion.assigned.values() for index in share]
    assert sorted(kept + assigned) == list(range(CLUSTER.num_microbatches))
    told = world.last("layout")
    assert (told["kept_microbatches"], told["shared_out_microbatches"], told["lost_work_ratio"]) == (8, 8, 0.5)


def test_a_second_loss_in_the_step_keeps_what_both_left_whole() -> None:
    world = begun()
    compute(world)
    world.kill(2, 3)
    first = world.forms[-1].completion
    assert first is not None
    # Nobody has got any further.
    world.kill(0)
    second = world.forms[-1].completion
    assert second is not None and {work.replica for work in second.kept} == {1}
    assert second.kept_by(1) == first.kept_by(1)
    kept = second.kept_by(1)
    assert sorted([*kept, *(i for share in second.assigned.values() for i in share)]) == list(range(16))


@pytest.mark.parametrize("what", ["commit", "rejoin", "verdict"])
def test_what_does_not_belong_to_the_step_in_flight_does_not_count(what: str) -> None:
    world = begun()
    if what == "verdict":
        # Some have heard that the step is to be computed again.
        compute(world)
        survivor = world.ranks[4]
        report = survivor.report
        survivor.report = lambda: replace(report(), history=HealthHistory(num_verdicts=1))  # type: ignore[method-assign]
    elif what == "commit":
        compute(world)
        for rank in world.ranks.values():
            rank.ready = 11
    else:
        # All have committed a step since.
        compute(world)
        world.commit(11)
    world.kill(2)
    assert world.forms[-1].completion is None
    assert "kept_microbatches" not in world.last("layout")
    assert world.forms[-1].resume_step == (11 if what == "verdict" else 12)


def test_nothing_is_kept_when_the_job_goes_back_to_stored_state() -> None:
    world = begun(checkpoints=(Durable(10, "step-10"),))
    compute(world)
    # All holders of one stage.
    holders = world.coordinator.layout.holders()["layer.0"]
    world.kill(*holders)
    assert world.last("checkpoint_restored")["step"] == 10
    assert world.forms[-1].resume_step == 11 and world.forms[-1].completion is None


def test_a_coordinator_that_was_restarted_meanwhile_learns_it_from_the_reports() -> None:
    world = begun()
    compute(world)
    world.coordinator = world.new_coordinator()
    for rank in world.ranks.values():
        world.coordinator.on_hello(rank.hello())
    assert world.coordinator.stage is Stage.TRAINING
    world.kill(2, 3)
    completion = world.forms[-1].completion
    assert completion is not None and completion.num_kept == 8
