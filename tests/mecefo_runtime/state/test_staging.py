"""Copies of state in slices: all of it arrives, however it is cut, and nothing is called done before."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mecefo_runtime.snapshots.region import Region, size_of
from mecefo_runtime.state.staging import Staging, page_lock

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


@given(st.lists(st.integers(0, 40), max_size=6))
def test_a_copy_that_is_begun_is_never_done(sizes: list[int]) -> None:
    copies = pairs(sizes)
    staging = Staging(copies)
    has_begun = staging.begin()
    now = sum(int(torch.count_nonzero(target)) for _, target in copies)
    # What is zero is copied, too: at most one element of each.
    assert has_begun == (sum(sizes) > 1) and now <= sum(sizes) // 2
    assert not has_begun or now >= sum(sizes) // 2 - len(sizes)
    assert staging.is_done == (sum(sizes) == 0)
    staging.finish()
    assert all(torch.equal(source, target) for source, target in copies)


def test_what_changes_after_the_end_is_not_copied() -> None:
    copies = pairs([8])
    staging = Staging(copies)
    staging.finish()
    copies[0][0].fill_(-1)
    staging.advance()
    assert copies[0][1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("error", [0, 1])
def test_pages_are_locked_for_as_long_as_they_are_mapped(monkeypatch, error: int) -> None:
    locked: dict[int, int] = {}

    def register(address: int, num_bytes: int, flags: int) -> int:
        if not error:
            locked[address] = num_bytes
        return error

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=locked.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    region = Region.create(1 << 16)
    region.close()
    begins_at = torch.frombuffer(region.memory, dtype=torch.uint8).data_ptr()
    assert page_lock(region.memory, region, torch.device("cuda:1")) is not bool(error)
    assert locked == ({} if error else {begins_at: size_of(1 << 16)})
    del region
    assert not locked
