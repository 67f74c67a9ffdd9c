"""Delta debugging: what is left fails, and nothing of it can be left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.plan.shrink import BudgetSpent, Trials, lowest, minimize

pytestmark = pytest.mark.unit


@given(items=st.integers(1, 24), data=st.data())
def test_what_is_left_is_what_it_takes(items, data):
    culprits = data.draw(st.sets(st.integers(0, items - 1), min_size=1))
    tried = []

    def fails(part):
        tried.append(part)
        return culprits <= set(part)

    assert set(minimize(range(items), fails)) == culprits
    assert all(list(part) == sorted(part) for part in tried), "their order is that of the schedule"
    assert () not in tried


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_no_single_item_of_the_rest_can_be_left_out(items, random):
    """Also of a failure that follows no rule: any set may fail."""
    answers = {}

    def fails(part):
        part = tuple(part)
        return answers.setdefault(part, len(part) == len(items) or random.random() < 0.3)

    kept = minimize(range(len(items)), fails)
    assert fails(kept)
    if len(kept) > 1:
        assert not any(fails(kept[:i] + kept[i + 1 :]) for i in range(len(kept)))


@given(value=st.integers(1, 10_000), threshold=st.integers(1, 10_000))
def test_the_lowest_that_fails(value, threshold):
    threshold = min(threshold, value)
    tried = []

    def fails(number):
        tried.append(number)
        return number >= threshold

    assert lowest(value, 1, fails) == threshold
    assert len(tried) <= 14


def test_a_trial_is_run_once_and_trials_are_limited():
    ran = []

    def fails(experiment):
        ran.append(experiment)
        return experiment["faults"] > 1

    trials = Trials(fails, 2)
    assert trials({"faults": 2, "seed": 1}) is True
    assert trials({"seed": 1, "faults": 2}) is True
    assert trials({"faults": 1}) is False
    assert (trials.num_trials, len(ran)) == (2, 2)
    assert trials({"faults": 1}) is False
    with pytest.raises(BudgetSpent):
        trials({"faults": 3})
