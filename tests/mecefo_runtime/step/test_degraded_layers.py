"""A rank's layers under a layout: which run approximated, and the bases on which all holders of a layer agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mecefo_runtime.job.background import Background, ShadowUnit
from mecefo_runtime.job.config import ApproximationConfig, JobConfig
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.model.approximate import is_degraded, recomputes
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.step.degraded_layers import DegradedLayers
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE

pytestmark = pytest.mark.unit

JOB = JobConfig(approximation=ApproximationConfig(rank=8, average_rest=True))
DEGRADED = frozenset({1, 2})
# Rank 0 computes all layers exactly, rank 1 degrades two of them; rank 2 is idle.
LAYOUT = Layout(4, (Replica(0, (Span(0, 0, 4),), 9), Replica(1, (Span(1, 0, 4, DEGRADED, frozenset({2})),), 3)))


class Holder:
    """A rank's state, and the layers that it degrades."""

    def __init__(
        self, rank: int, job: JobConfig = JOB, layout: Layout = LAYOUT, background: Background | None = None
    ) -> None:
        self.state = ModelState(job, layout, rank, {}, STEP_STATS_SIZE, background)
        self.degraded = DegradedLayers(layout, rank, self.state, job, background)


def set_gradients(state: ModelState) -> None:
    """The same sum on every holder, as after an all-reduce."""
    generator = torch.Generator().manual_seed(1)
    for name in state.holders:
        size, offset = state.units[name].num_parameters, state.offsets[name]
        state.gradients[offset : offset + size] = torch.randn(size, generator=generator)


def test_the_layout_is_obeyed_and_taken_back():
    state = Holder(1).state
    blocks = {layer: state.units[f"layer.{layer}"].module for layer in range(4)}
    assert {layer for layer, block in blocks.items() if is_degraded(block)} == DEGRADED
    assert [recomputes(blocks[layer]) for layer in (1, 2)] == [False, True]
    exact = replace(LAYOUT, replicas=(LAYOUT.replicas[0], Replica(1, (Span(1, 0, 4),), 3)))
    DegradedLayers(exact, 1, state, JOB)
    assert not any(is_degraded(block) for block in blocks.values())
    Holder(2)


def test_a_layer_recomputes_as_much_as_its_span_says():
    block = Holder(1).state.units["layer.2"].module
    assert block.forward.recompute is True
    span = replace(LAYOUT.replicas[1].spans[0], recomputes_fully=True)
    fully = replace(LAYOUT, replicas=(LAYOUT.replicas[0], Replica(1, (span,), 3)))
    blocks = Holder(1, layout=fully).state.units
    assert blocks["layer.2"].module.forward.recompute == "full"
    assert blocks["layer.1"].module.forward.recompute is False, "it is degraded, and keeps gate and up"


def test_holders_agree_on_the_bases_to_the_bit_also_after_refreshes():
    holders = [Holder(0), Holder(1)]
    for _ in range(3):
        ours, theirs = (holder.degraded.bases for holder in holders)
        assert ours.keys() == theirs.keys() == {"layer.1", "layer.2"}
        for name in ours:
            for part in ("gate", "up", "down"):
                assert torch.equal(getattr(ours[name], part), getattr(theirs[name], part))
        for holder in holders:
            for unit in holder.state.units.values():
                unit.parameters.mul_(1.01).add_(0.001)
            holder.degraded.refresh()


def test_the_rest_is_that_of_the_exact_replicas_and_the_same_on_all_holders():
    holders = [Holder(0), Holder(1)]
    states = [holder.state for holder in holders]
    for state in states:
        set_gradients(state)
    gate = states[0].units["layer.1"].module.ffn.gate.weight
    summed = gate.grad.clone()
    untouched = states[0].units["layer.0"].module.ffn.gate.weight.grad.clone()
    for holder in holders:
        holder.degraded.sums_to_means()
    basis, scale = holders[0].degraded.bases["layer.1"].gate, 12 / 9
    inside = summed @ basis @ basis.T
    assert torch.allclose(gate.grad, inside + scale * (summed - inside), atol=1e-5)
    assert torch.equal(states[0].units["layer.0"].module.ffn.gate.weight.grad, untouched)
    for name in states[0].holders:
        gradients = [state.gradients[state.offsets[name] :][: state.units[name].num_parameters] for state in states]
        assert torch.equal(*gradients), name


