"""How long a step takes: 1F1B by its events, forward and backward apart, then reduction, commit and update.

`mecefo_runtime.prediction.step_time` is what planners compute with; this is what `mecefo_runtime.step.pipeline` does.
The two are equal for equal stages without communication. What differs: a rank begins its next step when its own
update is over, not when the slowest is, so that a long update of one rank hides behind another's pipeline; a stage
waits for messages; and unequal stages are simulated instead of bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise

from mecefo_chaos.studies.forecast.model import JobModel, Rating
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.job.link import Link
from mecefo_runtime.prediction.step_time import commit_seconds, span_update_seconds, state_bytes
from mecefo_runtime.step.ratings import Ratings

# After so many microbatches for each stage, and so many in all, the pipeline has settled: what follows is the same over
# and over again. Where two ways through it are nearly as long it takes long until the longer one tells.
_SETTLED_ROUNDS, _SETTLED_MICROBATCHES = 6, 256
# It is seen to be so when it has grown so many times in a row by the same, up to rounding.
_NUM_ALIKE = 3
_ROUNDING_RATIO = 1e-9


def rate(layout: Layout, job: JobModel, num_alike: float = 1) -> Rating:
    """How long a step of `layout` takes when it has settled, and how much of it is computed approximately.

    Each of its replicas stands for `num_alike`.
    """
    finished = {replica.replica: _finished(replica, layout.num_layers, job) for replica in layout.replicas}
    computed_seconds = seconds = max(max(times) for times in finished.values())
    if job.link is not None:
        seconds = _reduced_seconds(layout, finished, job.costs, job.link, num_alike)
    all_work = layout.num_microbatches * layout.num_layers
    degraded = sum(r.num_microbatches * len(s.degraded) for r in layout.replicas for s in r.spans)
    projected = sum(r.num_microbatches * len(s.projected) for r in layout.replicas for s in r.spans)
    committed_seconds = commit_seconds(layout, job.costs, reduces_by_link=job.link is not None)
    seconds += (committed_seconds or 0.0) + job.overhead_seconds
    return Rating(seconds, degraded / all_work, projected / all_work, computed_seconds)


def rate_configured(job: JobModel, num_microbatches: int, num_replicas: int) -> Rating:
    """How long a step of `num_replicas` takes that each have their configured layers, and so many microbatches."""
    cluster = job.cluster
    stages = map(cluster.stage_layers, range(cluster.pipeline))
    spans = tuple(Span(stage, layers.start, layers.stop) for stage, layers in enumerate(stages))
    return rate(Layout(cluster.num_layers, (Replica(0, spans, num_microbatches),)), job, num_replicas)


def rate_free(job: JobModel) -> Rating:
    """The configured job without failures."""
    cluster = job.cluster
    return rate_configured(job, -(-cluster.num_microbatches // cluster.data_parallel), cluster.data_parallel)


def replica_seconds(replica: Replica, num_layers: int, job: JobModel) -> float:
    """From a commit until the replica has computed its share of the next step, updates included."""
    return max(_finished(replica, num_layers, job))


def _finished(replica: Replica, num_layers: int, job: JobModel) -> tuple[float, ...]:
    """When each of its stages has."""
    stages = passes(replica, num_layers, job.costs)
    return one_forward_one_backward(*stages, replica.num_microbatches, job.message_seconds)


def _reduced_seconds(
    layout: Layout, finished: Mapping[int, tuple[float, ...]], costs: Costs, link: Link, num_alike: float
) -> float:
    """When the last rank has the sums of all that it holds.

    A rank begins when its own pipeline is through, and a unit's sum needs all of its holders. Each of n sends and
    receives 2 (n - 1) / n of what they share; what a rank shares with different peers goes one after the other, first
    what is ready first.
    """
    num_layers = layout.num_layers
    ready = [0.0] * num_layers
    for replica in layout.replicas:
        for span, seconds in zip(replica.spans, finished[replica.replica], strict=True):
            for layer in span.layers:
                ready[layer] = max(ready[layer], seconds)
    latest_seconds = 0.0
    for first, end in {(span.first, span.end) for replica in layout.replicas for span in replica.spans}:
        done_seconds = 0.0
        for seconds in sorted(set(ready[first:end])):
            layers = [layer for layer in range(first, end) if ready[layer] == seconds]
            gradient_bytes = state_bytes(len(layers), 0 in layers, num_layers - 1 in layers, costs) / 4
            num_holders = round(num_alike * len(layout.replicas))
            done_seconds = max(done_seconds, seconds) + link.all_reduce_seconds(gradient_bytes, num_holders)
        latest_seconds = max(latest_seconds, done_seconds)
    return latest_seconds


def passes(
    replica: Replica, num_layers: int, costs: Costs
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """(forward, backward, update) seconds of each of the replica's stages, for one microbatch and a step's update."""
    alone = Layout(num_layers, (replica,))
    stages = [Ratings(costs, alone, span.rank) for span in replica.spans]
    updates = tuple(span_update_seconds(span, num_layers, _without_reduction(costs)) for span in replica.spans)
    return tuple(s.forward_seconds or 0.0 for s in stages), tuple(s.backward_seconds or 0.0 for s in stages), updates


@lru_cache(maxsize=64)
def _without_reduction(costs: Costs) -> Costs:
    """Reductions are over when all replicas have them: no part of one replica's own time."""
    return replace(costs, layer_reduction_seconds=None)


