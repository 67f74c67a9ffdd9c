"""Shadows: who keeps what up to date from when on, and what has to be sent for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.background import Background, ShadowUnit, plan_background
from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span, unit_order

pytestmark = pytest.mark.unit

NUM_LAYERS = 6
UNITS = ("embedding", *(f"layer.{layer}" for layer in range(NUM_LAYERS)), "head")
SIZES = dict.fromkeys(UNITS, 100)


def layout_of(*replicas: list[tuple[int, int, int]]) -> Layout:
    return Layout(
        NUM_LAYERS,
        tuple(Replica(index, tuple(Span(*span) for span in spans), 4) for index, spans in enumerate(replicas)),
    )


WHOLE = layout_of([(0, 0, 3), (1, 3, 6)], [(2, 0, 3), (3, 3, 6)])
WITHOUT_FIRST = layout_of([(2, 0, 3), (3, 3, 6)])
TAKEN_OVER = layout_of([(1, 0, 6)], [(2, 0, 3), (3, 3, 6)])
HOLDINGS = {rank: WHOLE.units(rank) for rank in (1, 2, 3)}


def test_what_a_rank_keeps_costs_nothing_and_what_it_lacks_comes_in_pipeline_order() -> None:
    background = plan_background(WITHOUT_FIRST, TAKEN_OVER, HOLDINGS, SIZES, 200.0, resume_step=11)
    kept = {shadow.unit for shadow in background.of(1) if shadow.source is None}
    assert kept == {"layer.3", "layer.4", "layer.5", "head"}
    fetched = [(shadow.unit, shadow.step, shadow.source) for shadow in background.of(1) if shadow.source is not None]
    assert fetched == [("embedding", 11, 2), ("layer.0", 11, 2), ("layer.1", 12, 2), ("layer.2", 12, 2)]
    assert background.last_step == 12
    assert not background.of(2) and not background.of(3)


def test_sources_share_the_sending() -> None:
    running = layout_of([(1, 0, 6)], [(2, 0, 6)])
    target = layout_of([(0, 0, 6)], [(1, 0, 6)], [(2, 0, 6)])
    background = plan_background(running, target, {}, SIZES, 1e9, resume_step=1)
    sources = [shadow.source for shadow in background.of(0)]
    assert len(sources) == len(UNITS)
    assert sources.count(1) == sources.count(2)


def test_a_unit_larger_than_a_step_can_move_still_moves() -> None:
    background = plan_background(WITHOUT_FIRST, TAKEN_OVER, HOLDINGS, SIZES, 1.0, resume_step=1)
    steps = [shadow.step for shadow in background.shadows if shadow.source is not None]
    assert steps == [1, 101, 201, 301]


def test_shadows_reduce_from_their_first_step_on_and_no_sooner() -> None:
    background = Background((ShadowUnit("layer.0", 1, 12, 2), ShadowUnit("layer.3", 1, 11)))
    before, at = background.holders(WITHOUT_FIRST, 11), background.holders(WITHOUT_FIRST, 12)
    assert before["layer.0"] == (2,) and at["layer.0"] == (1, 2)
    assert before["layer.3"] == (1, 3)
    assert background.transfers(12) == (background.shadows[0],)
    assert background.transfers(11) == ()
    assert background.units(WITHOUT_FIRST, 1) == ("layer.0", "layer.3")
    assert background.reduction_groups(WITHOUT_FIRST) == ((1, 2), (1, 3))


def test_without_shadows_the_layout_is_all_there_is() -> None:
    background = Background()
    assert not background
    assert background.last_step == 0
    assert background.holders(WHOLE, 5) == WHOLE.holders()
    assert background.reduction_groups(WHOLE) == ((0, 2), (1, 3))


@st.composite
def cases(draw):
    """A running layout, a wanted one, and what each rank holds: at least what it runs."""
    cluster = Cluster(1, 6, 3, 2, NUM_LAYERS, 6)
    cut = draw(st.integers(1, NUM_LAYERS - 1))
    running = layout_of([(0, 0, cut), (1, cut, NUM_LAYERS)])
    cuts = draw(st.lists(st.integers(1, NUM_LAYERS - 1), min_size=3, max_size=3))
    target = layout_of(*([(2 * r, 0, cuts[r]), (2 * r + 1, cuts[r], NUM_LAYERS)] for r in range(3)))
    extra = {rank: draw(st.sets(st.sampled_from(UNITS))) for rank in range(cluster.num_ranks)}
    return running, target, {rank: {*running.units(rank), *extra[rank]} for rank in extra}


@given(cases(), st.floats(1.0, 1000.0), st.integers(1, 1000))
def test_when_it_is_done_the_wanted_layout_needs_nothing_more(case, bytes_per_step, resume_step):
    running, target, holdings = case
    background = plan_background(running, target, holdings, SIZES, bytes_per_step, resume_step)
    holders = background.holders(running, background.last_step)
    for unit, ranks in target.holders().items():
        assert set(ranks) <= set(holders[unit])
    for shadow in background.shadows:
        assert shadow.step >= resume_step
        assert shadow.unit not in running.units(shadow.rank)
        assert (shadow.source is None) == (shadow.unit in holdings[shadow.rank])
        if shadow.source is not None:
            assert shadow.unit in running.units(shadow.source)
    assert len(set(background.shadows)) == len(background.shadows)


def test_units_sort_in_pipeline_order():
    assert tuple(sorted(set(UNITS), key=unit_order)) == UNITS
    assert unit_order("layer.10") > unit_order("layer.9")
