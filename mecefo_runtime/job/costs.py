"""The time and memory that a layer costs on a rank's device: the figures that planning uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

_MAY_BE_UNKNOWN = (
    "memory_bytes",
    "projected_backward_seconds",
    "commit_seconds",
    "layer_reduction_seconds",
    "message_seconds",
)


@dataclass(frozen=True, slots=True)
class Costs:
    """One rank's device. Seconds and activation bytes are for one microbatch; all layers of a model are alike.

    A `degraded` layer runs approximated; a `recomputed` one is degraded and computes gate and up again in the backward
    pass, a `fully_recomputed` one the down projection, too (their forward pass is the degraded one). A `projected`
    layer is as an exact one, but for low-rank weight gradients; None: not known. State is parameters, gradients and
    optimizer state; activations are what is stored between the forward and the backward pass of one microbatch.
    `layer_update_seconds` is the optimizer's part of a step for one layer, `layer_checksum_seconds` a checksum of its
    state, `refresh_seconds` new bases for a degraded one. `message_seconds` is how long an activation is under way
    between two stages, `layer_reduction_seconds` what it takes to sum a layer's gradients over the replicas, with their
    norm, and `commit_seconds` to agree that a step is done; None: as long as it takes. `memory_bytes` is what a rank
    has for state and activations, None where there is no limit.

    Raises:
        ValueError: a figure is not positive or not finite.
    """

    layer_forward_seconds: float
    layer_backward_seconds: float
    degraded_forward_seconds: float
    degraded_backward_seconds: float
    recomputed_backward_seconds: float
    fully_recomputed_backward_seconds: float
    embedding_forward_seconds: float
    embedding_backward_seconds: float
    head_forward_seconds: float
    head_backward_seconds: float
    layer_update_seconds: float
    layer_checksum_seconds: float
    refresh_seconds: float
    layer_state_bytes: int
    embedding_state_bytes: int
    head_state_bytes: int
    layer_activation_bytes: int
    degraded_activation_bytes: int
    recomputed_activation_bytes: int
    transfer_bytes_per_second: float
    memory_bytes: int | None = None
    projected_backward_seconds: float | None = None
    commit_seconds: float | None = None
    layer_reduction_seconds: float | None = None
    message_seconds: float | None = None

    def __post_init__(self) -> None:
        # Not `asdict`, which copies each value: a forecast makes many of them.
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None and name in _MAY_BE_UNKNOWN:
                continue
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, not {value}")

    @classmethod
    def from_older(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """`raw` as it is written since there is full recomputation.

        Before, the down projection is taken to cost half of what gate and up do together, which are as large each.
        """
        recomputed, degraded = raw.get("recomputed_backward_seconds"), raw.get("degraded_backward_seconds")
        if "fully_recomputed_backward_seconds" in raw or recomputed is None or degraded is None:
            return raw
        return {**raw, "fully_recomputed_backward_seconds": recomputed + max(0.0, recomputed - degraded) / 2}

    @property
    def layer_seconds(self) -> float:
        """Forward and backward pass of a layer that runs exactly."""
        return self.layer_forward_seconds + self.layer_backward_seconds

    @property
    def embedding_seconds(self) -> float:
        """Forward and backward pass of the embedding."""
        return self.embedding_forward_seconds + self.embedding_backward_seconds

    @property
    def head_seconds(self) -> float:
        """Forward and backward pass of the head, with the loss."""
        return self.head_forward_seconds + self.head_backward_seconds

    @property
    def degraded_seconds(self) -> float:
        """Forward and backward pass of a degraded layer that stores gate and up."""
        return self.degraded_forward_seconds + self.degraded_backward_seconds

    @property
    def projected_saved_seconds(self) -> float:
        """How much less time a projected layer takes than an exact one; 0 where this is not known."""
        return max(0.0, self.layer_backward_seconds - (self.projected_backward_seconds or self.layer_backward_seconds))

    @property
    def recomputed_seconds(self) -> float:
        """Forward and backward pass of a degraded layer that recomputes gate and up."""
        return self.degraded_forward_seconds + self.recomputed_backward_seconds

    @property
    def fully_recomputed_seconds(self) -> float:
        """Forward and backward pass of a degraded layer that recomputes its whole feed-forward part."""
        return self.degraded_forward_seconds + self.fully_recomputed_backward_seconds

    @property
    def layer_end_seconds(self) -> float:
        """The time of a layer at the end of a step on the slowest rank: reduction and optimizer."""
        return self.layer_update_seconds + (self.layer_reduction_seconds or 0.0)

    def scaled(self, ratio: float) -> Costs:
        """The costs of a device that takes `ratio` times as long to compute."""
        seconds = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_seconds")}
        return replace(self, **{name: ratio * value for name, value in seconds.items() if value is not None})


def median_costs(costs: Sequence[Costs]) -> Costs:
    """For every figure the median over ranks; bytes are rounded up. Ranks without a memory limit are left out of it.

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
