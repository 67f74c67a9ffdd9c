"""What a layer costs, predicted from counted operations, for where nothing has been measured."""

from __future__ import annotations

from dataclasses import dataclass

from mecefo_runtime.job.config import ApproximationConfig, ModelConfig
from mecefo_runtime.job.costs import Costs

# Parameters, gradients and both moments of AdamW.
_NUM_STATE_VALUES = 4
# AdamW reads these four and writes all but the gradients.
_NUM_UPDATE_ACCESSES = 7
# Parameters and both moments.
_NUM_CHECKED_VALUES = 3


@dataclass(frozen=True, slots=True)
class _Counts:
    """The operations and values of one microbatch in one layer, by part, and those of the embedding and the head.

    `input_flops` are those of the gradient by the inputs of the feed-forward part, as many as its forward pass has.
    """

    num_tokens: int
    weights_flops: int
    scores_flops: int
    input_flops: int
    low_rank_flops: int
    refresh_flops: int
    num_layer_values: int
    num_embedding_values: int
    num_head_values: int
    num_activation_values: int

    @property
    def backward_flops(self) -> int:
        """Those of the exact backward pass, which computes the scores of the attention again."""
        return 2 * self.weights_flops + 5 * self.scores_flops


def _count(
    model: ModelConfig, sequence_length: int, microbatch_size: int, approximation: ApproximationConfig
) -> _Counts:
    """Causal attention is counted as half of its T x T products, twice forward and five times backward.

    A low-rank weight gradient of an m x n weight over b tokens takes 2br(m + n) + 2rmn (arXiv 2510.16415, section 3).
    """
    num_tokens = sequence_length * microbatch_size
    hidden, intermediate = model.hidden_size, model.intermediate_size
    key_value_size = model.num_key_value_heads * model.head_size
    num_attention_weights = 2 * hidden * (hidden + key_value_size)
    num_ffn_weights = 3 * hidden * intermediate
    rank = min(approximation.rank, hidden, intermediate)
    num_embedding_values = model.vocab_size * hidden
    return _Counts(
        num_tokens=num_tokens,
        weights_flops=2 * num_tokens * (num_attention_weights + num_ffn_weights),
        scores_flops=num_tokens * sequence_length * hidden,
        input_flops=2 * num_tokens * num_ffn_weights,
        low_rank_flops=3 * 2 * num_tokens * rank * (hidden + intermediate) + 2 * rank * num_ffn_weights,
        # One subspace iteration, of two products, for each weight of the feed-forward part.
        refresh_flops=2 * 2 * rank * num_ffn_weights,
        num_layer_values=num_attention_weights + num_ffn_weights + 2 * hidden,
        num_embedding_values=num_embedding_values,
        num_head_values=num_embedding_values + hidden,
        # The inputs of both norms and what they return, q, k, v and what they give; gate, up and their two products.
        num_activation_values=6 * hidden + 2 * key_value_size + 4 * intermediate,
    )


def predict_costs(
    model: ModelConfig,
    sequence_length: int,
    microbatch_size: int,
    approximation: ApproximationConfig,
    *,
    flops_per_second: float = 5e10,
    accesses_bytes_per_second: float = 1e10,
    transfer_bytes_per_second: float = 1e9,
    bytes_per_value: int = 4,
    activation_value_bytes: int | None = None,
    memory_bytes: int | None = None,
) -> Costs:
    """A prediction from counted operations, for where nothing has been measured.

    Counted are matrix products, at `flops_per_second`, and for embedding and optimizer, which compute next to
    nothing, memory accesses, at `accesses_bytes_per_second`. The defaults are of the order of one CPU core. Numbers of
    activations have `activation_value_bytes`, where they differ from the `bytes_per_value` of all others. Left out are
    launches, elementwise operations and communication: ratios of figures are better than the figures.
    """
    counts = _count(model, sequence_length, microbatch_size, approximation)
    hidden = model.hidden_size

    def access_seconds(num_values: int) -> float:
        return num_values * bytes_per_value / accesses_bytes_per_second

    forward_seconds = (counts.weights_flops + 2 * counts.scores_flops) / flops_per_second
    degraded_backward_seconds = (counts.input_flops + counts.low_rank_flops) / flops_per_second
    projected_flops = counts.backward_flops - counts.input_flops + counts.low_rank_flops
    ffn_map_seconds = counts.input_flops / 3 / flops_per_second
    embedding_accesses = 2 * counts.num_tokens * hidden
    head_forward_seconds = 2 * counts.num_tokens * counts.num_embedding_values / flops_per_second
    token_bytes = counts.num_tokens * (activation_value_bytes or bytes_per_value)
    return Costs(
        layer_forward_seconds=forward_seconds,
        layer_backward_seconds=counts.backward_flops / flops_per_second,
        degraded_forward_seconds=forward_seconds,
        degraded_backward_seconds=degraded_backward_seconds,
        recomputed_backward_seconds=degraded_backward_seconds + 2 * ffn_map_seconds,
        fully_recomputed_backward_seconds=degraded_backward_seconds + 3 * ffn_map_seconds,
        embedding_forward_seconds=access_seconds(embedding_accesses),
        # The gradient is as large as the embedding: written, and added to what is there already.
        embedding_backward_seconds=access_seconds(embedding_accesses + 4 * counts.num_embedding_values),
        head_forward_seconds=head_forward_seconds,
        head_backward_seconds=2 * head_forward_seconds,
        layer_update_seconds=access_seconds(_NUM_UPDATE_ACCESSES * counts.num_layer_values),
        layer_checksum_seconds=access_seconds(_NUM_CHECKED_VALUES * counts.num_layer_values),
        refresh_seconds=counts.refresh_flops / flops_per_second,
        layer_state_bytes=_NUM_STATE_VALUES * counts.num_layer_values * bytes_per_value,
        embedding_state_bytes=_NUM_STATE_VALUES * counts.num_embedding_values * bytes_per_value,
        head_state_bytes=_NUM_STATE_VALUES * counts.num_head_values * bytes_per_value,
        layer_activation_bytes=token_bytes * counts.num_activation_values,
        degraded_activation_bytes=token_bytes * (hidden + 2 * model.intermediate_size),
        recomputed_activation_bytes=token_bytes * hidden,
        transfer_bytes_per_second=transfer_bytes_per_second,
        memory_bytes=memory_bytes,
        # Instead of the exact weight gradients of the feed-forward part.
        projected_backward_seconds=projected_flops / flops_per_second,
    )
