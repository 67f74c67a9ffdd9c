from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.config import PRESETS, ModelConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.model import Attention, Block, Embedding, Head, build_unit
from mecefo_runtime.model.segments import segments
from tests.examples import FEW

pytestmark = pytest.mark.unit

TINY = PRESETS["llama-tiny"]
GROUPED = dataclasses.replace(TINY, num_key_value_heads=2)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def units(config: ModelConfig) -> list[str]:
    return [EMBEDDING, *map(layer_unit, range(config.num_layers)), HEAD]


def tokens(num_sequences: int = 2, num_tokens: int = 12) -> torch.Tensor:
    return torch.randint(256, (num_sequences, num_tokens), generator=torch.Generator().manual_seed(0))


def build_block(config: ModelConfig = TINY, dtype: torch.dtype = torch.float64) -> Block:
    block = build_unit("layer.0", config, 0, dtype=dtype)
    assert isinstance(block, Block)
    return block


@pytest.mark.parametrize(
    ("preset", "published"),
    [("60m", 58e6), ("130m", 134e6), ("350m", 368e6), ("1b", 1.34e9), ("7b", 6.74e9)],
)
def test_presets_have_the_published_sizes(preset: str, published: float) -> None:
    assert PRESETS[preset].num_parameters == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize("config", [TINY, GROUPED, PRESETS["7b"]], ids=["tiny", "grouped", "7b"])
def test_the_size_is_that_of_the_units(config: ModelConfig) -> None:
    built = [build_unit(unit, config, 0, device="meta") for unit in units(config)]
    assert config.num_parameters == sum(parameter.numel() for unit in built for parameter in unit.parameters())


@FEW
@given(st.permutations(units(TINY)), st.integers(0, 2**63))
def test_a_unit_depends_on_its_name_and_the_seed_alone(order: list[str], seed: int) -> None:
    built = {unit: build_unit(unit, TINY, seed).state_dict() for unit in order}
    for unit in units(TINY):
        again = build_unit(unit, TINY, seed).state_dict()
        assert all(torch.equal(again[name], value) for name, value in built[unit].items())


def test_units_and_seeds_differ() -> None:
    weights = [
        build_unit(unit, TINY, seed).get_parameter("ffn.gate.weight")
        for unit in ("layer.0", "layer.1")
        for seed in (0, 1)
    ]
    assert all(not torch.equal(a, b) for index, a in enumerate(weights) for b in weights[:index])


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    for unit in units(TINY):
        build_unit(unit, TINY, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_start_with_the_intended_spread_and_norms_as_ones() -> None:
    block = build_unit("layer.3", PRESETS["60m"], 0)
    for name, parameter in block.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            std = 0.02 / 4 if name in ("attention.o.weight", "ffn.down.weight") else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.02)


@pytest.mark.parametrize("unit", ["layer.4", "layer.-1", "layer.01", "tail"])
def test_a_unit_that_the_model_has_not_is_refused(unit: str) -> None:
    with pytest.raises(ValueError, match="no unit of a model of 4 layers"):
        build_unit(unit, TINY, 0)


def test_segments_have_the_fixed_order() -> None:
    block = build_block()
    attention = block.attention
    expected = [
        ((attention.q.weight, attention.k.weight, attention.v.weight, attention.o.weight), True, True),
        ((block.attention_norm.weight,), True, False),
        ((block.ffn.gate.weight, block.ffn.up.weight, block.ffn.down.weight), False, True),
        ((block.ffn_norm.weight,), False, False),
    ]
    found = segments(block)
    assert len(found) == len(expected)
    for segment, (parameters, is_attention, is_decayed) in zip(found, expected, strict=True):
        assert list(map(id, segment.parameters)) == list(map(id, parameters))
        assert (segment.is_attention, segment.is_decayed) == (is_attention, is_decayed)


@pytest.mark.parametrize("unit", [EMBEDDING, "layer.1", HEAD])
def test_segments_hold_every_parameter_once(unit: str) -> None:
    module = build_unit(unit, TINY, 0)
    parts = segments(module)
    assert sorted(id(p) for part in parts for p in part.parameters) == sorted(map(id, module.parameters()))
    assert all(part.parameters for part in parts)
    assert any(part.is_attention for part in parts) == (unit == "layer.1")


def test_parameters_can_be_moved_into_a_flat_tensor() -> None:
    block = build_block()
    x_BTH = torch.randn(2, 8, 64, dtype=torch.float64)
    before = block(x_BTH)
    flat = torch.cat([p.detach().flatten() for part in segments(block) for p in part.parameters])
    offset = 0
    for parameter in (p for part in segments(block) for p in part.parameters):
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    assert torch.equal(block(x_BTH), before)
    flat.zero_()
    assert torch.equal(block(x_BTH), x_BTH)


