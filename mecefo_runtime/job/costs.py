"""What a rank's device needs for a layer, and what it has: the figures that planning computes with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from mecefo_runtime.job.config import ApproximationConfig, ModelConfig

# Parameters, gradients and both moments of AdamW.
_NUM_STATE_VALUES = 4
# AdamW reads these four and writes all but the gradients.
_NUM_UPDATE_ACCESSES = 7


@dataclass(frozen=True, slots=True)
class Costs:
    """One rank's device. Seconds and activation bytes are for one microbatch; all layers of a model are alike.

    A `degraded` layer runs approximated; a `recomputed` one is degraded and computes gate and up again in the backward
    pass (its forward pass is the degraded one). `embedding_seconds` and `head_seconds` are forward and backward
    together. `layer_update_seconds` is the optimizer's part of a step for one layer. State is parameters, gradients and
    optimizer state; activations are what is stored between the forward and the backward pass of one microbatch.
    `memory_bytes` is what a rank has for state and activations, None where there is no limit.

    Raises:
        ValueError: a figure is not positive or not finite.
    """

    layer_forward_seconds: float
    layer_backward_seconds: float
    degraded_forward_seconds: float
    degraded_backward_seconds: float
    recomputed_backward_seconds: float
    embedding_seconds: float
    head_seconds: float
    layer_update_seconds: float
    layer_state_bytes: int
    embedding_state_bytes: int
    head_state_bytes: int
    layer_activation_bytes: int
    degraded_activation_bytes: int
    recomputed_activation_bytes: int
    transfer_bytes_per_second: float
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is None and name == "memory_bytes":
                continue
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, not {value}")

    @property
    def layer_seconds(self) -> float:
        """Forward and backward pass of a layer that runs exactly."""
        return self.layer_forward_seconds + self.layer_backward_seconds

    @property
    def degraded_seconds(self) -> float:
        """Forward and backward pass of a degraded layer that stores gate and up."""
        return self.degraded_forward_seconds + self.degraded_backward_seconds

    @property
    def recomputed_seconds(self) -> float:
        """Forward and backward pass of a degraded layer that recomputes gate and up."""
        return self.degraded_forward_seconds + self.recomputed_backward_seconds

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Costs:
        """Read what `to_dict` wrote."""
        return cls(**raw)

    @classmethod
    def from_flops(
        cls,
        model: ModelConfig,
        sequence_length: int,
        microbatch_size: int,
        approximation: ApproximationConfig,
        *,
        flops_per_second: float = 5e10,
        accesses_bytes_per_second: float = 1e10,
        transfer_bytes_per_second: float = 1e9,
        bytes_per_value: int = 4,
        memory_bytes: int | None = None,
    ) -> Costs:
        """A prediction from counted operations, for where nothing has been measured.

        Counted are matrix products, at `flops_per_second`, and for embedding and optimizer, which compute next to
        nothing, memory accesses, at `accesses_bytes_per_second`. The defaults are of the order of one CPU core. Left
        out are launches, elementwise operations and communication: ratios of figures are better than the figures.

        Causal attention is counted as half of its T x T products, twice forward and five times backward (which computes
        the scores again). A low-rank weight gradient of an m x n weight over b tokens takes 2br(m + n) + 2rmn
        (arXiv 2510.16415, section 4.3). Refreshing the bases is left out: it happens once in `refresh_steps` steps.
        """
        num_tokens = sequence_length * microbatch_size
        hidden, intermediate = model.hidden_size, model.intermediate_size
        key_value_size = model.num_key_value_heads * model.head_size
        num_attention_weights = 2 * hidden * (hidden + key_value_size)
        num_ffn_weights = 3 * hidden * intermediate
        rank = min(approximation.rank, hidden, intermediate)

        weights_flops = 2 * num_tokens * (num_attention_weights + num_ffn_weights)
        scores_flops = num_tokens * sequence_length * hidden
        ffn_input_flops = 2 * num_tokens * num_ffn_weights
        low_rank_flops = 3 * 2 * num_tokens * rank * (hidden + intermediate) + 2 * rank * num_ffn_weights
        forward_seconds = (weights_flops + 2 * scores_flops) / flops_per_second
        degraded_backward_seconds = (ffn_input_flops + low_rank_flops) / flops_per_second
        gate_and_up_seconds = ffn_input_flops * 2 / 3 / flops_per_second

        num_layer_values = num_attention_weights + num_ffn_weights + 2 * hidden
        num_embedding_values = model.vocab_size * hidden
        num_head_values = num_embedding_values + hidden
        # The gradient of an embedding is as large as the embedding: written, and added to what is there already.
        embedding_accesses = 4 * num_tokens * hidden + 4 * num_embedding_values
        # The inputs of both norms and what they return, q, k, v and what they give; gate, up and their two products.
        layer_activation_values = 6 * hidden + 2 * key_value_size + 4 * intermediate
        return cls(
            layer_forward_seconds=forward_seconds,
            layer_backward_seconds=(2 * weights_flops + 5 * scores_flops) / flops_per_second,
            degraded_forward_seconds=forward_seconds,
            degraded_backward_seconds=degraded_backward_seconds,
            recomputed_backward_seconds=degraded_backward_seconds + gate_and_up_seconds,
            embedding_seconds=embedding_accesses * bytes_per_value / accesses_bytes_per_second,
            head_seconds=3 * 2 * num_tokens * num_embedding_values / flops_per_second,
            layer_update_seconds=(
                _NUM_UPDATE_ACCESSES * num_layer_values * bytes_per_value / accesses_bytes_per_second
            ),
            layer_state_bytes=_NUM_STATE_VALUES * num_layer_values * bytes_per_value,
            embedding_state_bytes=_NUM_STATE_VALUES * num_embedding_values * bytes_per_value,
            head_state_bytes=_NUM_STATE_VALUES * num_head_values * bytes_per_value,
            layer_activation_bytes=num_tokens * layer_activation_values * bytes_per_value,
            degraded_activation_bytes=num_tokens * (hidden + 2 * intermediate) * bytes_per_value,
            recomputed_activation_bytes=num_tokens * hidden * bytes_per_value,
            transfer_bytes_per_second=transfer_bytes_per_second,
            memory_bytes=memory_bytes,
        )


def median_costs(costs: Sequence[Costs]) -> Costs:
    """For every figure the median over ranks; bytes are rounded up. A rank without a memory limit has no say in it.

    Raises:
        ValueError: there are none.
    """
    if not costs:
        raise ValueError("no costs to take a median of")
    medians: dict[str, Any] = {}
    for field in fields(Costs):
        values = [value for value in (getattr(one, field.name) for one in costs) if value is not None]
        middle = median(values) if values else None
        if middle is not None and field.name.endswith("_bytes"):
            middle = math.ceil(middle)
        medians[field.name] = middle
    return Costs(**medians)
