"""The odds: the closed form, every case tried through the product's own code, and losses drawn by chance, agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_chaos.studies.papers.reft.correlated import adjacent_groups, rack_rows, stage_rows, window_rows
from mecefo_chaos.studies.papers.reft.odds import Odds, least_likely, pooled_draws, scheme_rows
from mecefo_chaos.studies.papers.reft.sampling import (
    Memory,
    Sample,
    enumerate_losses,
    likelihood_of_sum,
    sample_lifetimes,
    sample_losses,
)
from mecefo_chaos.studies.papers.reft.schemes import SCHEMES, SMALL, XOR_4
from mecefo_chaos.studies.papers.reft.survival import after, borne, given_losses, node_survival, time_ratio_of
from mecefo_chaos.studies.papers.reft.waste import best_interval_seconds, waste_per_failure_seconds, waste_ratio
from mecefo_runtime.job.protection import groups_of

pytestmark = pytest.mark.unit

protections = st.sampled_from(["none", "copy", "xor", "pq"])
groups_of_few = st.builds(
    lambda num_nodes, protection, size, rack: groups_of(range(num_nodes), protection, size, rack),
    st.integers(1, 9),
    protections,
    st.integers(2, 6),
    st.none() | st.integers(1, 4),
)


@given(groups_of_few)
def test_the_closed_form_counts_every_set_that_the_products_code_survives(groups) -> None:
    counts = borne(groups)
    for num_lost, (num_survived, num_sets) in enumerate(enumerate_losses(groups)):
        assert num_survived == (counts[num_lost] if num_lost < len(counts) else 0)
        assert given_losses(groups, num_lost) * num_sets == num_survived


@given(groups_of_few, st.floats(0.01, 0.99))
def test_both_closed_forms_say_the_same(groups, p: float) -> None:
    """The law of total probability, over how many nodes are lost."""
    num_nodes = sum(len(group.nodes) for group in groups)
    total = sum(
        math.comb(num_nodes, k) * p ** (num_nodes - k) * (1 - p) ** k * float(given_losses(groups, k))
        for k in range(num_nodes + 1)
    )
    assert after(groups, p) == pytest.approx(total)


@given(groups_of_few, st.data())
def test_losses_drawn_by_chance_are_within_their_interval(groups, data) -> None:
    num_nodes = sum(len(group.nodes) for group in groups)
    num_lost = data.draw(st.integers(0, num_nodes))
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    time_ratio, shape = data.draw(st.floats(0.001, 2.0)), data.draw(st.sampled_from([0.78, 1.0, 2.0]))
    # One in a million: not once in as many examples as are ever drawn.
    assert sample_losses(groups, num_lost, 40, generator).likelihood(float(given_losses(groups, num_lost))) > 1e-6
    drawn = sample_lifetimes(groups, time_ratio, shape, 40, generator)
    assert drawn.likelihood(after(groups, node_survival(time_ratio, shape))) > 1e-6


def test_a_wrong_closed_form_is_found_out() -> None:
    """The control of the test before: XOR of four taken for pairs."""
    drawn = sample_losses(XOR_4.groups(64), 3, 300, np.random.default_rng(1))
    assert drawn.likelihood(float(given_losses(SCHEMES[0].groups(64), 3))) < 1e-6


def test_the_table() -> None:
    found = {(row.num_nodes, row.scheme): [f"{value:.3f}" for value in row.by_num_lost] for row in scheme_rows()}
    assert found == {
        (64, "2 copies"): ["1.000", "0.984", "0.952", "0.906"],
        (64, "XOR n=4"): ["1.000", "0.952", "0.860", "0.733"],
        (64, "XOR n=8"): ["1.000", "0.889", "0.688", "0.451"],
        # Groups of six do not divide 64 nodes.
        (64, "P+Q 4+2"): ["1.000", "1.000", "0.994", "0.976"],
        (64, "P+Q 6+2"): ["1.000", "1.000", "0.989", "0.960"],
        (64, "within the node"): ["0.000"] * 4,
        (1024, "XOR n=4"): ["1.000", "0.997", "0.991", "0.982"],
    }
    for scheme in SCHEMES[:3]:
        assert float(given_losses(scheme.groups(64), 2)) == pytest.approx(1 - (scheme.group_size - 1) / 63)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_time_until_99_percent(scheme) -> None:
    groups = scheme.groups(64)
    assert after(groups, node_survival(time_ratio_of(groups, 0.78, 0.99), 0.78)) == pytest.approx(0.99)


@given(st.integers(1, 60), st.data())
def test_a_samples_interval_has_its_ratio_in_it(num_draws: int, data) -> None:
    sample = Sample(num_draws, data.draw(st.integers(0, num_draws)))
    low, high = sample.interval
    assert 0 <= low <= sample.ratio + 1e-12 and sample.ratio - 1e-12 <= high <= 1


def test_likelihoods_are_those_of_the_exact_binomial_test() -> None:
    assert Sample(10, 0).likelihood(0.5) == pytest.approx(2 / 1024)
    assert Sample(10, 10).likelihood(1.0) == 1 and Sample(10, 9).likelihood(1.0) == 0
    assert Sample(5, 2).likelihood(0.4) == pytest.approx(1.0)
    odds = [Odds(8, "xor", k, None, 0.5, Sample(n, 0), Sample(n, n // 2)) for k, n in ((1, 10), (2, 0), (3, 4))]
    cell, value = least_likely(odds)
    assert cell.num_lost == 1 and value == pytest.approx(4 / 1024)
    assert least_likely([]) is None
    # Two samples of the same probability are one.
    assert likelihood_of_sum([(Sample(6, 1), 0.3), (Sample(4, 0), 0.3)]) == pytest.approx(Sample(10, 1).likelihood(0.3))
    (pooled,) = pooled_draws(odds)
    assert (pooled.num_draws, pooled.num_survived, pooled.expected) == (14, 7, 7)
    assert pooled.likelihood == pytest.approx(1)
    assert pooled_draws([]) == ()


def test_groups_over_racks_bear_the_loss_of_a_rack_and_adjacent_nodes_do_not() -> None:
    by_size = {(row.scheme, row.nodes_per_rack): row for row in rack_rows()}
    for scheme in SCHEMES:
        assert by_size[scheme.name, 8].spread_ratio == 1 and by_size[scheme.name, 8].adjacent_ratio == 0
        # As good against losses of single nodes, nearly.
        adjacent = given_losses(adjacent_groups(scheme), 2)
        assert float(adjacent) == pytest.approx(float(given_losses(scheme.groups(64), 2)), abs=0.01)
    # No more than as many racks as nodes in a group: then two of a group are in one.
    assert by_size["XOR n=8", 16].spread_ratio == 0


def test_a_stage_of_which_all_nodes_are_lost_is_borne_where_they_are_of_different_groups() -> None:
    found = {(row.scheme, row.gpus_per_node, row.data_parallel): row.borne_ratio for row in stage_rows()}
    assert found["XOR n=4", 1, 2] == 1
    # Two of a group are never too many.
    assert found["P+Q 4+2", 8, 2] == found["P+Q 6+2", 8, 2] == 1
    # Eight ranks a node, of as many stages: no deal keeps all of them apart, and most it does.
    assert found["XOR n=4", 8, 2] > 0.9 and found["2 copies", 8, 2] > 0.9
    assert all(0 <= ratio <= 1 for ratio in found.values())


def test_the_window_is_as_dangerous_as_the_rest_of_the_group_is_large() -> None:
    rows = {row.scheme: row for row in window_rows()}
    assert rows["XOR n=4"].by_seconds[1] == pytest.approx(3 * rows["2 copies"].by_seconds[1], rel=1e-3)
    assert rows["XOR n=4"].by_follower == pytest.approx(0.03 * 3 / 63)
    assert rows["P+Q 6+2"].by_follower == 0
    assert all(row.by_rack_mate == 0 for row in rows.values())
    for row in rows.values():
        assert list(row.by_seconds) == sorted(row.by_seconds)


@given(st.floats(0.01, 100), st.floats(100, 1e6), st.floats(0.1, 10))
def test_no_interval_wastes_less_than_youngs(save_seconds: float, mtbf_seconds: float, factor: float) -> None:
    def waste(interval_seconds: float) -> float:
        per_failure = waste_per_failure_seconds(interval_seconds, 1.0, 2.0)
        return waste_ratio(interval_seconds, save_seconds, mtbf_seconds, per_failure)

    best = best_interval_seconds(save_seconds, mtbf_seconds)
    assert waste(best) <= waste(best * factor) + 1e-12


def test_what_nodes_keep_is_of_any_use_only_with_all_of_it() -> None:
    for scheme in SMALL:
        memory = Memory(scheme.groups(8))
        assert memory.survives(()) and not memory.survives(range(8))
