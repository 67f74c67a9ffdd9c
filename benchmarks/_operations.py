"""How many floating-point operations one transformer block takes, normal and degraded; a multiply-add counts as two."""

from __future__ import annotations

from mecefo_runtime.job.config import ModelConfig
from mecefo_runtime.model.approximate import Recompute


def count_block(
    model: ModelConfig,
    num_sequences: int,
    sequence_length: int,
    *,
    rank: int | None = None,
    recompute: Recompute = False,
) -> int:
    """Operations of one block's forward and backward pass; with `rank` degraded.

    Counted are the matrix products. Of the attention's over pairs of tokens only the causal half: two of them forward,
    five backward, where a fused kernel computes the scores again. Elementwise operations are left out: they are bound
    by memory, and what they cost shows as the measured ratio's distance to the counted one.
    """
    hidden, intermediate = model.hidden_size, model.intermediate_size
    num_tokens = num_sequences * sequence_length
    key_value_size = model.num_key_value_heads * model.head_size
    attention_maps = 2 * num_tokens * hidden * (2 * hidden + 2 * key_value_size)
    over_pairs = num_tokens * sequence_length * hidden
    ffn_map = 2 * num_tokens * hidden * intermediate
    forward = attention_maps + 2 * over_pairs + 3 * ffn_map
    if rank is None:
        return forward + 2 * attention_maps + 5 * over_pairs + 6 * ffn_map
    rank = min(rank, hidden, intermediate)
    low_rank_gradient = 2 * num_tokens * rank * (hidden + intermediate) + 2 * rank * hidden * intermediate
    num_recomputed = 3 if recompute == "full" else 2 if recompute else 0
    return forward + (3 + num_recomputed) * ffn_map + 3 * low_rank_gradient
