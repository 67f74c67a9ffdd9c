from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.model.approximate import (
    Recompute,
    bases,
    degrade,
    is_degraded,
    recomputes,
    refresh,
    restore,
    set_recompute,
)
from mecefo_runtime.model.model import Block, build_unit

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


every_side = pytest.mark.parametrize("side", ["left", "right"])
every_choice = pytest.mark.parametrize("recompute", ["full", True, False], ids=["all", "gate-and-up", "keep"])


def of_side(side: str, rank: int = 8) -> ApproximationConfig:
    return dataclasses.replace(ApproximationConfig(rank), down_projection=side)


@every_choice
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_output_is_the_normal_blocks(recompute: Recompute, dtype: torch.dtype) -> None:
    block = build_block(dtype)
    expected = block(random(2, dtype=dtype))
    degrade(block, ApproximationConfig(8), recompute=recompute)
    assert torch.equal(block(random(2, dtype=dtype)), expected)


@every_choice
@every_side
def test_gradients_are_those_of_the_formulas(recompute: Recompute, side: str) -> None:
    block = build_block()
    _, expected_input, exact = gradients(block, without_attention_backward(block))
    degrade(block, of_side(side), recompute=recompute)
    _, input_gradient, found = gradients(block, block)
    now = bases(block)
    expected = {
        "ffn_norm.weight": exact["ffn_norm.weight"],
        "ffn.gate.weight": exact["ffn.gate.weight"] @ now.gate @ now.gate.T,
        "ffn.up.weight": exact["ffn.up.weight"] @ now.up @ now.up.T,
        "ffn.down.weight": now.down @ now.down.T @ exact["ffn.down.weight"]
        if side == "left"
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


@every_side
def test_a_projected_block_has_low_rank_weight_gradients_and_is_exact_beside(side: str) -> None:
    block = build_block()
    output, expected_input, exact = gradients(block, block)
    degrade(block, of_side(side), skip_attention=False)
    projected_output, input_gradient, found = gradients(block, block)
    assert torch.equal(projected_output, output)
    torch.testing.assert_close(input_gradient, expected_input, rtol=1e-11, atol=1e-12)
    now = bases(block)
    for name, gradient in found.items():
        expected = exact[name]
        if name.startswith("ffn."):
            basis = getattr(now, name.split(".")[1])
            is_left = name == "ffn.down.weight" and side == "left"
            expected = basis @ basis.T @ expected if is_left else expected @ basis @ basis.T
            assert not torch.allclose(gradient, exact[name], rtol=0.1)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_a_degraded_block_becomes_a_projected_one_with_the_bases_that_it_has() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    before = bases(block)
    degrade(block, ApproximationConfig(8), skip_attention=False)
    assert bases(block) is before
    assert gradients(block, block)[2]["attention.q.weight"] is not None
    degrade(block, ApproximationConfig(8))
    assert gradients(block, block)[2]["attention.q.weight"] is None


def test_the_attentions_own_gradient_is_what_is_left_out_of_the_inputs() -> None:
    block = build_block()
    _, whole, _ = gradients(block, block)
    degrade(block, ApproximationConfig(8))
    _, found, _ = gradients(block, block)
    assert not torch.allclose(found, whole, rtol=0.1)


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
    degrade(block, of_side("right", 10_000))
    assert bases(block).down.shape == (176, 64)
    _, _, found = gradients(block, block)
    assert not torch.allclose(found["ffn.down.weight"], exact["ffn.down.weight"], rtol=0.1)


@every_side
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_recomputation_changes_no_bit(side: str, dtype: torch.dtype) -> None:
    block = build_block(dtype)
    degrade(block, of_side(side))
    results = []
    for recompute in (False, True, "full"):
        set_recompute(block, recompute)
        output, input_gradient, found = gradients(block, block)
        results.append([output, input_gradient, *(g for g in found.values() if g is not None)])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*results, strict=True))


