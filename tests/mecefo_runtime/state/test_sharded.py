"""A unit whose optimizer state its holders share out (ZeRO-1): together they do what one of them would do alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.job.share import WHOLE, Share
from mecefo_runtime.state.unit_optimizer import UnitOptimizer
from mecefo_runtime.state.units import UnitState

pytestmark = pytest.mark.unit

JOB = JobConfig(model=ModelConfig(8, 12, 2, 2, 2, 32), sharded_optimizer=True)
NAME = "layer.0"
NUM_STEPS = 3


def after_steps(share: Share, others: list[UnitState] | None = None) -> UnitState:
    """The unit after some steps; with `others` it gets from them what they update, as a gathering would bring it."""
    unit = UnitState(NAME, JOB, share=share)
    gradient = torch.empty(unit.num_parameters)
    optimizer = UnitOptimizer(JOB, {NAME: unit}, {NAME: gradient})
    for step in range(NUM_STEPS):
        gradient.copy_(torch.randn(unit.num_parameters, generator=torch.Generator().manual_seed(step)))
        optimizer.step(1e-2, {NAME})
    for other in others or ():
        unit.parameters[other.first_owned : other.end_owned] = other.owned_parameters
    return unit


@given(num_holders=st.integers(1, 7))
@settings(max_examples=7, deadline=None)
def test_the_holders_together_do_what_one_does_alone(num_holders):
    alone = after_steps(WHOLE)
    shared = [after_steps(Share(index, num_holders)) for index in range(num_holders)]
    gathered = [after_steps(unit.share, shared) for unit in shared]
    # To rounding: the ends of what an optimizer steps at once it computes in another way.
    for unit in gathered:
        torch.testing.assert_close(unit.parameters, alone.parameters, rtol=1e-6, atol=1e-7)
    moments = torch.cat([unit.first_moments for unit in shared]), torch.cat([unit.second_moments for unit in shared])
    torch.testing.assert_close(moments, (alone.first_moments, alone.second_moments), rtol=1e-6, atol=1e-9)
    assert all(torch.equal(unit.step_counts, alone.step_counts) for unit in shared)
    assert len({unit.checksum() for unit in gathered}) == 1
    # Parameters, two moments of a share, and step counts.
    n = alone.num_parameters
    assert all(unit.storage.numel() <= n + 2 * -(-n // num_holders) + alone.step_counts.numel() for unit in shared)


@given(before=st.integers(1, 6), after=st.integers(1, 6), data=st.data())
@settings(max_examples=30, deadline=None)
def test_shares_of_any_size_are_put_together_to_shares_of_any_other(before, after, data):
    whole = after_steps(WHOLE)
    old = [UnitState(NAME, JOB, share=Share(index, before)) for index in range(before)]
    for unit in old:
        unit.load(WHOLE, whole.storage)
    new = UnitState(NAME, JOB, share=Share(data.draw(st.integers(0, after - 1)), after), is_to_come=True)
    for unit in data.draw(st.permutations(old)):
        content = unit.packed(unit.share)
        assert content.numel() == new.num_elements(unit.share)
        new.load(unit.share, content)
    first, end = new.first_owned, new.end_owned
    assert torch.equal(new.parameters, whole.parameters) and torch.equal(new.step_counts, whole.step_counts)
    assert torch.equal(new.first_moments, whole.first_moments[first:end])
    assert torch.equal(new.second_moments, whole.second_moments[first:end])


def test_a_corrupted_moment_is_found_where_it_is_kept():
    shared = [after_steps(Share(index, 2)) for index in range(2)]
    shared[1].second_moments[0] = -1.0
    assert [unit.is_corrupted() for unit in shared] == [False, True]
