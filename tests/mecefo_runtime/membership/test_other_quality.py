"""What the coordinator logs about the layouts that another quality would have led to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime import planners
from mecefo_runtime.job.config import QUALITIES, Quality, other_quality, quality_of
from mecefo_runtime.job.layout import configured_layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.prediction.step_time import step_seconds
from tests.examples import FEW
from tests.mecefo_runtime.membership.membership_world import CLUSTER, SimulatedRank, World
from tests.planning import COSTS

pytestmark = pytest.mark.unit


def training(strategy="mecefo", **settings) -> World:
    world = World(strategy, **settings)
    world.start()
    world.commit(3)
    return world


def predictions(world):
    return [fields for kind, fields in world.events if kind == "other_quality_planned"]


def rejoin(world, *ranks):
    for rank in ranks:
        world.ranks[rank] = SimulatedRank(rank, attempt=2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    world.pass_time(0.5)


def test_it_follows_the_epoch_and_costs_no_member_time():
    world = training(quality="auto", other_quality="speed")
    assert not predictions(world)
    world.kill(2, 3)
    (found,) = predictions(world)
    assert world.kinds()[-1] == "other_quality_planned" and world.kinds()[-2] == "regrouped"
    told = world.last("layout")
    assert (found["epoch"], found["step"], found["quality"]) == (told["epoch"], told["step"], "speed")
    assert told["degraded_layers"] == 0 < found["degraded_layers"]
    assert found["predicted_step_seconds"] < told["predicted_step_seconds"]
    assert found["failure_free_step_seconds"] == told["failure_free_step_seconds"]
    rejoin(world, 2, 3)
    assert len(world.coordinator.members) == 8
    assert len(predictions(world)) == 1, "with every rank there is nothing to choose"


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
    st.sampled_from(sorted(QUALITIES)),
    st.sampled_from(["speed", "auto"]),
)
@FEW
def test_it_is_what_the_planner_does_with_that_quality_after_the_same_losses(lost, quality, other):
    world = training(quality=quality, other_quality=other)
    alive, layout = frozenset(range(8)), None
    for number, rank in enumerate(lost):
        world.kill(rank)
        if world.coordinator.failure is not None:
            return
        if number == 0:
            layout = configured_layout(CLUSTER)
        assert layout is not None
        alive -= {rank}
        situation = Situation(
            CLUSTER,
            alive,
            COSTS,
            current=layout,
            holdings={rank: frozenset(layout.units(rank)) for rank in alive},
            degraded_share_limit=QUALITIES[other].degraded_share_limit,
            projected_share_limit=QUALITIES[other].projected_share_limit,
        )
        layout = planners.find("mecefo")(situation)
        found = predictions(world)[-1]
        assert found["degraded_layers"] == layout.num_degraded_layers
        assert found["projected_layers"] == layout.num_projected_layers
        assert found["predicted_step_seconds"] == step_seconds(layout, COSTS)
        assert found["failure_free_step_seconds"] == step_seconds(configured_layout(CLUSTER), COSTS)


def test_with_the_same_quality_it_is_the_layout_of_the_job():
    world = training(quality="speed", other_quality="speed")
    world.kill(2, 3)
    world.kill(5)
    told = [fields for kind, fields in world.events if kind == "layout"][1:]
    assert len(told) == len(predictions(world)) == 2
    for own, found in zip(told, predictions(world), strict=True):
        names = ("epoch", "degraded_layers", "projected_layers", "predicted_step_seconds", "failure_free_step_seconds")
        assert {name: own[name] for name in names} == {name: found[name] for name in names}


def test_strategies_without_a_quality_have_none():
    world = training("ndb")
    world.kill(2, 3)
    assert not predictions(world)
    with_quality = {name for name in planners.names() if planners.has_quality(name)}
    assert with_quality == {"mecefo", "mecefo+spare"}
    assert {name for name in planners.names() if planners.approximates(name) == "always"} == {"ndb", "mecefo-paper"}
    assert planners.approximates("nonsense") == planners.approximates(None) == "never"


@pytest.mark.parametrize(
    ("quality", "other"), [("auto", "speed"), ("exact", "speed"), ("speed", "auto"), (0.25, "speed"), (1.0, "auto")]
)
def test_the_other_quality_is_speed_and_for_that_the_default(quality, other):
    assert other_quality(quality_of(quality)) == other
    assert isinstance(quality_of(quality), Quality)