@every_choice
def test_the_choice_of_recomputation_changes_nothing_else(recompute: Recompute) -> None:
    block = build_block()
    config = ApproximationConfig(8)
    degrade(block, config, recompute=recompute)
    assert recomputes(block) is bool(recompute)
    before = bases(block)
    block.ffn.gate.weight.data.add_(1)  # bases that were computed again would be others
    degrade(block, config, recompute=not recompute)
    assert recomputes(block) is (not recompute)
    assert bases(block) is before
    set_recompute(block, recompute)
    assert recomputes(block) is bool(recompute)
    assert bases(block) is before
    restore(block)
    assert not recomputes(block)


def test_a_pass_keeps_the_choice_of_its_forward() -> None:
    block = build_block()
    for recompute in ("full", True, False):
        degrade(block, ApproximationConfig(8), recompute=recompute)
        _, _, expected = gradients(block, block)
        block.zero_grad(set_to_none=True)
        output_BTH = block(random(2))
        set_recompute(block, not recompute)
        output_BTH.backward(random(3))
        assert torch.equal(block.ffn.gate.weight.grad, expected["ffn.gate.weight"])


def test_left_projection_comes_nearer_than_the_papers() -> None:
    errors = {}
    for side in ("left", "right"):
        block = build_block()
        _, _, exact = gradients(block, without_attention_backward(block))
        degrade(block, of_side(side, 16))
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


def saved(block: Block, dtype: torch.dtype) -> list[tuple[tuple[int, ...], int]]:
    """(shape, bytes) of what autograd stores for one forward pass: each storage once, parameters apart."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    x_BTH = random(2, dtype=dtype).requires_grad_()
    # The tensors themselves are kept, or a storage that is freed could lend its address to the next.
    stored: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in owned:
            stored[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output_BTH = block(x_BTH)
    assert output_BTH.requires_grad
    return [(tuple(tensor.shape), tensor.untyped_storage().nbytes()) for tensor in stored.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_a_degraded_block_the_ffns_input_is_stored_and_gate_and_up_unless_recomputed(dtype: torch.dtype) -> None:
    block = build_block(dtype)
    size = dtype.itemsize
    num_tokens, hidden, intermediate = SHAPE[0] * SHAPE[1], 64, 176
    degrade(block, ApproximationConfig(8))
    wide = ((num_tokens, intermediate), size * num_tokens * intermediate)
    narrow = ((num_tokens, hidden), size * num_tokens * hidden)
    assert saved(block, dtype) == [narrow, wide, wide]
    for recompute in (True, "full"):
        set_recompute(block, recompute)
        assert saved(block, dtype) == [narrow]


class ForwardProducts(TorchDispatchMode):
    """Counts the matrix products whose result has the shape of the block's output: those of the down projection."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.shape, self.number = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.number += func.overloadpacket is torch.ops.aten.mm and tuple(result.shape) == self.shape
        return result


@every_side
def test_full_recomputation_computes_all_of_the_feed_forward_half_again(side: str) -> None:
    block = build_block()
    degrade(block, of_side(side))
    found: dict[Recompute, tuple[int, int]] = {}
    for recompute in (False, True, "full"):
        set_recompute(block, recompute)
        output_BTH = block(random(2).requires_grad_())
        numbers = []
        for width in (64, 176):
            with ForwardProducts((SHAPE[0] * SHAPE[1], width)) as products:
                output_BTH.backward(random(3), retain_graph=True)
            numbers.append(products.number)
        found[recompute] = (numbers[0], numbers[1])
    narrow, wide = found[False]
    assert found[True] == (narrow, wide + 2), "gate and up, once more"
    assert found["full"] == (narrow + 1, wide + 2), "and the down projection"


