"""Re-partition over the survivors: as few degraded layers as keep the failure-free pace, microbatches by ability.

The layers of a replica that was hit are split again over its own survivors. A replica that lost nobody keeps its
stages. Where the failure-free time of a step can be kept, nothing is done to beat it; where it cannot, the step takes
the least time that is possible. Within that time, in this order: few layers are degraded, weighted by the microbatches
that go through them, and few units move. Layers recompute gate and up only where memory does not hold otherwise. Where
layers may be projected, which costs the training less, on all replicas, that comes before any is degraded.

A replica is left out, and its microbatches go to the others, only when its survivors' memory cannot hold it, or could
only hold it degraded and the limit for degraded samples does not allow that. The memory that the configured layout uses
is taken to be there.

The search for such a layout is in `_search`, how layers are split in `_partition`, how microbatches are shared in
`_shares`.
"""

from __future__ import annotations

from dataclasses import replace

from mecefo_runtime.job.layout import (
    Layout,
    LayoutError,
    Replica,
    configured_layout,
)
from mecefo_runtime.planners import TOLERANCE_RATIO, NoLayout, Situation
from mecefo_runtime.planners._configured import failure_free_seconds, memory_limit
from mecefo_runtime.planners._projection import blended, project
from mecefo_runtime.planners._search import Search
from mecefo_runtime.planners._stages import ROUNDING_RATIO
from mecefo_runtime.prediction.step_time import (
    degraded_share_ratio,
    most_memory_bytes,
    projected_share_ratio,
    step_seconds,
)

APPROXIMATES = "degrading_or_projecting"
# A layer is projected only where that saves more than this share of its time: about what a sample that passes projected
# layers tells the training less (docs/explanation/convergence.md).
PROJECTED_LOSS_RATIO = 0.1
# The share of layers that are projected is tried in so many steps.
_NUM_TRIALS = 4


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    cluster = situation.cluster
    configured = configured_layout(cluster)
    if len(situation.alive) == cluster.num_ranks:
        return configured
    found = _plan(situation, configured)
    current = situation.current
    return current if current is not None and _is_as_good(current, found, situation, configured) else found


def _plan(situation: Situation, configured: Layout) -> Layout:
    costs, limit = situation.costs, situation.projected_share_limit
    target_seconds = failure_free_seconds(configured, costs) * (1 + TOLERANCE_RATIO)
    if not limit or costs.projected_saved_seconds <= PROJECTED_LOSS_RATIO * costs.layer_seconds:
        return Search(situation, configured, target_seconds).run()
    best: Layout | None = None
    exact = replace(situation, degraded_share_limit=0.0)
    for number in range(_NUM_TRIALS + 1):
        try:
            found = _plan_projected(exact, configured, target_seconds, limit * number / _NUM_TRIALS)
        except NoLayout:
            # Memory does not hold it without degraded layers.
            break
        if best is None or step_seconds(found, costs) < step_seconds(best, costs):
            best = found
        if step_seconds(best, costs) <= target_seconds * (1 + ROUNDING_RATIO):
            return best
    if best is not None and not situation.degraded_share_limit:
        return best
    degraded = _plan_projected(situation, configured, target_seconds, limit)
    if best is not None and step_seconds(best, costs) <= step_seconds(degraded, costs) * (1 + TOLERANCE_RATIO):
        return best
    return degraded


def _plan_projected(situation: Situation, configured: Layout, target_seconds: float, ratio: float) -> Layout:
    """With about this share of the layers projected."""
    costs = blended(situation.costs, ratio)
    layout = Search(replace(situation, costs=costs), configured, target_seconds).run()
    seconds = max(target_seconds, step_seconds(layout, costs))
    return project(layout, situation.costs, situation.projected_share_limit, seconds)


def _cost(layout: Layout) -> tuple[int, int]:
    """Degraded and projected layers, each times the microbatches that go through them."""
    spans = [(replica.num_microbatches, span) for replica in layout.replicas for span in replica.spans]
    return sum(number * len(span.degraded) for number, span in spans), sum(
        number * len(span.projected) for number, span in spans
    )


def _is_as_good(current: Layout, found: Layout, situation: Situation, configured: Layout) -> bool:
    """Whether `current` may stay: it keeps to the same rules as `found` does, and is not much worse."""
    costs = situation.costs
    try:
        current.check(situation.cluster, situation.alive)
    except LayoutError:
        return False
    if [(replica.replica, _ranks(replica)) for replica in current.replicas] != [
        (replica.replica, _ranks(replica)) for replica in found.replicas
    ]:
        return False
    for replica in current.replicas:
        own = configured.replicas[replica.replica]
        exact = tuple(replace(span, projected=frozenset()) for span in replica.spans)
        if not replica.num_microbatches or (len(exact) == len(own.spans) and exact != own.spans):
            return False
    memory_bytes = memory_limit(configured, costs)
    if memory_bytes is not None and most_memory_bytes(current, costs) > memory_bytes:
        return False
    if degraded_share_ratio(current) > situation.degraded_share_limit * (1 + ROUNDING_RATIO):
        return False
    if projected_share_ratio(current) > situation.projected_share_limit * (1 + ROUNDING_RATIO):
        return False
    slowest_seconds = max(failure_free_seconds(configured, costs), step_seconds(found, costs)) * (1 + TOLERANCE_RATIO)
    return step_seconds(current, costs) <= slowest_seconds and all(
        own <= wanted * (1 + TOLERANCE_RATIO) for own, wanted in zip(_cost(current), _cost(found), strict=True)
    )


def _ranks(replica: Replica) -> tuple[int, ...]:
    return tuple(span.rank for span in replica.spans)
