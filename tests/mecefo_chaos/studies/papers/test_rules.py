"""A verdict follows its figures: each rule turns when a figure crosses the claim."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_chaos.studies.papers.rules import (
    MIN_RUNS,
    Measured,
    always,
    at_least,
    at_most,
    every,
    figures_of,
    less_than,
    mean_and_worst_at_most,
    passed_of,
    within,
)
from mecefo_chaos.studies.papers.verdicts import Verdict

pytestmark = pytest.mark.unit

VALUES = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=MIN_RUNS, max_size=8)


@given(VALUES, st.floats(-1e6, 1e6, allow_nan=False))
def test_a_claim_holds_for_all_values_or_for_none_or_is_undecided(values: list[float], limit: float) -> None:
    figure = Measured.of(values)
    holding = [value <= limit for value in values]
    assert at_most(figure, limit) == (
        "reproduced" if all(holding) else "cannot be decided here" if any(holding) else "not reproduced"
    )
    holding = [value >= limit for value in values]
    assert at_least(figure, limit) == (
        "reproduced" if all(holding) else "cannot be decided here" if any(holding) else "not reproduced"
    )


@given(VALUES, VALUES)
def test_a_difference_is_claimed_only_where_the_ranges_do_not_overlap(one: list[float], other: list[float]) -> None:
    verdict = less_than(Measured.of(one), Measured.of(other))
    assert (verdict == "reproduced") == (max(one) < min(other))
    assert (verdict == "not reproduced") == (min(one) >= max(other) and not max(one) < min(other))


def test_a_figure_that_leaves_the_interval_turns_the_verdict() -> None:
    assert within(Measured.of([1.0, 1.5, 2.0]), 1, 2) == "reproduced"
    assert within(Measured.of([1.0, 1.5, 2.1]), 1, 2) == "cannot be decided here"
    assert within(Measured.of([2.1, 2.2, 2.3]), 1, 2) == "not reproduced"


@pytest.mark.parametrize("n", range(MIN_RUNS))
def test_too_few_values_decide_nothing(n: int) -> None:
    figure = Measured.of([1.0] * n)
    expected = "not checked" if n == 0 else "cannot be decided here"
    assert at_most(figure, 2) == at_least(figure, 0) == within(figure, 0, 2) == expected
    assert less_than(figure, Measured.of([3.0] * MIN_RUNS)) == expected


@given(st.integers(0, 20), st.integers(0, 20))
def test_one_case_that_did_not_hold_refutes_what_always_holds(num_held: int, num_more: int) -> None:
    verdict = always(num_held, num_held + num_more)
    assert (verdict == "not reproduced") == (num_more > 0)
    assert (verdict == "reproduced") == (num_more == 0 and num_held >= MIN_RUNS)
    assert (verdict == "not checked") == (num_held + num_more == 0)


@given(st.lists(st.sampled_from(["reproduced", "not reproduced", "cannot be decided here", "not checked"]), max_size=6))
def test_a_claim_about_several_cells_holds_in_all_of_them(verdicts: list[Verdict]) -> None:
    verdict = every(verdicts)
    assert (verdict == "reproduced") == (bool(verdicts) and set(verdicts) == {"reproduced"})
    assert (verdict == "not reproduced") == ("not reproduced" in verdicts)
    assert (verdict == "not checked") == (set(verdicts) <= {"not checked"})
    assert passed_of(verdict) is {"reproduced": True, "not reproduced": False}.get(verdict)


def test_figures_are_those_of_the_cells_that_were_measured() -> None:
    (figure,) = figures_of({"a": Measured.of([3.0, 1.0, 2.0]), "b": None})
    assert (figure.cell, figure.median, figure.least, figure.greatest, figure.n) == ("a", 2, 1, 3, 3)


@given(st.lists(st.floats(0, 1e6), max_size=8), st.floats(0, 1e6))
def test_an_error_has_to_hold_as_a_mean_and_as_the_worst(values: list[float], limit: float) -> None:
    verdict = mean_and_worst_at_most(values, limit)
    if len(values) < MIN_RUNS:
        assert verdict == ("cannot be decided here" if values else "not checked")
    elif max(values) <= limit:
        assert verdict == "reproduced"
    else:
        assert verdict == ("not reproduced" if fmean(values) > limit else "cannot be decided here")
