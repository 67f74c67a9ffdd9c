"""The LLaMA model, which exists only as units: the embedding, each transformer layer and the head (see `layout`).

Shape suffixes: B sequences, T tokens, H hidden, N query heads, K key-value heads, D head size, V vocabulary.
The architecture is LLaMA's (Touvron et al. 2023, arXiv 2302.13971, section 2.2), with grouped-query attention where the
config asks for it.
"""

from __future__ import annotations

import functools
import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mecefo_runtime.job.config import ModelConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit

INITIAL_STD = 0.02


class Linear(nn.Linear):
    """A linear map without bias whose weight is left for `build_unit` to draw."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Draw nothing: torch's own initialisation would move the global random state."""


@functools.lru_cache(maxsize=16)
def _rotations(sequence_length: int, head_size: int, theta: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """RoPE's rotations as complex numbers, T x 1 x D/2 (Su et al. 2021, arXiv 2104.09864, section 3.4)."""
    # An inference tensor would be refused by a later training step that finds it in the cache.
    with torch.inference_mode(False):
        exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
        angles = torch.outer(torch.arange(sequence_length, dtype=torch.float64), theta**-exponents)
        return torch.polar(torch.ones_like(angles), angles).unsqueeze(1).to(device, dtype)


def _rotate(x_BTND: Tensor, theta: float) -> Tensor:
    """Apply RoPE to neighbouring pairs of D as one complex product, in fp32 at least."""
    wide_BTND = x_BTND if x_BTND.dtype in (torch.float32, torch.float64) else x_BTND.float()
    pairs_BTNC = torch.view_as_complex(wide_BTND.view(*x_BTND.shape[:-1], -1, 2))
    rotations_TNC = _rotations(x_BTND.shape[1], x_BTND.shape[3], theta, pairs_BTNC.dtype, x_BTND.device)
    return torch.view_as_real(pairs_BTNC * rotations_TNC).flatten(3).to(x_BTND.dtype)


class Attention(nn.Module):
    """Causal self-attention: x_BTH -> x_BTH, without norm and residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        key_value_size = config.num_key_value_heads * config.head_size
        self.q = Linear(config.hidden_size, config.hidden_size)
        self.k = Linear(config.hidden_size, key_value_size)
        self.v = Linear(config.hidden_size, key_value_size)
        self.o = Linear(config.hidden_size, config.hidden_size)
        self.head_size = config.head_size
        self.rope_theta = config.rope_theta
        self.is_grouped = config.num_key_value_heads < config.num_heads

    def forward(self, x_BTH: Tensor) -> Tensor:
        """Attention of every token over itself and the ones before it in its sequence."""
        num_sequences, num_tokens, _ = x_BTH.shape
        heads = (num_sequences, num_tokens, -1, self.head_size)
        q_BTND = _rotate(self.q(x_BTH).view(heads), self.rope_theta)
        k_BTKD = _rotate(self.k(x_BTH).view(heads), self.rope_theta)
        v_BTKD = self.v(x_BTH).view(heads)
        mixed_BNTD = F.scaled_dot_product_attention(
            q_BTND.transpose(1, 2),
            k_BTKD.transpose(1, 2),
            v_BTKD.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.is_grouped,
        )
        mixed_BTH: Tensor = mixed_BNTD.transpose(1, 2).reshape(num_sequences, num_tokens, -1)
        output_BTH: Tensor = self.o(mixed_BTH)
        return output_BTH


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202): x_BTH -> x_BTH, without norm and residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, config.intermediate_size)
        self.up = Linear(config.hidden_size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_BTH: Tensor) -> Tensor:
        """down(silu(gate(x)) * up(x))."""
        output_BTH: Tensor = self.down(F.silu(self.gate(x_BTH)) * self.up(x_BTH))
        return output_BTH


class Embedding(nn.Module):
    """The input end of the model: tokens_BT -> x_BTH."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """The vectors of the tokens."""
        return F.embedding(tokens_BT, self.weight)


class Block(nn.Module):
    """One transformer layer: x_BTH -> x_BTH. `approximate.degrade` replaces its forward while it runs degraded."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)
        self.ffn = FeedForward(config)

    def forward(self, x_BTH: Tensor) -> Tensor:
        """Attention, then feed-forward, each behind its norm and beside its residual."""
        x_BTH = x_BTH + self.attention(self.attention_norm(x_BTH))
        output_BTH: Tensor = x_BTH + self.ffn(self.ffn_norm(x_BTH))
        return output_BTH


class Head(nn.Module):
    """The output end of the model: the final norm and the map to the vocabulary, which is not tied to the embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)
        self.output = Linear(config.hidden_size, config.vocab_size)

    def forward(self, x_BTH: Tensor) -> Tensor:
        """The logits, B x T x V."""
        logits_BTV: Tensor = self.output(self.norm(x_BTH))
        return logits_BTV

    def loss(self, x_BTH: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over all tokens: an fp32 scalar, computed in fp32."""
        logits_BTV = self(x_BTH)
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="sum")


def build_unit(
    unit: str,
    config: ModelConfig,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    draws: bool = True,
) -> nn.Module:
    """Build one unit as it is at step 0, which depends on `config`, `seed` and the unit's name alone.

    Weights are normal with standard deviation 0.02, divided by sqrt(2 layers) for those that write into the residual
    stream (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3). On the meta device
    nothing is drawn, nor where `draws` is False: then the weights are whatever the memory holds.

    Raises:
        ValueError: `config` has no such unit.
    """
    module = _empty_unit(unit, config, torch.device(device), dtype)
    if not draws:
        return module
    digest = hashlib.sha256(f"{seed}/{unit}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim < 2 or parameter.is_meta:
                continue  # norms start as ones
            is_residual = name in ("attention.o.weight", "ffn.down.weight")
            std = INITIAL_STD / math.sqrt(2 * config.num_layers) if is_residual else INITIAL_STD
            # Drawn on the CPU in fp32, so that neither device nor dtype changes the draw.
            parameter.copy_(torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator))
    return module


def _empty_unit(unit: str, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The unit's module on `device`, weights not yet drawn."""
    if unit == EMBEDDING:
        kind: type[Embedding] | type[Block] | type[Head] = Embedding
    elif unit == HEAD:
        kind = Head
    elif unit in map(layer_unit, range(config.num_layers)):
        kind = Block
    else:
        raise ValueError(f"{unit!r} is no unit of a model of {config.num_layers} layers")
    with device:
        return kind(config).to(dtype)
