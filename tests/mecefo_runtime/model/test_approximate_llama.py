"""The techniques on the layers of transformers' LLaMA."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM
from transformers.models.mistral.configuration_mistral import MistralConfig
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer

from mecefo_runtime.job.config import ApproximationConfig
from mecefo_runtime.model.approximate import bases, degrade, is_degraded, refresh, restore
from mecefo_runtime.model.low_rank import projections

pytestmark = pytest.mark.unit

DEGRADED = (0, 2)
TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def build_model(dtype: torch.dtype = torch.float64, **change: Any) -> LlamaForCausalLM:
    """A model as it could be after some training: the norms are not ones."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TINY | {"initializer_range": 0.1} | change)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(num_sequences: int = 3, length: int = 10) -> Tensor:
    return torch.randint(0, 64, (num_sequences, length), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, tokens_BT: Tensor, **kwargs: Any) -> Tensor:
    loss: Tensor = model(input_ids=tokens_BT, labels=tokens_BT, **kwargs).loss
    return loss


def gradients(model: nn.Module, **kwargs: Any) -> dict[str, Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss_of(model, tokens(), **kwargs).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def without_attention_backward(layer: Any) -> Callable[..., Tensor]:
    """What technique I computes, by plain autograd."""

    def forward(hidden_states: Tensor, **kwargs: Any) -> Tensor:
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended.detach()
        output: Tensor = hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))
        return output

    return forward


def degrade_some(model: LlamaForCausalLM, rank: int = 6, **kwargs: Any) -> None:
    for index in DEGRADED:
        degrade(model.model.layers[index], ApproximationConfig(rank), **kwargs)


def attention_of(names: Iterable[str]) -> set[str]:
    parts = tuple(f"model.layers.{i}.{part}" for i in DEGRADED for part in ("self_attn.", "input_layernorm."))
    return {name for name in names if name.startswith(parts)}


@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "keep"])
@pytest.mark.parametrize("is_padded", [True, False], ids=["padded", "whole"])
def test_gradients_of_a_whole_model_are_those_of_the_formulas(recompute: bool, is_padded: bool) -> None:
    mask = torch.ones_like(tokens())
    mask[1, :4] = 0
    kwargs = {"attention_mask": mask} if is_padded else {}
    model = build_model()
    for index in DEGRADED:
        model.model.layers[index].forward = without_attention_backward(model.model.layers[index])
    expected = gradients(model, **kwargs)
    for index in DEGRADED:
        del model.model.layers[index].forward
    exact_output = model(tokens(), **kwargs).logits
    degrade_some(model, recompute=recompute)
    assert torch.equal(model(tokens(), **kwargs).logits, exact_output)
    projected: dict[int, Tensor] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for index in DEGRADED:
        layer = model.model.layers[index]
        for projection in projections(layer, bases(layer)):
            gradient = expected[names[id(projection.weight)]]
            assert gradient is not None
            matrix = projection.basis @ projection.basis.T
            projected[id(projection.weight)] = matrix @ gradient if projection.side == "left" else gradient @ matrix
    assert len(projected) == 3 * len(DEGRADED)

    found = gradients(model, **kwargs)
    assert {name for name, gradient in found.items() if gradient is None} == attention_of(found)
    for name, parameter in model.named_parameters():
        if name not in attention_of(found):
            # Not finer: transformers computes its norms in fp32, whatever the weights are.
            torch.testing.assert_close(found[name], projected.get(id(parameter), expected[name]), rtol=1e-4, atol=1e-7)


def test_a_model_with_degraded_layers_trains_and_comes_back() -> None:
    model = build_model(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    degrade_some(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = []
    for step in range(30):
        if step % 10 == 9:
            for index in DEGRADED:
                refresh(model.model.layers[index])
        optimizer.zero_grad()
        loss = loss_of(model, tokens())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert set(before) - changed == attention_of(before)
    for index in DEGRADED:
        assert is_degraded(model.model.layers[index])
        restore(model.model.layers[index])
    assert all(gradient is not None for gradient in gradients(model).values())


def test_bfloat16_follows_float32() -> None:
    model = build_model(torch.bfloat16)
    degrade_some(model, rank=32)
    rounded = {name: None if gradient is None else gradient.clone() for name, gradient in gradients(model).items()}
    model.float()
    for index in DEGRADED:
        refresh(model.model.layers[index])  # bases of the new dtype
    precise = gradients(model)
    for name, expected in precise.items():
        gradient = rounded[name]
        assert (gradient is None) == (expected is None)
        if gradient is not None and expected is not None:
            assert gradient.dtype == torch.bfloat16
            assert (gradient.float() - expected).norm() < 0.05 * expected.norm(), name


def test_the_cache_of_keys_and_values_is_filled() -> None:
    model = build_model().eval()
    prompt = tokens(2, 5)
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
    degrade_some(model)
    assert torch.equal(model.generate(prompt, max_new_tokens=8, do_sample=False), expected)


def test_gradient_checkpointing_of_the_model_changes_nothing() -> None:
    model = build_model().train()
    degrade_some(model)
    expected = gradients(model)
    model.activation_checkpointing_enable()
    found = gradients(model)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(found.values(), expected.values(), strict=True))


def test_the_layers_arguments_may_be_positional_and_outputs_can_be_recorded() -> None:
    model = build_model()
    hidden = torch.randn(2, 4, 32, dtype=torch.float64)
    positions = torch.arange(4).unsqueeze(0)
    rotations = model.model.rotary_emb(hidden, position_ids=positions)
    layer = model.model.layers[0]
    expected = layer(hidden, None, positions, None, False, rotations)
    states = model(tokens(), output_hidden_states=True).hidden_states
    degrade_some(model)
    assert torch.equal(layer(hidden, None, positions, None, False, rotations), expected)
    assert torch.equal(layer(hidden_states=hidden, position_ids=positions, position_embeddings=rotations), expected)
    found = model(tokens(), output_hidden_states=True).hidden_states
    assert len(found) == 5 and all(torch.equal(a, b) for a, b in zip(found, states, strict=True))


class ForwardOfItsOwn(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        return 2 * hidden_states


class SameForward(LlamaDecoderLayer):
    """What FSDP makes of a layer's class: a subclass that changes nothing of the computation."""


def test_a_subclass_is_known_unless_it_computes_something_else() -> None:
    config = LlamaConfig(**TINY)
    degrade(SameForward(config, 0), ApproximationConfig(4))
    with pytest.raises(TypeError, match="ForwardOfItsOwn: it has a forward of its own"):
        degrade(ForwardOfItsOwn(config, 0), ApproximationConfig(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"mlp_bias": True}, "without bias"), ({"hidden_act": "gelu"}, "its activation is gelu, not silu")],
)
def test_another_mlp_is_refused(change: dict[str, Any], message: str) -> None:
    layer = LlamaDecoderLayer(LlamaConfig(**TINY | change), 0)
    with pytest.raises(TypeError, match=message):
        degrade(layer, ApproximationConfig(4))
    assert not is_degraded(layer)


def test_a_layer_of_another_model_is_refused() -> None:
    layer = MistralDecoderLayer(MistralConfig(**TINY | {"pad_token_id": None}), 0)
    with pytest.raises(TypeError, match=r"cannot degrade a MistralDecoderLayer: known are .*LlamaDecoderLayer"):
        degrade(layer, ApproximationConfig(4))


def test_transformers_is_not_imported_for_it() -> None:
    code = "import sys, mecefo_runtime.model.approximate; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["False"]
