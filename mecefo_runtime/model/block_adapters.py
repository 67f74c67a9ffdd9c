"""The kinds of transformer blocks that can be degraded, and where each keeps its parts. No other file knows them.

All are pre-norm blocks with RMSNorm and SwiGLU whose linear maps have no bias: h = x + attention(norm(x)), then
h + down(silu(gate(norm(h))) * up(norm(h))). Known are the project's own `Block` and the `LlamaDecoderLayer` of
transformers 5. The latter is recognised by the name of its class, so that transformers is never imported for it, and
not by its parts: layers of other models have parts of the same names and compute something else with them (Gemma's norm
multiplies by 1 + weight), which no gradient would tell.

Shape suffixes: B sequences, T tokens, H hidden, F intermediate.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mecefo_runtime.model.model import Block

LLAMA_DECODER_LAYER = "transformers.models.llama.modeling_llama.LlamaDecoderLayer"


@dataclass(frozen=True, slots=True)
class BlockAdapter(ABC):
    """The parts of one block. `gate` and `up` hold weights F x H, `down` H x F; `ffn_norm` has a `weight` of H."""

    attention_norm: nn.Module
    attention: nn.Module
    ffn_norm: nn.Module
    ffn_norm_epsilon: float
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear

    def attention_parameters(self) -> tuple[nn.Parameter, ...]:
        """What gets no gradient while the block is degraded: the attention, and its norm."""
        return (*self.attention_norm.parameters(), *self.attention.parameters())

    @abstractmethod
    def attend(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Of a call of the block with these arguments: its input x_BTH itself, and attention(norm(x)), B x T x H."""


class _OwnAdapter(BlockAdapter):
    __slots__ = ()

    def attend(self, x_BTH: Tensor) -> tuple[Tensor, Tensor]:
        return x_BTH, self.attention(self.attention_norm(x_BTH))


class _LlamaAdapter(BlockAdapter):
    __slots__ = ()

    def attend(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        attended_BTH, _ = self.attention(
            hidden_states=self.attention_norm(hidden_states),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
            **kwargs,
        )
        return hidden_states, attended_BTH


def adapter_of(block: nn.Module) -> BlockAdapter:
    """Find the parts of `block`.

    Raises:
        TypeError: blocks of this kind cannot be degraded; the message says which can, or what is in the way.
    """
    if isinstance(block, Block):
        ffn = block.ffn
        epsilon = block.ffn_norm.eps
        assert epsilon is not None
        return _OwnAdapter(block.attention_norm, block.attention, block.ffn_norm, epsilon, ffn.gate, ffn.up, ffn.down)
    kinds = [kind for kind in type(block).__mro__ if f"{kind.__module__}.{kind.__qualname__}" == LLAMA_DECODER_LAYER]
    if not kinds:
        known = f"{Block.__module__}.{Block.__qualname__} and {LLAMA_DECODER_LAYER}"
        raise TypeError(f"cannot degrade a {type(block).__name__}: known are {known}")
    return _llama_adapter(block, kinds[0])


def _llama_adapter(block: Any, kind: Any) -> BlockAdapter:
    """The parts of a `LlamaDecoderLayer`, or of a subclass (as FSDP makes them) with the same forward."""
    mlp = block.mlp
    maps = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    # Every subclass gets a wrapper for gradient checkpointing around its forward, which may be the inherited one.
    if inspect.unwrap(type(block).forward) is not inspect.unwrap(kind.forward):
        raise TypeError(f"cannot degrade a {type(block).__name__}: it has a forward of its own")
    if any(not isinstance(linear, nn.Linear) or linear.bias is not None for linear in maps):
        raise TypeError(f"cannot degrade a {type(block).__name__}: its MLP is not of linear maps without bias")
    if block.mlp.config.hidden_act not in ("silu", "swish"):
        raise TypeError(f"cannot degrade a {type(block).__name__}: its activation is {mlp.config.hidden_act}, not silu")
    norm = block.post_attention_layernorm
    return _LlamaAdapter(block.input_layernorm, block.self_attn, norm, norm.variance_epsilon, *maps)
