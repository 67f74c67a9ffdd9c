"""A rank's layers under a layout: which run approximated, and the bases on which all holders of a layer agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mecefo_runtime.job.background import Background, ShadowUnit
from mecefo_runtime.job.config import ApproximationConfig, JobConfig
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.model.approximate import is_degraded, recomputes
from mecefo_runtime.state.degrading import degrade_layers, refresh_bases
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.training.step_stats import STEP_STATS_SIZE

pytestmark = pytest.mark.unit

JOB = JobConfig(approximation=ApproximationConfig(rank=8, average_rest=True))
DEGRADED = frozenset({1, 2})
# Rank 0 computes all layers exactly, rank 1 degrades two of them; rank 2 is idle.
LAYOUT = Layout(4, (Replica(0, (Span(0, 0, 4),), 9), Replica(1, (Span(1, 0, 4, DEGRADED, frozenset({2})),), 3)))


def state_of(
    rank: int, job: JobConfig = JOB, layout: Layout = LAYOUT, background: Background | None = None
) -> ModelState:
    state = ModelState(job, layout, rank, {}, STEP_STATS_SIZE, background)
    degrade_layers(layout, rank, state, job)
    return state


def set_gradients(state: ModelState) -> None:
    """The same sum on every holder, as after an all-reduce."""
    generator = torch.Generator().manual_seed(1)
    for name in state.holders:
        size, offset = state.units[name].num_parameters, state.offsets[name]
        state.gradients[offset : offset + size] = torch.randn(size, generator=generator)


def test_the_layout_is_obeyed_and_taken_back():
    state = state_of(1)
    blocks = {layer: state.units[f"layer.{layer}"].module for layer in range(4)}
    assert {layer for layer, block in blocks.items() if is_degraded(block)} == DEGRADED
    assert [recomputes(blocks[layer]) for layer in (1, 2)] == [False, True]
    exact = replace(LAYOUT, replicas=(LAYOUT.replicas[0], Replica(1, (Span(1, 0, 4),), 3)))
    degrade_layers(exact, 1, state, JOB)
    assert not any(is_degraded(block) for block in blocks.values())
    degrade_layers(LAYOUT, 2, ModelState(JOB, LAYOUT, 2, {}, STEP_STATS_SIZE), JOB)


def test_holders_agree_on_the_bases_to_the_bit_also_after_refreshes():
    states = [state_of(0), state_of(1)]
    for _ in range(3):
        assert states[0].bases.keys() == states[1].bases.keys() == {"layer.1", "layer.2"}
        for name in states[0].bases:
            ours, theirs = states[0].bases[name], states[1].bases[name]
            for part in ("gate", "up", "down"):
                assert torch.equal(getattr(ours, part), getattr(theirs, part))
        for rank, state in enumerate(states):
            for unit in state.units.values():
                unit.parameters.mul_(1.01).add_(0.001)
            refresh_bases(LAYOUT, rank, state, JOB)


def test_the_rest_is_that_of_the_exact_replicas_and_the_same_on_all_holders():
    states = [state_of(0), state_of(1)]
    for state in states:
        set_gradients(state)
    gate = states[0].units["layer.1"].module.ffn.gate.weight
    summed = gate.grad.clone()
    untouched = states[0].units["layer.0"].module.ffn.gate.weight.grad.clone()
    for state in states:
        state.restore_means()
    basis, scale = states[0].bases["layer.1"].gate, 12 / 9
    inside = summed @ basis @ basis.T
    assert torch.allclose(gate.grad, inside + scale * (summed - inside), atol=1e-5)
    assert torch.equal(states[0].units["layer.0"].module.ffn.gate.weight.grad, untouched)
    for name in states[0].holders:
        gradients = [state.gradients[state.offsets[name] :][: state.units[name].num_parameters] for state in states]
        assert torch.equal(*gradients), name


def test_without_the_option_and_for_units_on_their_way_nothing_is_corrected():
    plain = replace(JOB, approximation=replace(JOB.approximation, average_rest=False))
    assert not state_of(0, plain).bases and not state_of(1, plain).bases
    background = Background((ShadowUnit("layer.1", 2, 5, 0),))
    assert state_of(0, background=background).bases.keys() == {"layer.2"}


def test_a_layer_that_every_replica_degrades_has_no_exact_rest():
    both = Layout(4, tuple(Replica(r, (Span(r, 0, 4, DEGRADED),), 6) for r in range(2)))
    assert not state_of(0, layout=both).bases
