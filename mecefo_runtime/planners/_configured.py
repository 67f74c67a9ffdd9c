"""What planners that split layers again use of the configured layout: its survivors, its speed, its memory."""

from __future__ import annotations

from dataclasses import replace

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.planners._partition import Pace
from mecefo_runtime.planners._shares import Whole
from mecefo_runtime.prediction.step_time import most_memory_bytes, span_seconds, span_update_seconds, step_seconds


def survivors(situation: Situation, configured: Layout) -> dict[int, tuple[int, ...]]:
    """The living ranks of every replica that has any, in the order of their stages."""
    living = {
        replica.replica: tuple(span.rank for span in replica.spans if span.rank in situation.alive)
        for replica in configured.replicas
    }
    return {replica: ranks for replica, ranks in living.items() if ranks}


def memory_limit(configured: Layout, costs: Costs) -> int | None:
    """A rank's memory limit; at least what the configured layout uses, since that is known to fit."""
    if costs.memory_bytes is None:
        return None
    return max(costs.memory_bytes, most_memory_bytes(_first_replica(configured), costs))


def failure_free_seconds(configured: Layout, costs: Costs) -> float:
    """A step when nothing has failed."""
    return step_seconds(_first_replica(configured), costs)


def whole(configured: Layout, costs: Costs, num_microbatches: int, memory_bytes: int | None) -> Whole:
    """What a replica that lost nobody can do, of a step of `num_microbatches`, when a rank has `memory_bytes`."""
    replica, num_layers = configured.replicas[0], configured.num_layers
    stages = [span_seconds(span, num_layers, costs) for span in replica.spans]
    slowest_update = max(span_update_seconds(span, num_layers, costs) for span in replica.spans)
    most = num_microbatches
    if memory_bytes is not None:
        # With as many microbatches as stages, the most are in flight that ever are.
        for number in range(min(most, len(replica.spans)), 0, -1):
            tried = Layout(num_layers, (replace(replica, num_microbatches=number),))
            if most_memory_bytes(tried, costs) <= memory_bytes:
                break
            most = number - 1
    return Whole(Pace(max(stages), sum(stages), 0, 0, slowest_update), most)


def _first_replica(configured: Layout) -> Layout:
    """What stands for all: in the configured layout no replica has other stages, or more microbatches."""
    return replace(configured, replicas=configured.replicas[:1])
