"""Pipeline templates, exact: a replica that lost ranks runs the template for as many stages as it has ranks left.

After Oobleck (arXiv 2309.08125). A template splits the layers, by their costs, so that the slowest stage is as fast as
can be; which one a replica runs depends on its number of ranks alone. A replica with fewer ranks than the smallest
template that memory holds borrows from the one with most; where none has any to spare, two replicas become one.
Microbatches are shared by the speed of the templates. A replica that lost nobody keeps its configured stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecefo_runtime.job.layout import Layout, Replica, Span, configured_layout
from mecefo_runtime.planners import NoLayout, Situation
from mecefo_runtime.planners._configured import memory_limit, survivors, whole
from mecefo_runtime.planners._partition import Partition, level
from mecefo_runtime.planners._shares import Sharing, Team
from mecefo_runtime.planners._stages import ROUNDING_RATIO, Stages

FIXED_SETTINGS: Mapping[str, Any] = {"degraded_share_limit": 0.0, "takeover": "direct"}


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    cluster, costs = situation.cluster, situation.costs
    configured = configured_layout(cluster)
    if len(situation.alive) == cluster.num_ranks:
        return configured
    memory_bytes = memory_limit(configured, costs)
    partition = Partition(Stages(costs, cluster.num_layers, memory_bytes))
    ranks_of = _instantiate(survivors(situation, configured), partition)
    unhurt = {
        replica.replica
        for replica in configured.replicas
        if ranks_of.get(replica.replica) == [span.rank for span in replica.spans]
    }
    teams = [Team(replica, len(ranks), replica in unhurt) for replica, ranks in ranks_of.items()]
    speed = whole(configured, costs, cluster.num_microbatches, memory_bytes)
    sharing = Sharing(partition, speed, cluster.num_microbatches, 0)
    seconds = sharing.least_seconds(teams, ())
    if seconds is None:
        raise NoLayout("the survivors' memory cannot take all of a step's microbatches without degraded layers")
    shares = sharing.share(teams, (), seconds * (1 + 2 * ROUNDING_RATIO))
    assert shares is not None, "they can do it within that time"
    replicas = []
    for replica, ranks in ranks_of.items():
        share = shares.num_microbatches[replica]
        spans = configured.replicas[replica].spans
        if replica not in unhurt:
            spans = _spans(ranks, _template(partition.stages, len(ranks), share))
        replicas.append(Replica(replica, spans, share))
    return Layout(cluster.num_layers, tuple(replicas))


def _instantiate(living: Mapping[int, tuple[int, ...]], partition: Partition) -> dict[int, list[int]]:
    """The ranks of every replica, in pipeline order: each has enough of them for a template."""
    if not living:
        raise NoLayout("no replica has a living rank left")
    num_layers = partition.stages.num_layers
    sizes = range(1, num_layers + 1)
    least = next((size for size in sizes if partition.exact(size, 1) is not None), None)
    ranks_of = {replica: list(ranks) for replica, ranks in living.items()}
    if least is None or sum(map(len, ranks_of.values())) < least:
        raise NoLayout("all survivors' memory together does not hold the model without degraded layers")
    while True:
        by_size = sorted(ranks_of, key=lambda replica: (len(ranks_of[replica]), replica))
        smallest, largest = by_size[0], max(ranks_of, key=lambda replica: (len(ranks_of[replica]), -replica))
        if len(ranks_of[smallest]) >= least:
            break
        if len(ranks_of[largest]) > least:
            ranks_of[smallest].append(ranks_of[largest].pop())
        else:
            first, second = sorted(by_size[:2])
            ranks_of[first] += ranks_of.pop(second)
    # No stage is empty: more ranks than layers cannot all have one.
    return {replica: ranks[:num_layers] for replica, ranks in ranks_of.items()}


def _template(stages: Stages, num_stages: int, num_microbatches: int) -> list[int]:
    """How many layers each stage has."""
    ladders = [stages.exact(place) for place in stages.places(num_stages, num_microbatches)]
    counts = level(stages.num_layers, [[seconds for _, seconds in ladder] for ladder in ladders])
    assert counts is not None, "memory holds it, or the replica would have no microbatch"
    return counts


def _spans(ranks: list[int], counts: list[int]) -> tuple[Span, ...]:
    spans, first = [], 0
    for rank, count in zip(ranks, counts, strict=True):
        spans.append(Span(rank, first, first + count))
        first += count
    return tuple(spans)
