from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mecefo_runtime.approximate import (
    FIRST_ITERATIONS,
    WARM_ITERATIONS,
    bases,
    degrade,
    is_degraded,
    leading_right_singular_vectors,
    refresh,
    restore,
)
from mecefo_runtime.config import PRESETS, ApproximationConfig
from mecefo_runtime.model import Block, build_unit

pytestmark = pytest.mark.unit

TINY = PRESETS["llama-tiny"]
SHAPE = (2, 8, 64)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def build_block(dtype: torch.dtype = torch.float64) -> Block:
    """A block as it could be after some training: weights of trained size, norms that are not ones."""
    block = build_unit("layer.0", TINY, 0, dtype=dtype)
    assert isinstance(block, Block)
    generator = torch.Generator().manual_seed(1)
    for parameter in block.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(dtype)
        parameter.data.mul_(5).add_(noise, alpha=0.05)
    return block


def random(seed: int, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradients(block: Block, forward: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor | None]]:
    """(output, gradient of the input, gradients of the parameters) for one input and one output gradient."""
    block.zero_grad(set_to_none=True)
    dtype = block.ffn.gate.weight.dtype
    x_BTH = random(2, dtype=dtype).requires_grad_()
    output_BTH = forward(x_BTH)
    output_BTH.backward(random(3, dtype=dtype))
    assert x_BTH.grad is not None
    return output_BTH.detach(), x_BTH.grad, {name: p.grad for name, p in block.named_parameters()}


def without_attention_backward(block: Block) -> Callable[[Tensor], Tensor]:
    """What technique I computes, by plain autograd."""

    def forward(x_BTH: Tensor) -> Tensor:
        h_BTH = x_BTH + block.attention(block.attention_norm(x_BTH)).detach()
        output_BTH: Tensor = h_BTH + block.ffn(block.ffn_norm(h_BTH))
        return output_BTH

    return forward


every_way = pytest.mark.parametrize(
    "config",
    [ApproximationConfig(8, 50, recompute, down) for recompute in (True, False) for down in ("left", "right")],
    ids=["recompute-left", "recompute-right", "keep-left", "keep-right"],
)


@every_way
def test_the_output_is_the_normal_blocks(config: ApproximationConfig) -> None:
    block = build_block()
    expected = block(random(2))
    degrade(block, config)
    torch.testing.assert_close(block(random(2)), expected, rtol=1e-12, atol=1e-12)


@every_way
def test_gradients_are_those_of_the_paper(config: ApproximationConfig) -> None:
    block = build_block()
    _, expected_input, exact = gradients(block, without_attention_backward(block))
    degrade(block, config)
    _, input_gradient, found = gradients(block, block)
    now = bases(block)
    expected = {
        "ffn_norm.weight": exact["ffn_norm.weight"],
        "ffn.gate.weight": exact["ffn.gate.weight"] @ now.gate @ now.gate.T,
        "ffn.up.weight": exact["ffn.up.weight"] @ now.up @ now.up.T,
        "ffn.down.weight": now.down @ now.down.T @ exact["ffn.down.weight"]
        if config.down_projection == "left"
        else exact["ffn.down.weight"] @ now.down @ now.down.T,
    }
    torch.testing.assert_close(input_gradient, expected_input, rtol=1e-11, atol=1e-12)
    for name, gradient in found.items():
        if name.startswith("attention"):
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, expected[name], rtol=1e-11, atol=1e-12)
            # A projection that changed nothing would leave the comparison above without meaning.
            if name != "ffn_norm.weight":
                assert not torch.allclose(gradient, exact[name], rtol=0.1)


def test_full_rank_is_exact() -> None:
    block = build_block()
    _, _, exact = gradients(block, without_attention_backward(block))
    degrade(block, ApproximationConfig(rank=10_000))
    assert bases(block).gate.shape == bases(block).up.shape == bases(block).down.shape == (64, 64)
    _, _, found = gradients(block, block)
    for name in ("ffn.gate.weight", "ffn.up.weight", "ffn.down.weight"):
        torch.testing.assert_close(found[name], exact[name], rtol=1e-10, atol=1e-11)


def test_full_rank_is_not_exact_for_the_papers_down_projection() -> None:
    block = build_block()
    _, _, exact = gradients(block, without_attention_backward(block))
    degrade(block, ApproximationConfig(rank=10_000, down_projection="right"))
    assert bases(block).down.shape == (176, 64)
    _, _, found = gradients(block, block)
    assert not torch.allclose(found["ffn.down.weight"], exact["ffn.down.weight"], rtol=0.1)


