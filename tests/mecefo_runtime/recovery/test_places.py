"""Who has which place of the configured layout when there are spare nodes, for any losses and returns."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime import planners
from mecefo_runtime.job.layout import Cluster, Layout, configured_layout
from mecefo_runtime.planners import NoLayout, Situation
from mecefo_runtime.recovery.places import fill_places, filling_places, renamed
from mecefo_runtime.system.json_values import from_json, to_json
from tests.examples import FEW
from tests.mecefo_runtime.planning import PLAIN

pytestmark = pytest.mark.unit

CLUSTER = Cluster(5, 2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=12, spares=1)
BARE = replace(CLUSTER, nodes=4, spares=0)


@st.composite
def histories(draw):
    """A cluster with spare nodes, and who of it is alive at one time after the other."""
    nodes, gpus_per_node, spares = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    num_places = nodes * gpus_per_node
    cluster = Cluster(nodes + spares, gpus_per_node, num_places, 1, 1, num_places, spares)
    return cluster, draw(st.lists(st.sets(st.integers(0, cluster.num_ranks - 1)), min_size=1, max_size=6))


@FEW
@given(histories())
def test_as_many_places_as_can_be_are_filled_and_whoever_has_one_keeps_it(history):
    cluster, times = history
    before = {place: place for place in range(cluster.num_places)}
    for alive in times:
        stand_ins = {place: rank for place, rank in before.items() if place != rank}
        now = fill_places(cluster, alive, stand_ins)
        assert now == fill_places(cluster, sorted(alive, reverse=True), stand_ins)
        assert len(set(now.values())) == len(now) == min(len(alive), cluster.num_places)
        assert set(now.values()) <= alive
        assert all(now[place] == rank for place, rank in before.items() if rank in alive)
        before = {place: now.get(place, place) for place in before}


def test_places_of_one_node_go_to_one_node_where_that_is_possible():
    cluster = replace(CLUSTER, nodes=6, spares=2)
    # Of node 4 a rank is gone; node 5 is whole.
    assert fill_places(cluster, set(range(2, 12)) - {8}, {}) == {0: 10, 1: 11, **{rank: rank for rank in range(2, 8)}}
    assert fill_places(cluster, set(range(1, 12)) - {8}, {})[0] == 9


def test_a_rank_that_comes_back_to_a_taken_place_is_a_spare_from_then_on():
    alive = set(range(10))
    assert fill_places(CLUSTER, alive, {2: 8, 3: 9}) == {0: 0, 1: 1, 2: 8, 3: 9, 4: 4, 5: 5, 6: 6, 7: 7}
    assert fill_places(CLUSTER, alive - {6, 7}, {2: 8, 3: 9})[6] == 2


@pytest.mark.parametrize("name", planners.names())
def test_with_enough_spares_the_layout_is_the_configured_one_with_other_ranks_in_it(name):
    plan = filling_places(planners.find(name))
    whole = plan(Situation(CLUSTER, frozenset(range(10)), PLAIN))
    assert whole == configured_layout(BARE)
    holdings = {rank: frozenset(whole.units(rank)) for rank in range(10) if rank not in (2, 3)}
    after = plan(Situation(CLUSTER, frozenset(holdings), PLAIN, whole, holdings))
    after.check(CLUSTER, holdings)
    assert after.stand_ins == ((2, 8), (3, 9))
    assert renamed(after, {8: 2, 9: 3}) == whole
    # Back again: nobody moves.
    assert plan(Situation(CLUSTER, frozenset(range(10)), PLAIN, after)) == after


@pytest.mark.parametrize("name", planners.names())
def test_with_too_few_spares_the_strategy_does_what_it_does(name):
    planner = planners.find(name)
    alive = frozenset({4, 5, 6, 7, 8, 9})
    try:
        bare = planner(Situation(BARE, frozenset({0, 1, 4, 5, 6, 7}), PLAIN))
    except NoLayout:
        with pytest.raises(NoLayout):
            filling_places(planner)(Situation(CLUSTER, alive, PLAIN))
        return
    layout = filling_places(planner)(Situation(CLUSTER, alive, PLAIN))
    layout.check(CLUSTER, alive)
    assert renamed(layout, {8: 0, 9: 1}) == bare


def test_who_stands_in_survives_the_wire_and_old_logs_know_of_nobody():
    layout = replace(configured_layout(BARE), stand_ins=((2, 8),))
    assert from_json(Layout, to_json(layout)) == layout
    old = {key: value for key, value in to_json(layout).items() if key != "stand_ins"}
    assert from_json(Layout, old).stand_ins == ()
