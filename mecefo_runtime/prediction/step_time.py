"""How long a synchronous step of a layout takes, and what its ranks need of memory, predicted from `Costs`.

A step is over when its slowest replica has computed its share, and the rank that holds most has reduced its gradients
and updated its parameters. A replica's share of m microbatches takes (m - 1) times its slowest stage plus all stages
once, with forward and backward of a stage as one time: the length of 1F1B's critical path (PipeDream-flush; Narayanan
et al. 2021, arXiv 2104.04473, section 2.2, for equal stages). Messages, data and commit are left out, and the reduction
where it is not known. With unequal stages, and with forward and backward in another ratio than elsewhere, real
pipelines stray from it by up to about one stage's time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.job.link import Link


def span_seconds(span: Span, num_layers: int, costs: Costs) -> float:
    """Forward and backward of one microbatch through `span`, of a model of `num_layers`, with embedding and head."""
    num_degraded, num_recomputed = len(span.degraded), len(span.recomputed)
    recomputed_seconds = costs.fully_recomputed_seconds if span.recomputes_fully else costs.recomputed_seconds
    return (
        (len(span.layers) - num_degraded) * costs.layer_seconds
        + (num_degraded - num_recomputed) * costs.degraded_seconds
        + num_recomputed * recomputed_seconds
        - len(span.projected) * costs.projected_saved_seconds
        + ends_seconds(span.first == 0, span.end == num_layers, costs)
    )


def ends_seconds(has_embedding: bool, has_head: bool, costs: Costs) -> float:
    """The time of a microbatch in a stage outside its layers (embedding and head)."""
    return has_embedding * costs.embedding_seconds + has_head * costs.head_seconds


def pipeline_seconds(slowest_seconds: float, sum_seconds: float, num_microbatches: int) -> float:
    """1F1B: `num_microbatches`, of which each takes `slowest_seconds` in one stage and `sum_seconds` in all of them."""
    return (num_microbatches - 1) * slowest_seconds + sum_seconds if num_microbatches else 0.0


def replica_seconds(replica: Replica, num_layers: int, costs: Costs) -> float:
    """Forward and backward of the replica's share of a step."""
    stages = [span_seconds(span, num_layers, costs) for span in replica.spans]
    return pipeline_seconds(max(stages), sum(stages), replica.num_microbatches)


def update_seconds(num_layers: int, has_embedding: bool, has_head: bool, costs: Costs) -> float:
    """Reduction and optimizer of `num_layers` layers and what ends they come with.

    Both go with the state that they pass over: that is how the ends follow from a layer's.
    """
    ends_bytes = has_embedding * costs.embedding_state_bytes + has_head * costs.head_state_bytes
    return costs.layer_end_seconds * (num_layers + ends_bytes / costs.layer_state_bytes)


def span_update_seconds(span: Span, num_layers: int, costs: Costs) -> float:
    """Reduction and optimizer of `span`, of a model of `num_layers`."""
    return update_seconds(len(span.layers), span.first == 0, span.end == num_layers, costs)


def step_seconds(layout: Layout, costs: Costs) -> float:
    """A step of all replicas: until the slowest of them has computed, then until the slowest rank has updated."""
    num_layers = layout.num_layers
    return max(replica_seconds(replica, num_layers, costs) for replica in layout.replicas) + max(
        span_update_seconds(span, num_layers, costs) for replica in layout.replicas for span in replica.spans
    )


def reducing_over(costs: Costs, link: Link, num_replicas: int) -> Costs:
    """`costs` with what it takes over `link` to sum a layer's gradients, a quarter of its state, over the replicas."""
    seconds = link.all_reduce_seconds(costs.layer_state_bytes / 4, num_replicas)
    return replace(costs, layer_reduction_seconds=seconds or None)


def commit_seconds(layout: Layout, costs: Costs, *, reduces_by_link: bool = False) -> float | None:
    """From the last microbatch to the optimizer: all wait for the rank that has most to reduce; None: not known.

    `reduces_by_link`: how long reductions take follows from links of known speed, and is no part of it.
    """
    if costs.commit_seconds is None:
        return None
    spans = [span for replica in layout.replicas for span in replica.spans]
    if reduces_by_link or not spans or not costs.layer_reduction_seconds:
        return costs.commit_seconds
    ends = ((len(span.layers), span.first == 0, span.end == layout.num_layers) for span in spans)
    most_bytes = max(state_bytes(num, has_embedding, has_head, costs) for num, has_embedding, has_head in ends)
    return costs.commit_seconds + costs.layer_reduction_seconds * most_bytes / costs.layer_state_bytes


def num_in_flight(num_microbatches: int, num_behind: int) -> int:
    """Microbatches whose activations 1F1B keeps at once in a stage that has `num_behind` stages behind it."""
    return min(num_microbatches, num_behind + 1)


def state_bytes(num_layers: int, has_embedding: bool, has_head: bool, costs: Costs) -> int:
    """Parameters, gradients and optimizer state of `num_layers` layers and what ends they come with."""
    return (
        num_layers * costs.layer_state_bytes
        + has_embedding * costs.embedding_state_bytes
        + has_head * costs.head_state_bytes
    )


def held_bytes(num_layers: int, has_embedding: bool, has_head: bool, costs: Costs) -> int:
    """The state that a rank holds: gradients count twice, its own and the sum over the replicas."""
    layer, embedding, head = (
        num_bytes * 5 // 4
        for num_bytes in (costs.layer_state_bytes, costs.embedding_state_bytes, costs.head_state_bytes)
    )
    return num_layers * layer + has_embedding * embedding + has_head * head


def span_memory_bytes(replica: Replica, position: int, num_layers: int, costs: Costs) -> int:
    """What the span at `position` of `replica` needs: its state, and the activations of the microbatches in flight."""
    span = replica.spans[position]
    num_degraded, num_recomputed = len(span.degraded), len(span.recomputed)
    activation_bytes = (
        (len(span.layers) - num_degraded) * costs.layer_activation_bytes
        + (num_degraded - num_recomputed) * costs.degraded_activation_bytes
        + num_recomputed * costs.recomputed_activation_bytes
    )
    in_flight = num_in_flight(replica.num_microbatches, len(replica.spans) - 1 - position)
    held = held_bytes(len(span.layers), span.first == 0, span.end == num_layers, costs)
    return held + in_flight * activation_bytes


def most_memory_bytes(layout: Layout, costs: Costs) -> int:
    """The memory of the rank that needs most."""
    return max(
        span_memory_bytes(replica, position, layout.num_layers, costs)
        for replica in layout.replicas
        for position in range(len(replica.spans))
    )


def degraded_share_ratio(layout: Layout) -> float:
    """The share of a step's samples that go through degraded layers, from 0 to 1."""
    degraded = sum(
        replica.num_microbatches for replica in layout.replicas if any(span.degraded for span in replica.spans)
    )
    return degraded / layout.num_microbatches


def projected_share_ratio(layout: Layout) -> float:
    """The share of the replicas that project a layer, from 0 to 1: of the layer with the most."""
    projected = [layer for replica in layout.replicas for span in replica.spans for layer in span.projected]
    return max(Counter(projected).values(), default=0) / len(layout.replicas)
