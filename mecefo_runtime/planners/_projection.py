"""Which layers of a layout are projected, so that a step takes no longer than it may.

Projected layers are spread over all replicas, so that every layer stays exact for most of a step's samples: what the
projection drops of a weight gradient is then known from these.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, Replica
from mecefo_runtime.planners._stages import ROUNDING_RATIO
from mecefo_runtime.prediction.step_time import pipeline_seconds, span_seconds, span_update_seconds


def blended(costs: Costs, ratio: float) -> Costs:
    """The costs of layers of which this share is projected, as if all were alike."""
    seconds = costs.layer_backward_seconds - ratio * costs.projected_saved_seconds
    return replace(costs, layer_backward_seconds=seconds)


def project(layout: Layout, costs: Costs, share_limit: float, seconds: float) -> Layout:
    """`layout` with as few projected layers as bring its steps to `seconds`, or as near as they can.

    Every layer is projected by at most `share_limit` of the replicas.
    """
    most = floor(share_limit * len(layout.replicas) * (1 + ROUNDING_RATIO))
    if not most or not costs.projected_saved_seconds:
        return layout
    update_seconds = max(
        span_update_seconds(span, layout.num_layers, costs) for replica in layout.replicas for span in replica.spans
    )
    left = [most] * layout.num_layers
    replicas = (_project(each, layout.num_layers, costs, left, seconds - update_seconds) for each in layout.replicas)
    return replace(layout, replicas=tuple(replicas))


def _project(replica: Replica, num_layers: int, costs: Costs, left: list[int], seconds: float) -> Replica:
    """`left` says how many more replicas may project each layer."""
    stages = [span_seconds(span, num_layers, costs) for span in replica.spans]
    chosen: list[set[int]] = [set() for _ in replica.spans]
    while pipeline_seconds(max(stages), sum(stages), replica.num_microbatches) > seconds * (1 + ROUNDING_RATIO):
        slowest = max(range(len(stages)), key=lambda stage: (stages[stage], -stage))
        span = replica.spans[slowest]
        open_layers = [
            layer
            for layer in span.layers
            if layer not in span.degraded and layer not in chosen[slowest] and left[layer]
        ]
        if not open_layers:
            break
        # Evenly: the layer that fewest replicas project.
        layer = max(open_layers, key=lambda layer: (left[layer], -layer))
        chosen[slowest].add(layer)
        left[layer] -= 1
        stages[slowest] -= costs.projected_saved_seconds
    spans = tuple(
        replace(span, projected=frozenset(layers)) for span, layers in zip(replica.spans, chosen, strict=True)
    )
    return replace(replica, spans=spans)