def test_recomputation_changes_no_bit() -> None:
    results = []
    for recompute in (True, False):
        block = build_block()
        degrade(block, ApproximationConfig(8, recompute_ffn=recompute))
        output, input_gradient, found = gradients(block, block)
        results.append([output, input_gradient, *(g for g in found.values() if g is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_left_projection_comes_nearer_than_the_papers() -> None:
    errors = {}
    for side in ("left", "right"):
        block = build_block()
        _, _, exact = gradients(block, without_attention_backward(block))
        degrade(block, ApproximationConfig(16, down_projection=side))
        _, _, found = gradients(block, block)
        difference = found["ffn.down.weight"] - exact["ffn.down.weight"]
        errors[side] = (difference.norm() / exact["ffn.down.weight"].norm()).item()
    assert errors["left"] < errors["right"] < 1


def test_restore_brings_back_the_exact_gradients_and_leaves_no_trace() -> None:
    block = build_block()
    before = set(vars(block))
    expected = gradients(block, block)
    degrade(block, ApproximationConfig(8))
    assert is_degraded(block)
    gradients(block, block)
    restore(block)
    assert not is_degraded(block)
    assert set(vars(block)) == before
    found = gradients(block, block)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    for name, gradient in found[2].items():
        assert gradient is not None and torch.equal(gradient, expected[2][name])
    restore(block)
    assert set(vars(block)) == before


def saved_bytes(block: Block) -> int:
    """What autograd stores for one forward pass: each storage once, parameters apart."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    x_BTH = random(2, dtype=torch.float32).requires_grad_()
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output_BTH = block(x_BTH)
    assert output_BTH.requires_grad
    return sum(saved.values())


def test_of_a_degraded_block_only_the_ffns_input_is_stored() -> None:
    block = build_block(torch.float32)
    num_tokens = SHAPE[0] * SHAPE[1]
    exact = saved_bytes(block)
    degrade(block, ApproximationConfig(8, recompute_ffn=True))
    assert saved_bytes(block) == 4 * num_tokens * 64
    degrade(block, ApproximationConfig(8, recompute_ffn=False))
    assert saved_bytes(block) == 4 * num_tokens * (64 + 2 * 176)
    assert exact > 4 * num_tokens * (8 * 64 + 3 * 176)


def test_attention_runs_without_a_graph_and_through_its_module() -> None:
    block = build_block()
    calls: list[tuple[bool, bool]] = []
    block.attention.register_forward_hook(
        lambda _module, _inputs, output: calls.append((torch.is_grad_enabled(), output.requires_grad))
    )
    degrade(block, ApproximationConfig(8))
    block(random(2).requires_grad_()).sum().backward()
    assert calls == [(False, False)]


def test_gradients_accumulate_in_place_and_attention_buffers_stay_as_they_are() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    _, _, once = gradients(block, block)
    flat = torch.full((sum(p.numel() for p in block.parameters()),), 7.0, dtype=torch.float64)
    views: dict[str, Tensor] = {}
    offset = 0
    for name, parameter in block.named_parameters():
        views[name] = flat[offset : offset + parameter.numel()].view(parameter.shape)
        parameter.grad = views[name]
        offset += parameter.numel()
    for _ in range(2):
        block(random(2)).backward(random(3))
    for name, parameter in block.named_parameters():
        assert parameter.grad is views[name]
        assert parameter.grad.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        gradient = once[name]
        expected = torch.full_like(parameter, 7.0) + (0 if gradient is None else 2 * gradient)
        torch.testing.assert_close(views[name], expected)


def test_frozen_parameters_and_inputs_get_no_gradient() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    _, _, expected = gradients(block, block)
    block.zero_grad(set_to_none=True)
    block.ffn.up.requires_grad_(False)
    x_BTH = random(2)
    block(x_BTH).backward(random(3))
    assert x_BTH.grad is None and block.ffn.up.weight.grad is None
    assert torch.equal(block.ffn.gate.weight.grad, expected["ffn.gate.weight"])
    assert torch.equal(block.ffn.down.weight.grad, expected["ffn.down.weight"])


def test_bfloat16_follows_float64() -> None:
    results = {}
    for dtype in (torch.float64, torch.bfloat16):
        block = build_block(torch.bfloat16).to(dtype)
        degrade(block, ApproximationConfig(rank=64))
        output, input_gradient, found = gradients(block, block)
        results[dtype] = {"output": output, "input": input_gradient, **found}
    for name, expected in results[torch.float64].items():
        rounded = results[torch.bfloat16][name]
        assert (rounded is None) == (expected is None)
        if rounded is not None and expected is not None:
            assert rounded.dtype == torch.bfloat16
            assert (rounded.double() - expected).norm() < 0.03 * expected.norm(), name


def test_a_pass_uses_the_bases_of_its_forward() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    _, _, expected = gradients(block, block)
    block.zero_grad(set_to_none=True)
    output_BTH = block(random(2))
    refresh(block)
    output_BTH.backward(random(3))
    assert torch.equal(block.ffn.gate.weight.grad, expected["ffn.gate.weight"])


def captured_ratio(weight_MN: Tensor, basis_NR: Tensor) -> float:
    """The energy of W that the basis captures, relative to the best subspace of that size."""
    best = torch.linalg.svdvals(weight_MN)[: basis_NR.shape[1]].square().sum()
    return ((weight_MN @ basis_NR).square().sum() / best).item()


def captured_ratios(block: Block) -> list[float]:
    now = bases(block)
    weights = (block.ffn.gate.weight, block.ffn.up.weight, block.ffn.down.weight.T)
    return [
        captured_ratio(weight.detach(), basis)
        for weight, basis in zip(weights, (now.gate, now.up, now.down), strict=True)
    ]


@pytest.mark.parametrize("rank", [4, 16, 48])
def test_bases_capture_nearly_the_energy_of_an_svd_and_follow_the_weights(rank: int) -> None:
    # Freshly drawn weights are the worst case: their singular values hardly fall.
    block = build_unit("layer.0", TINY, 0, dtype=torch.float64)
    assert isinstance(block, Block)
    degrade(block, ApproximationConfig(rank))
    first = captured_ratios(block)
    assert all(0.85 < ratio < 1 + 1e-9 for ratio in first)
    for seed in range(5):
        for weight in (block.ffn.gate.weight, block.ffn.up.weight, block.ffn.down.weight):
            step = random(seed, tuple(weight.shape))
            weight.data += 0.02 * weight.norm() / step.norm() * step
        refresh(block)
    warm = captured_ratios(block)
    assert all(0.9 < ratio < 1 + 1e-9 for ratio in warm)


def test_refresh_starts_from_the_last_bases() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    before = bases(block)
    ratios = captured_ratios(block)
    refresh(block)
    assert bases(block) is not before
    assert all(after >= ratio - 1e-12 for after, ratio in zip(captured_ratios(block), ratios, strict=True))
    expected = leading_right_singular_vectors(block.ffn.gate.weight.detach(), before.gate, WARM_ITERATIONS)
    assert torch.equal(bases(block).gate, expected)


@settings(max_examples=25, deadline=None)
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


def test_the_seed_decides_the_bases() -> None:
    def gate(seed: int) -> Tensor:
        block = build_block()
        degrade(block, ApproximationConfig(8), seed=seed)
        return bases(block).gate

    assert torch.equal(gate(0), gate(0))
    assert not torch.equal(gate(0), gate(1))


def test_degrading_again_begins_anew_with_the_new_config() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    degrade(block, ApproximationConfig(4))
    assert bases(block).gate.shape == (64, 4)
    restore(block)
    assert not is_degraded(block)


def test_a_copy_of_a_degraded_block_stands_alone() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    twin = copy.deepcopy(block)
    expected = block(random(2))
    for parameter in block.parameters():
        parameter.data.zero_()
    restore(block)
    assert is_degraded(twin)
    assert torch.equal(twin(random(2)), expected)


def test_what_cannot_be_degraded_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot degrade a Linear"):
        degrade(nn.Linear(2, 2), ApproximationConfig())
    block = build_block()
    for needs_degraded in (refresh, bases):
        with pytest.raises(ValueError, match="not degraded"):
            needs_degraded(block)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rank": 0}, "rank"), ({"refresh_steps": 0}, "refresh_steps"), ({"down_projection": "both"}, "left or right")],
)
def test_an_impossible_config_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ApproximationConfig(), **change)