def reference_attention(attention: Attention, x_BTH: torch.Tensor) -> torch.Tensor:
    """Attention by its definition, with RoPE as 2 x 2 rotations, one head and one position at a time."""
    num_tokens, size = x_BTH.shape[1], attention.head_size
    frequencies = attention.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def rotated(vectors_BTD: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(vectors_BTD)
        for t in range(num_tokens):
            cos, sin = torch.cos(t * frequencies), torch.sin(t * frequencies)
            even, odd = vectors_BTD[:, t, 0::2], vectors_BTD[:, t, 1::2]
            result[:, t, 0::2] = even * cos - odd * sin
            result[:, t, 1::2] = even * sin + odd * cos
        return result

    q, k, v = (F.linear(x_BTH, module.weight).split(size, -1) for module in (attention.q, attention.k, attention.v))
    group = len(q) // len(k)
    mixed = []
    for head, queries in enumerate(q):
        scores = rotated(queries) @ rotated(k[head // group]).mT / size**0.5
        future = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
        mixed.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[head // group])
    return F.linear(torch.cat(mixed, -1), attention.o.weight)


@pytest.mark.parametrize("config", [TINY, GROUPED], ids=["multi-head", "grouped"])
def test_attention_is_what_its_definition_says(config: ModelConfig) -> None:
    attention = build_block(config).attention
    for parameter in attention.parameters():
        parameter.data.mul_(20)  # far from uniform attention
    x_BTH = torch.randn(2, 9, 64, dtype=torch.float64)
    torch.testing.assert_close(attention(x_BTH), reference_attention(attention, x_BTH))


def test_a_block_is_what_its_definition_says() -> None:
    block = build_block()
    x_BTH = torch.randn(2, 9, 64, dtype=torch.float64)

    def norm(v_BTH: torch.Tensor) -> torch.Tensor:
        return v_BTH / (v_BTH.square().mean(-1, keepdim=True) + TINY.norm_epsilon).sqrt()

    h_BTH = x_BTH + block.attention(norm(x_BTH))
    gated_BTF = norm(h_BTH) @ block.ffn.gate.weight.T
    product_BTF = gated_BTF * gated_BTF.sigmoid() * (norm(h_BTH) @ block.ffn.up.weight.T)
    torch.testing.assert_close(block(x_BTH), h_BTH + product_BTF @ block.ffn.down.weight.T)


def test_no_token_sees_a_later_one() -> None:
    block = build_block()
    x_BTH = torch.randn(1, 10, 64, dtype=torch.float64)
    changed_BTH = x_BTH.clone()
    changed_BTH[:, 6:] += 1
    assert torch.equal(block(x_BTH)[:, :6], block(changed_BTH)[:, :6])
    assert not torch.equal(block(x_BTH)[:, 6:], block(changed_BTH)[:, 6:])


def test_the_loss_is_summed_over_tokens_in_fp32() -> None:
    head = build_unit(HEAD, TINY, 0, dtype=torch.bfloat16)
    assert isinstance(head, Head)
    x_BTH = torch.randn(3, 5, 64, dtype=torch.bfloat16)
    targets_BT = tokens(3, 5)
    loss = head.loss(x_BTH, targets_BT)
    assert loss.dtype == torch.float32 and loss.ndim == 0
    logits_BTV = head(x_BTH).float()
    expected = -logits_BTV.log_softmax(-1).gather(-1, targets_BT.unsqueeze(-1)).sum()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_whole_model_learns_a_text_by_heart(dtype: torch.dtype) -> None:
    config = dataclasses.replace(GROUPED, num_layers=2)
    modules = [build_unit(unit, config, 0, dtype=dtype) for unit in units(config)]
    optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()], lr=1e-2)
    text_BT = tokens(2, 13)
    losses = []
    for _ in range(40):
        embedding, *blocks, head = modules
        assert isinstance(embedding, Embedding) and isinstance(head, Head)
        x_BTH = embedding(text_BT[:, :-1])
        for block in blocks:
            x_BTH = block(x_BTH)
        loss = head.loss(x_BTH, text_BT[:, 1:]) / 24
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # log 256: it knows nothing yet
    assert losses[-1] < 0.5


def test_rotations_made_in_inference_mode_serve_training_too() -> None:
    block = build_block()
    with torch.inference_mode():
        block(torch.randn(1, 37, 64, dtype=torch.float64))
    block(torch.randn(1, 37, 64, dtype=torch.float64)).sum().backward()
    assert block.attention.q.weight.grad is not None