@pytest.mark.parametrize("average_rest", [False, True])
def test_the_attention_of_a_degraded_layer_gets_the_mean_over_the_exact_replicas(average_rest: bool):
    holder = Holder(0, replace(JOB, approximation=replace(JOB.approximation, average_rest=average_rest)))
    set_gradients(holder.state)
    attention = {layer: holder.state.units[f"layer.{layer}"].module.attention.q.weight for layer in (0, 1)}
    norm = holder.state.units["layer.1"].module.attention_norm.weight
    before = {layer: weight.grad.clone() for layer, weight in attention.items()} | {"norm": norm.grad.clone()}
    holder.degraded.sums_to_means()
    assert torch.equal(attention[0].grad, before[0])
    assert torch.allclose(attention[1].grad, before[1] * 12 / 9)
    assert torch.allclose(norm.grad, before["norm"] * 12 / 9)


def test_a_projected_layer_counts_as_exact_for_attention_alone():
    # Rank 1 projects layer 0, and both ranks know of layer 1 what they did.
    span = replace(LAYOUT.replicas[1].spans[0], projected=frozenset({0}))
    layout = replace(LAYOUT, replicas=(LAYOUT.replicas[0], Replica(1, (span,), 3)))
    holders = [Holder(0, layout=layout), Holder(1, layout=layout)]
    block = holders[1].state.units["layer.0"].module
    assert is_degraded(block) and not block.forward.skip_attention
    assert holders[0].degraded.num_refreshed == holders[1].degraded.num_refreshed == 3
    for holder in holders:
        set_gradients(holder.state)
    first = holders[0].state.units["layer.0"].module
    attention, summed = first.attention.q.weight.grad.clone(), first.ffn.down.weight.grad.clone()
    for holder in holders:
        holder.degraded.sums_to_means()
    assert torch.equal(first.attention.q.weight.grad, attention)
    basis = holders[0].degraded.bases["layer.0"].down
    inside = basis @ basis.T @ summed
    assert torch.allclose(first.ffn.down.weight.grad, inside + 12 / 9 * (summed - inside), atol=1e-5)
    assert torch.equal(first.ffn.down.weight.grad, block.ffn.down.weight.grad)


def test_attention_that_every_replica_degrades_is_left_as_it_is_moments_included():
    both = Layout(4, tuple(Replica(r, (Span(r, 0, 4, DEGRADED),), 6) for r in range(2)))
    holder = Holder(0, layout=both)
    set_gradients(holder.state)
    holder.degraded.sums_to_means()
    before = {name: unit.storage.clone() for name, unit in holder.state.units.items()}
    holder.state.apply(0.01, 1.0)
    for name, unit in holder.state.units.items():
        for part in unit.slices:
            parameters = unit.parameters[part.first : part.end]
            is_left = part.is_attention and name in ("layer.1", "layer.2")
            assert torch.equal(parameters, before[name][part.first : part.end]) is is_left
            assert (not unit.first_moments[part.first : part.end].any()) is is_left


def test_without_the_option_and_for_units_on_their_way_nothing_is_corrected():
    plain = replace(JOB, approximation=replace(JOB.approximation, average_rest=False))
    assert not Holder(0, plain).degraded.bases and not Holder(1, plain).degraded.bases
    background = Background((ShadowUnit("layer.1", 2, 5, 0),))
    assert Holder(0, background=background).degraded.bases.keys() == {"layer.2"}


def test_a_layer_that_every_replica_degrades_has_no_exact_rest():
    both = Layout(4, tuple(Replica(r, (Span(r, 0, 4, DEGRADED),), 6) for r in range(2)))
    assert not Holder(0, layout=both).degraded.bases
