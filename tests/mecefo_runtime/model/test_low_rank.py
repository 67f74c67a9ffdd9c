from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.model.approximate import bases, degrade, refresh
from mecefo_runtime.model.low_rank import (
    FIRST_ITERATIONS,
    WARM_ITERATIONS,
    Bases,
    compute_bases,
    correct_,
    leading_right_singular_vectors,
    projections,
)
from mecefo_runtime.model.model import Block, build_unit
from tests.examples import FEW

pytestmark = pytest.mark.unit

TINY = PRESETS["llama-tiny"]
EIGHT = ApproximationConfig(8)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def build_block(dtype: torch.dtype = torch.float64) -> Block:
    block = build_unit("layer.0", TINY, 0, dtype=dtype)
    assert isinstance(block, Block)
    return block


def random(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ffn_weights(block: Block) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    return block.ffn.gate.weight, block.ffn.up.weight, block.ffn.down.weight


def train_a_little(block: Block, seed: int) -> None:
    for weight in ffn_weights(block):
        step = random(seed, tuple(weight.shape)).to(weight.dtype)
        weight.data += 0.02 * weight.norm() / step.norm() * step


def are_equal(a: Bases, b: Bases) -> bool:
    return a.down_side == b.down_side and all(
        torch.equal(x, y) for x, y in ((a.gate, b.gate), (a.up, b.up), (a.down, b.down))
    )


def captured_ratio(weight_MN: Tensor, basis_NR: Tensor) -> float:
    """The energy of W that the basis captures, relative to the best subspace of that size."""
    best = torch.linalg.svdvals(weight_MN)[: basis_NR.shape[1]].square().sum()
    return ((weight_MN @ basis_NR).square().sum() / best).item()


def captured_ratios(block: Block, now: Bases) -> list[float]:
    gate_FH, up_FH, down_HF = (weight.detach() for weight in ffn_weights(block))
    turned = down_HF.T if now.down_side == "left" else down_HF
    pairs = ((gate_FH, now.gate), (up_FH, now.up), (turned, now.down))
    return [captured_ratio(weight_MN, basis_NR) for weight_MN, basis_NR in pairs]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rank", [4, 16, 48])
def test_bases_capture_nearly_the_energy_of_an_svd_and_follow_the_weights(rank: int, side: str) -> None:
    # Freshly drawn weights are the worst case: their singular values hardly fall.
    block = build_block()
    config = dataclasses.replace(ApproximationConfig(rank), down_projection=side)
    now = compute_bases(block, config, 0)
    assert all(0.85 < ratio < 1 + 1e-9 for ratio in captured_ratios(block, now))
    for seed in range(5):
        train_a_little(block, seed)
        now = compute_bases(block, config, 0, now)
    assert all(0.9 < ratio < 1 + 1e-9 for ratio in captured_ratios(block, now))


def test_a_refresh_starts_from_the_last_bases_and_comes_nearer() -> None:
    block = build_block()
    before = compute_bases(block, EIGHT, 0)
    after = compute_bases(block, EIGHT, 0, before)
    pairs = zip(captured_ratios(block, after), captured_ratios(block, before), strict=True)
    assert all(now >= last - 1e-12 for now, last in pairs)
    expected = leading_right_singular_vectors(block.ffn.gate.weight.detach(), before.gate, WARM_ITERATIONS)
    assert torch.equal(after.gate, expected)


@FEW
@given(
    num_rows=st.integers(1, 24),
    num_columns=st.integers(1, 24),
    data=st.data(),
    num_zero_rows=st.integers(0, 24),
)
def test_bases_are_orthonormal_whatever_the_weight(
    num_rows: int, num_columns: int, data: st.DataObject, num_zero_rows: int
) -> None:
    rank = data.draw(st.integers(1, min(num_rows, num_columns)))
    weight_MN = random(num_rows, (num_rows, num_columns))
    weight_MN[:num_zero_rows] = 0  # rank-deficient, down to the zero matrix
    basis_NR = leading_right_singular_vectors(weight_MN, random(0, (num_columns, rank)), FIRST_ITERATIONS)
    torch.testing.assert_close(basis_NR.T @ basis_NR, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_holder_that_runs_the_block_exactly_computes_the_same_bases(dtype: torch.dtype) -> None:
    degraded, exact = build_block(dtype), build_block(dtype)
    degrade(degraded, EIGHT, seed=3)
    now = compute_bases(exact, EIGHT, 3)
    assert are_equal(now, bases(degraded))
    for seed in range(3):
        train_a_little(degraded, seed)
        train_a_little(exact, seed)
        refresh(degraded)
        now = compute_bases(exact, EIGHT, 3, now)
        assert are_equal(now, bases(degraded))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [1, 3, 8])
def test_where_a_weight_lies_in_memory_changes_no_bit(offset: int, dtype: torch.dtype) -> None:
    block, moved = build_block(dtype), build_block(dtype)
    for parameter in moved.parameters():
        flat = torch.empty(offset + parameter.numel(), dtype=dtype)
        view = flat[offset:].view(parameter.shape)
        parameter.data = view.copy_(parameter.data)
    assert are_equal(compute_bases(block, EIGHT, 0), compute_bases(moved, EIGHT, 0))


def test_the_seed_decides_the_bases_and_the_global_random_state_does_not() -> None:
    block = build_block()
    torch.manual_seed(1)
    first = compute_bases(block, EIGHT, 0)
    torch.manual_seed(2)
    assert are_equal(first, compute_bases(block, EIGHT, 0))
    assert not torch.equal(first.gate, compute_bases(block, EIGHT, 1).gate)


def test_computing_bases_leaves_weights_and_previous_bases_as_they_are() -> None:
    block = build_block()
    weights = [weight.detach().clone() for weight in ffn_weights(block)]
    previous = compute_bases(block, EIGHT, 0)
    kept = dataclasses.replace(previous, gate=previous.gate.clone(), up=previous.up.clone(), down=previous.down.clone())
    now = compute_bases(block, EIGHT, 0, previous)
    assert are_equal(previous, kept)
    assert all(torch.equal(a, b) for a, b in zip(weights, ffn_weights(block), strict=True))
    assert not any(basis.requires_grad for basis in (now.gate, now.up, now.down))


def project(gradient_MN: Tensor, basis: Tensor, side: str) -> Tensor:
    return basis @ basis.T @ gradient_MN if side == "left" else gradient_MN @ basis @ basis.T


@given(
    num_rows=st.integers(1, 20),
    num_columns=st.integers(1, 20),
    data=st.data(),
    side=st.sampled_from(["left", "right"]),
    exact_samples=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    degraded_samples=st.lists(st.integers(1, 8), max_size=3),
    seed=st.integers(0, 1000),
)
def test_the_correction_is_its_definition(
    num_rows: int,
    num_columns: int,
    data: st.DataObject,
    side: str,
    exact_samples: list[int],
    degraded_samples: list[int],
    seed: int,
) -> None:
    shape = (num_rows, num_columns)
    rank = data.draw(st.integers(1, min(shape)))
    length = num_rows if side == "left" else num_columns
    basis = torch.linalg.qr(random(seed, (length, rank))).Q
    exact = [random(seed + 1 + i, shape) * n for i, n in enumerate(exact_samples)]
    degraded = [random(seed + 50 + i, shape) * n for i, n in enumerate(degraded_samples)]
    num_samples = sum(exact_samples) + sum(degraded_samples)
    # The low-rank part averaged over all replicas, the rest over the exact ones alone.
    all_exact = torch.stack(exact).sum(0)
    whole = torch.stack(exact + degraded).sum(0)
    mean = project(whole, basis, side) / num_samples
    mean += (all_exact - project(all_exact, basis, side)) / sum(exact_samples)

    flat = torch.full((3 + num_rows * num_columns + 3,), 7.0, dtype=torch.float64)
    gradient_MN = flat[3:-3].view(shape)
    gradient_MN.copy_(torch.stack([*exact, *(project(g, basis, side) for g in degraded)]).sum(0))
    correct_(gradient_MN, basis, num_samples / sum(exact_samples), side)
    torch.testing.assert_close(gradient_MN / num_samples, mean, rtol=1e-10, atol=1e-11)
    assert torch.equal(flat[:3], torch.full((3,), 7.0, dtype=torch.float64)) and torch.equal(flat[:3], flat[-3:])


def test_without_degraded_replicas_the_correction_changes_no_bit() -> None:
    gradient_MN = random(0, (6, 4))
    expected = gradient_MN.clone()
    correct_(gradient_MN, torch.linalg.qr(random(1, (4, 2))).Q, 1.0, "right")
    assert torch.equal(gradient_MN, expected)


@pytest.mark.parametrize("scale", [math.inf, math.nan, 0.5, -1.0])
def test_a_scale_without_meaning_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        correct_(torch.zeros(4, 4), torch.eye(4), scale, "left")


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_gradients_of_an_exact_and_a_degraded_replica_correct_to_the_definition(side: str) -> None:
    """The whole way: one block exact, its copy degraded, the sum of their gradients corrected."""
    config = dataclasses.replace(EIGHT, down_projection=side)
    exact, copy, degraded = build_block(), build_block(), build_block()
    degrade(degraded, config)
    now = compute_bases(exact, config, 0)
    for block, seed in ((exact, 4), (copy, 5), (degraded, 5)):
        # Technique I takes nothing from the gradients of the FFN: copy and degraded differ by the projection alone.
        block(random(seed, (1, 8, 64))).backward(random(seed + 10, (1, 8, 64)))
    places = zip(projections(exact, now), projections(copy, now), projections(degraded, now), strict=True)
    for mine, twin, other in places:
        assert mine.weight.grad is not None and twin.weight.grad is not None and other.weight.grad is not None
        alone = mine.weight.grad.clone()
        corrected = alone + other.weight.grad
        correct_(corrected, mine.basis, 2.0, mine.side)
        low_rank = project(alone + twin.weight.grad, mine.basis, mine.side)
        rest = 2 * (alone - project(alone, mine.basis, mine.side))
        torch.testing.assert_close(corrected, low_rank + rest, rtol=1e-9, atol=1e-11)


def test_projections_name_the_weights_by_their_side() -> None:
    block = build_block()
    found = projections(block, compute_bases(block, EIGHT, 0))
    assert [projection.side for projection in found] == ["right", "right", "left"]
    assert all(p.weight is weight for p, weight in zip(found, ffn_weights(block), strict=True))
