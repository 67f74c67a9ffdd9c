"""Copies of state in slices: all of it arrives, however it is cut, and nothing is called done before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mecefo_runtime.state.staging import Staging

pytestmark = pytest.mark.unit


def pairs(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.arange(size, dtype=torch.float32) + 1000 * n, torch.zeros(size)) for n, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 40), max_size=6), st.lists(st.integers(1, 60), max_size=12))
def test_all_of_it_is_copied_however_it_is_cut(sizes: list[int], slices: list[int]) -> None:
    copies = pairs(sizes)
    staging = Staging(copies)
    num_copied = 0
    for max_bytes in slices:
        staging.advance(max_bytes)
        now = sum(int(torch.count_nonzero(target)) for _, target in copies)
        # An element is never cut.
        assert 4 * (now - num_copied) < max_bytes + 4
        num_copied = now
        if staging.is_done:
            assert all(torch.equal(source, target) for source, target in copies)
    staging.finish()
    assert staging.is_done
    assert all(torch.equal(source, target) for source, target in copies)


def test_what_changes_after_the_end_is_not_copied() -> None:
    copies = pairs([8])
    staging = Staging(copies)
    staging.finish()
    copies[0][0].fill_(-1)
    staging.advance()
    assert copies[0][1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
