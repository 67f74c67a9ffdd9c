"""Who must go when links are cut: the fewest, found exactly, and the same whoever asks."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.membership.connectivity import ConnectivityCheck, fewest_to_evict

pytestmark = pytest.mark.unit

PAIRS = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] < pair[1]), max_size=20)


def by_trying_all(pairs: set[tuple[int, int]]) -> int:
    ranks = sorted({rank for pair in pairs for rank in pair})
    for size in range(len(ranks) + 1):
        if any(all(set(pair) & set(gone) for pair in pairs) for gone in combinations(ranks, size)):
            return size
    raise AssertionError("all of them are always enough")


@given(PAIRS)
def test_the_fewest_are_found_whose_going_leaves_no_cut_link(pairs):
    evicted = fewest_to_evict(pairs)
    assert all(set(pair) & evicted for pair in pairs)
    assert len(evicted) == by_trying_all(pairs)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_what_was_told_makes_no_difference(pairs, rng: random.Random):
    shuffled = [pair if rng.random() < 0.5 else pair[::-1] for pair in pairs]
    rng.shuffle(shuffled)
    assert fewest_to_evict(shuffled) == fewest_to_evict(pairs)


@pytest.mark.parametrize(
    ("pairs", "evicted"),
    [
        ((), ()),
        (((2, 5),), (5,)),
        # One host of which every link is cut.
        (((0, 1), (1, 2), (1, 3)), (1,)),
        # Two groups: the smaller one; of equal ones, that with the higher ranks.
        (tuple(product((0, 1), (2, 3, 4))), (0, 1)),
        (tuple(product((0, 1), (2, 3))), (2, 3)),
        (((0, 1), (2, 3)), (1, 3)),
    ],
)
def test_who_goes_in_the_usual_cases(pairs, evicted):
    assert fewest_to_evict(pairs) == set(evicted)


def test_two_large_groups_take_no_time_worth_mentioning():
    # Half of the choices that are allowed would be too slow to wait for, and no proof of anything.
    pairs = list(product(range(64), range(64, 130)))
    assert fewest_to_evict(pairs, max_choices=200) == set(range(64))


def test_when_choices_run_out_what_was_found_still_leaves_no_cut_link():
    rng = random.Random(1)
    pairs = [pair for pair in combinations(range(60), 2) if rng.random() < 0.1]
    evicted = fewest_to_evict(pairs, max_choices=5)
    assert all(set(pair) & evicted for pair in pairs)


def test_a_check_takes_the_answers_of_those_it_asked_and_forgets_who_is_gone():
    check = ConnectivityCheck(1, frozenset({0, 1, 2}), 10.0)
    check.answer(0, [2, 7])
    check.answer(9, [0])
    check.answer(2, [0, 1])
    assert not check.is_answered({0, 1, 2, 9})
    assert check.is_answered({0, 2})
    assert check.severed({0, 1, 2}) == ((0, 2), (1, 2))
    assert check.severed({0, 1}) == ()
