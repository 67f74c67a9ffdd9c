"""How long a step takes: 1F1B by its events, forward and backward apart, then reduction, commit and update.

`mecefo_runtime.job.step_time` is what planners compute with; this is what the pipeline of `training/pipeline.py` does.
The two are equal for equal stages without communication. What differs: a rank begins its next step when its own
update is over, not when the slowest is, so that a long update of one rank hides behind another's pipeline; a stage
waits for messages; and unequal stages are simulated instead of bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from harness.forecast.model import JobModel, Link, Rating
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.job.step_time import span_update_seconds, state_bytes

# After so many microbatches for each stage the pipeline has settled: what follows is the same over and over again.
_SETTLED_ROUNDS = 6


def rate(layout: Layout, job: JobModel) -> Rating:
    """How long a step of `layout` takes when it has settled, and how much of it is computed approximately."""
    slowest_seconds = max(replica_seconds(replica, layout.num_layers, job) for replica in layout.replicas)
    seconds = slowest_seconds + reduction_seconds(layout, job.costs, job.link) + job.overhead_seconds
    degraded = sum(r.num_microbatches * len(s.degraded) for r in layout.replicas for s in r.spans)
    return Rating(seconds, degraded / (layout.num_microbatches * layout.num_layers))


def replica_seconds(replica: Replica, num_layers: int, job: JobModel) -> float:
    """From a commit until the replica has computed its share of the next step, updates included."""
    costs = job.costs
    return one_forward_one_backward(
        tuple(forward_seconds(span, num_layers, costs) for span in replica.spans),
        tuple(backward_seconds(span, num_layers, costs) for span in replica.spans),
        tuple(span_update_seconds(span, num_layers, costs) for span in replica.spans),
        replica.num_microbatches,
        job.message_seconds,
    )


def forward_seconds(span: Span, num_layers: int, costs: Costs) -> float:
    """One microbatch forward through `span`, of a model of `num_layers`."""
    num_degraded = len(span.degraded)
    return (
        (len(span.layers) - num_degraded) * costs.layer_forward_seconds
        + num_degraded * costs.degraded_forward_seconds
        + (span.first == 0) * costs.embedding_forward_seconds
        + (span.end == num_layers) * costs.head_forward_seconds
    )


def backward_seconds(span: Span, num_layers: int, costs: Costs) -> float:
    """One microbatch backward through `span`, of a model of `num_layers`."""
    num_degraded, num_recomputed = len(span.degraded), len(span.recomputed)
    return (
        (len(span.layers) - num_degraded) * costs.layer_backward_seconds
        + (num_degraded - num_recomputed) * costs.degraded_backward_seconds
        + num_recomputed * costs.recomputed_backward_seconds
        + (span.first == 0) * costs.embedding_backward_seconds
        + (span.end == num_layers) * costs.head_backward_seconds
    )


@lru_cache(maxsize=65536)
def one_forward_one_backward(
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    begin: tuple[float, ...],
    num_microbatches: int,
    message_seconds: float,
) -> float:
    """When the last of a pipeline's stages is through with `num_microbatches`, in the order of PipeDream-flush.

    Stage k takes `forward[k]` and `backward[k]` for one and begins at `begin[k]`; what it sends is there
    `message_seconds` later, and sending keeps nobody waiting. Beyond a number of microbatches that is large against
    the number of stages the length grows by the same amount for each further one, and is extrapolated.
    """
    if not num_microbatches:
        return max(begin)
    # A settled pipeline repeats itself every so many microbatches as it has stages.
    period = len(forward)
    num_periods = max(0, (num_microbatches - _SETTLED_ROUNDS * period) // period)
    num = num_microbatches - num_periods * period
    seconds = _simulate(forward, backward, begin, num, message_seconds)
    if num_periods:
        shorter_seconds = _simulate(forward, backward, begin, num - period, message_seconds)
        seconds += num_periods * (seconds - shorter_seconds)
    return seconds


def _simulate(
    forward: Sequence[float], backward: Sequence[float], begin: Sequence[float], num: int, message_seconds: float
) -> float:
    num_stages = len(forward)
    orders = [_order(num_stages - 1 - stage, num) for stage in range(num_stages)]
    arrived = [[0.0] * num, *([-1.0] * num for _ in range(num_stages - 1))]
    returned = [*([-1.0] * num for _ in range(num_stages - 1)), [0.0] * num]
    now = list(begin)
    places = [0] * num_stages
    waiting = set(range(num_stages))
    stage = 0
    while waiting:
        order, place, clock = orders[stage], places[stage], now[stage]
        while place < len(order):
            index = order[place]
            if index >= 0:
                ready = arrived[stage][index]
                if ready < 0:
                    break
                clock = max(clock, ready) + forward[stage]
                if stage + 1 < num_stages:
                    arrived[stage + 1][index] = clock + message_seconds
            else:
                index = -1 - index
                ready = returned[stage][index]
                if ready < 0:
                    break
                clock = max(clock, ready) + backward[stage]
                if stage:
                    returned[stage - 1][index] = clock + message_seconds
            place += 1
        places[stage], now[stage] = place, clock
        if place == len(order):
            waiting.discard(stage)
        stage = (stage + 1) % num_stages
    return max(now)


@lru_cache(maxsize=4096)
def _order(num_behind: int, num: int) -> tuple[int, ...]:
    """What a stage with `num_behind` stages behind it does: i is microbatch i forward, -1 - i is it backward."""
    warmup = min(num_behind, num)
    order = list(range(warmup))
    for index in range(warmup, num):
        order += [index, warmup - index - 1]
    order += [-1 - index for index in range(num - warmup, num)]
    return tuple(order)


def reduction_seconds(layout: Layout, costs: Costs, link: Link | None) -> float:
    """The reduction of gradients by rings: of n holders each sends and receives 2 (n - 1) / n of what they share.

    Nothing of it is hidden behind the backward pass; what a rank shares with different peers goes one after the other.
    """
    if link is None or len(layout.replicas) < 2:
        return 0.0
    # How many replicas hold a layer does not depend on the layer: each active replica holds all of them once.
    num = len(layout.replicas)
    longest_seconds = 0.0
    for replica in layout.replicas:
        for span in replica.spans:
            state = state_bytes(len(span.layers), span.first == 0, span.end == layout.num_layers, costs)
            sent_bytes = 2 * (num - 1) / num * state / 4
            seconds = sent_bytes / link.bandwidth_bytes_per_second + 2 * (num - 1) * link.latency_seconds
            longest_seconds = max(longest_seconds, seconds)
    return longest_seconds