def test_a_normal_block_stores_what_the_degraded_one_does_not() -> None:
    num_sequences, num_tokens, hidden = SHAPE
    intermediate, num_heads, head_size = 176, TINY.num_heads, TINY.head_size
    # Each norm: its input, the scale of each token, the scaled input, and its output for the next linear map.
    # Attention: RoPE's rotations, q, k, v, the mixed heads and their log-sum-exp. FFN: gate, its silu, up, the product.
    per_token = 2 * (3 * hidden + 1) + 4 * hidden + num_heads + 4 * intermediate
    expected = 4 * (num_sequences * num_tokens * per_token + num_tokens * head_size)
    assert sum(num_bytes for _, num_bytes in saved(build_block(torch.float32), torch.float32)) == expected


def test_nothing_of_the_attention_outlives_the_forward_pass() -> None:
    def alive_after_forward(block: Block) -> list[bool]:
        seen: list[weakref.ref[torch.UntypedStorage]] = []

        def watch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append(weakref.ref(output.untyped_storage()))

        handles = [m.register_forward_hook(watch) for m in (block.attention_norm, *block.attention.children())]
        output_BTH = block(random(2).requires_grad_())
        for handle in handles:
            handle.remove()
        alive = [storage() is not None for storage in seen]
        output_BTH.sum().backward()
        assert len(alive) == 5
        return alive

    block = build_block()
    assert any(alive_after_forward(block))
    degrade(block, ApproximationConfig(8))
    assert not any(alive_after_forward(block))


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


@every_choice
def test_a_second_backward_pass_over_the_same_graph_finds_what_the_first_did(recompute: Recompute) -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8), recompute=recompute)
    _, _, expected = gradients(block, block)
    block.zero_grad(set_to_none=True)
    output_BTH = block(random(2))
    output_BTH.backward(random(3), retain_graph=True)
    block.zero_grad(set_to_none=True)
    output_BTH.backward(random(3))
    for name, parameter in block.ffn.named_parameters():
        wanted = expected[f"ffn.{name}"]
        assert parameter.grad is not None and wanted is not None
        assert torch.equal(parameter.grad, wanted)


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


@every_choice
def test_autocast_is_followed_into_the_backward_pass(recompute: Recompute) -> None:
    block = build_block(torch.float32)

    def run(is_on: bool) -> list[Tensor]:
        def forward(x_BTH: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
                output_BTH: Tensor = block(x_BTH)
            return output_BTH

        output, input_gradient, found = gradients(block, forward)
        return [output, input_gradient, *(gradient for gradient in found.values() if gradient is not None)]

    expected_output = run(True)[0]
    degrade(block, ApproximationConfig(64), recompute=recompute)
    rounded, precise = run(True), run(False)
    assert torch.equal(rounded[0], expected_output)
    for a, b in zip(rounded, precise, strict=True):
        assert a.dtype == torch.float32
        assert 0 < (a - b).norm() < 0.02 * b.norm()


def test_a_pass_uses_the_bases_of_its_forward() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    _, _, expected = gradients(block, block)
    block.zero_grad(set_to_none=True)
    output_BTH = block(random(2))
    refresh(block)
    output_BTH.backward(random(3))
    assert torch.equal(block.ffn.gate.weight.grad, expected["ffn.gate.weight"])


def test_degrading_again_begins_anew_with_another_config_or_seed() -> None:
    block = build_block()
    degrade(block, ApproximationConfig(8))
    degrade(block, ApproximationConfig(4))
    assert bases(block).gate.shape == (64, 4)
    before = bases(block)
    degrade(block, ApproximationConfig(4), seed=1)
    assert not torch.equal(bases(block).gate, before.gate)
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
    for needs_degraded in (refresh, bases, lambda exact: set_recompute(exact, True)):
        with pytest.raises(ValueError, match="not degraded"):
            needs_degraded(block)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rank": 0}, "rank"), ({"refresh_steps": 0}, "refresh_steps"), ({"down_projection": "both"}, "left or right")],
)
def test_an_impossible_config_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ApproximationConfig(), **change)