@lru_cache(maxsize=65536)
def one_forward_one_backward(
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    begin: tuple[float, ...],
    num_microbatches: int,
    message_seconds: float,
) -> tuple[float, ...]:
    """When each of a pipeline's stages is through with `num_microbatches`, in the order of PipeDream-flush.

    Stage k takes `forward[k]` and `backward[k]` for one and begins at `begin[k]`; what it sends is there
    `message_seconds` later, and sending keeps nobody waiting. Beyond a number of microbatches that is large against
    the number of stages the length grows by the same amount for each further one, and is extrapolated.
    """
    if not num_microbatches:
        return begin
    num_stages = len(forward)
    num_settled = max(_SETTLED_ROUNDS * num_stages, _SETTLED_MICROBATCHES)
    simulated = cache(lambda num: _simulate(forward, backward, begin, num, message_seconds))
    # A settled pipeline repeats itself after so many microbatches as it has stages at most, mostly just after those.
    for period in range(num_stages, 0, -1):
        num_periods = (num_microbatches - num_settled) // period
        if num_periods < 1:
            break
        num = num_microbatches - num_periods * period
        earlier = (simulated(num - place * period) for place in range(_NUM_ALIKE + 1))
        grown = [[late - early for late, early in zip(*pair, strict=True)] for pair in pairwise(earlier)]
        if all(map(_are_equal, grown, grown[1:])):
            return tuple(late + num_periods * more for late, more in zip(simulated(num), grown[0], strict=True))
    return simulated(num_microbatches)


def _are_equal(some: Sequence[float], others: Sequence[float]) -> bool:
    return all(abs(one - other) <= _ROUNDING_RATIO * one for one, other in zip(some, others, strict=True))


def _simulate(
    forward: Sequence[float], backward: Sequence[float], begin: Sequence[float], num: int, message_seconds: float
) -> tuple[float, ...]:
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
    return tuple(now)


@lru_cache(maxsize=4096)
def _order(num_behind: int, num: int) -> tuple[int, ...]:
    """What a stage with `num_behind` stages behind it does: i is microbatch i forward, -1 - i is it backward."""
    warmup = min(num_behind, num)
    order = list(range(warmup))
    for index in range(warmup, num):
        order += [index, warmup - index - 1]
    order += [-1 - index for index in range(num - warmup, num)]
    return tuple(order)
