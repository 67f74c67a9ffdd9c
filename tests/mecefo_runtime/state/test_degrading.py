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
from mecefo_runtime.state.state import Bank
from mecefo_runtime.training.step_stats import STEP_STATS_SIZE

pytestmark = pytest.mark.unit

JOB = JobConfig(approximation=ApproximationConfig(rank=8, average_rest=True))
DEGRADED = frozenset({1, 2})
# Rank 0 computes all layers exactly, rank 1 degrades two of them; rank 2 is idle.
LAYOUT = Layout(4, (Replica(0, (Span(0, 0, 4),), 9), Replica(1, (Span(1, 0, 4, DEGRADED, frozenset({2})),), 3)))


def bank_of(rank: int, job: JobConfig = JOB, layout: Layout = LAYOUT, background: Background | None = None) -> Bank:
    bank = Bank(job, layout, rank, {}, STEP_STATS_SIZE, background)
    degrade_layers(layout, rank, bank, job)
    return bank


def set_gradients(bank: Bank) -> None:
    """The same sum on every holder, as after an all-reduce."""
    generator = torch.Generator().manual_seed(1)
    for name in bank.holders:
        size, offset = bank.units[name].num_parameters, bank.offsets[name]
        bank.gradients[offset : offset + size] = torch.randn(size, generator=generator)


def test_the_layout_is_obeyed_and_taken_back():
    bank = bank_of(1)
    blocks = {layer: bank.units[f"layer.{layer}"].module for layer in range(4)}
    assert {layer for layer, block in blocks.items() if is_degraded(block)} == DEGRADED
    assert [recomputes(blocks[layer]) for layer in (1, 2)] == [False, True]
    exact = replace(LAYOUT, replicas=(LAYOUT.replicas[0], Replica(1, (Span(1, 0, 4),), 3)))
    degrade_layers(exact, 1, bank, JOB)
    assert not any(is_degraded(block) for block in blocks.values())
    degrade_layers(LAYOUT, 2, Bank(JOB, LAYOUT, 2, {}, STEP_STATS_SIZE), JOB)


def test_holders_agree_on_the_bases_to_the_bit_also_after_refreshes():
    banks = [bank_of(0), bank_of(1)]
    for _ in range(3):
        assert banks[0].bases.keys() == banks[1].bases.keys() == {"layer.1", "layer.2"}
        for name in banks[0].bases:
            ours, theirs = banks[0].bases[name], banks[1].bases[name]
            for part in ("gate", "up", "down"):
                assert torch.equal(getattr(ours, part), getattr(theirs, part))
        for rank, bank in enumerate(banks):
            for unit in bank.units.values():
                unit.parameters.mul_(1.01).add_(0.001)
            refresh_bases(LAYOUT, rank, bank, JOB)


def test_the_rest_is_that_of_the_exact_replicas_and_the_same_on_all_holders():
    banks = [bank_of(0), bank_of(1)]
    for bank in banks:
        set_gradients(bank)
    gate = banks[0].units["layer.1"].module.ffn.gate.weight
    summed = gate.grad.clone()
    untouched = banks[0].units["layer.0"].module.ffn.gate.weight.grad.clone()
    for bank in banks:
        bank.restore_means()
    basis, scale = banks[0].bases["layer.1"].gate, 12 / 9
    inside = summed @ basis @ basis.T
    assert torch.allclose(gate.grad, inside + scale * (summed - inside), atol=1e-5)
    assert torch.equal(banks[0].units["layer.0"].module.ffn.gate.weight.grad, untouched)
    for name in banks[0].holders:
        gradients = [bank.gradients[bank.offsets[name] :][: bank.units[name].num_parameters] for bank in banks]
        assert torch.equal(*gradients), name


def test_without_the_option_and_for_units_on_their_way_nothing_is_corrected():
    plain = replace(JOB, approximation=replace(JOB.approximation, average_rest=False))
    assert not bank_of(0, plain).bases and not bank_of(1, plain).bases
    background = Background((ShadowUnit("layer.1", 2, 5, 0),))
    assert bank_of(0, background=background).bases.keys() == {"layer.2"}


def test_a_layer_that_every_replica_degrades_has_no_exact_rest():
    both = Layout(4, tuple(Replica(r, (Span(r, 0, 4, DEGRADED),), 6) for r in range(2)))
    assert not bank_of(0, layout=both).bases
