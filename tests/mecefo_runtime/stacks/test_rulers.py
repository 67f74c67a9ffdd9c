"""Rulers are Golomb rulers, and as short as they can be."""

from __future__ import annotations

from itertools import combinations

import pytest

from mecefo_runtime.stacks.rulers import MAX_REDUNDANCY, best_redundancy, largest_redundancy, offsets

pytestmark = pytest.mark.unit

# https://oeis.org/A003022, from two marks on.
LENGTHS = (
    *(1, 3, 6, 11, 17, 25, 34, 44, 55, 72, 85, 106, 127, 151, 177, 199, 216),
    *(246, 283, 333, 356, 372, 425, 480, 492, 553),
)


@pytest.mark.parametrize("redundancy", range(1, MAX_REDUNDANCY + 1))
def test_no_two_pairs_of_marks_are_as_far_apart_and_the_ruler_is_the_shortest(redundancy: int) -> None:
    marks = offsets(redundancy)
    assert len(marks) == redundancy and marks[0] == 0
    distances = [last - first for first, last in combinations(marks, 2)]
    assert len(set(distances)) == len(distances)
    assert marks[-1] == (0, *LENGTHS)[redundancy - 1]


@pytest.mark.parametrize(("num_groups", "largest"), [(1, 1), (3, 2), (4, 2), (6, 3), (8, 3), (200, 12), (1000, 26)])
def test_so_many_copies_fit_among_so_many_groups(num_groups: int, largest: int) -> None:
    assert largest_redundancy(num_groups) == largest
    if num_groups == 2 * offsets(largest)[-1]:
        # Half the way round is the same there and back.
        return
    # Any two shard types meet in at most one group.
    held = [{(group + offset) % num_groups for offset in offsets(largest)} for group in range(num_groups)]
    assert all(len(one & other) <= 1 for one, other in combinations(held[:40], 2))


def test_consecutive_offsets_fit_by_their_last_one_too() -> None:
    assert offsets(4, "consecutive") == (0, 1, 2, 3)
    assert largest_redundancy(8, "consecutive") == 5


@pytest.mark.parametrize(("num_groups", "best"), [(1, 1), (4, 2), (8, 3), (200, 8), (600, 10), (1000, 10)])
def test_the_best_redundancy_is_that_of_the_closed_form_as_far_as_it_can_be_had(num_groups: int, best: int) -> None:
    assert best_redundancy(num_groups) == best
