"""Who holds which layers, which of them are degraded, and who computes how many microbatches.

Values without I/O: planners make them, the coordinator announces them, ranks obey them. A layout names transformer
layers only: the embedding goes with the holder of layer 0 and the head with the holder of the last layer, as *units*
(see `units`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import lcm

from mecefo_runtime.job.assignment import Assignment
from mecefo_runtime.job.share import WHOLE, Share
from mecefo_runtime.system.json_values import LEFT_OUT

EMBEDDING = "embedding"
HEAD = "head"


class LayoutError(ValueError):
    """A layout breaks one of its invariants, or a cluster cannot have one."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The configured shape of a job: its ranks, stages and replicas when nothing has failed.

    `num_microbatches` is the number of microbatches of a step over all replicas. Of the `nodes`, the last `spares` hold
    nothing until they take the place of others.
    """

    nodes: int
    gpus_per_node: int
    data_parallel: int
    pipeline: int
    num_layers: int
    num_microbatches: int
    spares: int = 0

    def __post_init__(self) -> None:
        num_cells = self.data_parallel * self.pipeline
        if num_cells != self.num_places:
            raise LayoutError(
                f"data_parallel x pipeline = {self.data_parallel} x {self.pipeline} = {num_cells}, "
                f"but {self.nodes - self.spares} nodes x {self.gpus_per_node} ranks = {self.num_places} ranks"
            )
        if self.num_layers < self.pipeline:
            raise LayoutError(f"{self.num_layers} layers do not fill {self.pipeline} pipeline stages")
        if self.num_microbatches < self.data_parallel:
            raise LayoutError(f"{self.num_microbatches} microbatches do not feed {self.data_parallel} replicas")

    @property
    def num_ranks(self) -> int:
        """Number of ranks over all nodes, spare ones too."""
        return self.nodes * self.gpus_per_node

    @property
    def num_places(self) -> int:
        """Number of ranks that train when nothing has failed: those before the first spare one."""
        return (self.nodes - self.spares) * self.gpus_per_node

    def node_of(self, rank: int) -> int:
        """The node that hosts `rank`."""
        return rank // self.gpus_per_node

    def nodes_by_stage(self) -> tuple[frozenset[int], ...]:
        """For every stage the nodes that have a rank of it when nothing has failed."""
        nodes: list[set[int]] = [set() for _ in range(self.pipeline)]
        for rank in range(self.num_places):
            nodes[self.cell_of(rank)[1]].add(self.node_of(rank))
        return tuple(map(frozenset, nodes))

    def ranks_of(self, node: int) -> range:
        """The ranks that `node` hosts."""
        return range(node * self.gpus_per_node, (node + 1) * self.gpus_per_node)

    def cell_of(self, rank: int) -> tuple[int, int]:
        """(replica, stage) of `rank`, which is no spare one, when nothing has failed.

        Diagonal, so that the ranks of one node differ in replica and in stage wherever the shape allows it: the loss
        of a node then removes no complete replica, and no stage from all of its holders.
        """
        replica = rank % self.data_parallel
        stage = (rank + rank // lcm(self.data_parallel, self.pipeline)) % self.pipeline
        return replica, stage

    def rank_at(self, replica: int, stage: int) -> int:
        """The rank that holds `stage` of `replica` when nothing has failed."""
        return _ranks_by_cell(self)[replica, stage]

    def stage_layers(self, stage: int) -> range:
        """The layers of `stage`: contiguous, sizes differing by at most one, the larger ones first."""
        base, extra = divmod(self.num_layers, self.pipeline)
        first = stage * base + min(stage, extra)
        return range(first, first + base + (stage < extra))


@lru_cache(maxsize=8)
def _ranks_by_cell(cluster: Cluster) -> dict[tuple[int, int], int]:
    return {cluster.cell_of(rank): rank for rank in range(cluster.num_places)}


@dataclass(frozen=True, slots=True)
class Span:
    """Layers `first` up to but without `end`, held by `rank` in one replica; those in `degraded` run approximated.

    Those of them that are in `recomputed` too compute gate and up again in the backward pass instead of storing them;
    with `recomputes_fully` the whole of their feed-forward part, down projection included. Those in `projected` are
    exact but for the weight gradients of their feed-forward part, which are low-rank.
    """

    rank: int
    first: int
    end: int
    degraded: frozenset[int] = frozenset()
    recomputed: frozenset[int] = frozenset()
    recomputes_fully: bool = False
    projected: frozenset[int] = frozenset()

    @property
    def layers(self) -> range:
        """The layers of this span."""
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True)
class Replica:
    """One data-parallel copy of the model: its spans in pipeline order, and its share of every step's microbatches."""

    replica: int
    spans: tuple[Span, ...]
    num_microbatches: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The active replicas of a job. A rank that appears in no span is idle.

    `stand_ins`: (rank that lost its place in the configured layout, rank that has it now), ascending.
    Microbatches go to the replicas in order, unless an `assignment` says who computes which.
    """

    num_layers: int
    replicas: tuple[Replica, ...]
    stand_ins: tuple[tuple[int, int], ...] = ()
    assignment: Assignment | None = field(default=None, metadata=LEFT_OUT)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one step over all replicas."""
        return sum(replica.num_microbatches for replica in self.replicas)

    @property
    def num_degraded_layers(self) -> int:
        """Degraded layers, counted once per replica that degrades them."""
        return sum(len(span.degraded) for replica in self.replicas for span in replica.spans)

    @property
    def num_projected_layers(self) -> int:
        """Projected layers, counted once per replica that projects them."""
        return sum(len(span.projected) for replica in self.replicas for span in replica.spans)

    def ranks(self) -> frozenset[int]:
        """All ranks that hold something."""
        return frozenset(span.rank for replica in self.replicas for span in replica.spans)

    def find(self, rank: int) -> tuple[Replica, int] | None:
        """(replica, position in its pipeline) of `rank`, or None when it is idle."""
        for replica in self.replicas:
            for position, span in enumerate(replica.spans):
                if span.rank == rank:
                    return replica, position
        return None

    def microbatches_of(self, replica: int) -> Sequence[int]:
        """The microbatches of a step that `replica` computes, as indices into the step's microbatches."""
        if self.assignment is not None:
            shards = shards_of(len(self.assignment.orders), self.num_microbatches)
            return [index for held in self.assignment.types_of(replica) for index in shards[held]]
        first = 0
        for candidate in self.replicas:
            if candidate.replica == replica:
                return range(first, first + candidate.num_microbatches)
            first += candidate.num_microbatches
        raise KeyError(replica)

    def units(self, rank: int) -> tuple[str, ...]:
        """The units that `rank` holds, in pipeline order: `embedding`, `layer.0`, ..., `head`."""
        place = self.find(rank)
        if place is None:
            return ()
        span = place[0].spans[place[1]]
        head = (HEAD,) if span.end == self.num_layers else ()
        embedding = (EMBEDDING,) if span.first == 0 else ()
        return (*embedding, *(layer_unit(layer) for layer in span.layers), *head)

    def holders(self) -> dict[str, tuple[int, ...]]:
        """For every unit the ranks that hold it, ascending."""
        holders: dict[str, list[int]] = {}
        for rank in sorted(self.ranks()):
            for unit in self.units(rank):
                holders.setdefault(unit, []).append(rank)
        return {unit: tuple(ranks) for unit, ranks in holders.items()}

    def check(self, cluster: Cluster, alive: Iterable[int]) -> None:
        """Assert the invariants of a layout.

        Raises:
            LayoutError: a layer is held not exactly once in some replica, a span is held by a rank that is not alive or
                holds another one, or the microbatches of a step are not covered exactly once.
        """
        alive = frozenset(alive)
        seen: set[int] = set()
        for replica in self.replicas:
            expected = 0
            for span in replica.spans:
                if span.first != expected or span.end <= span.first:
                    raise LayoutError(f"replica {replica.replica}: span {span} does not continue at layer {expected}")
                if span.rank not in alive:
                    raise LayoutError(f"rank {span.rank} is not alive but holds layers {span.first}-{span.end - 1}")
                if span.rank in seen:
                    raise LayoutError(f"rank {span.rank} holds two spans")
                if not span.degraded <= set(span.layers):
                    raise LayoutError(f"rank {span.rank} degrades layers that it does not hold")
                if not span.recomputed <= span.degraded:
                    raise LayoutError(f"rank {span.rank} recomputes layers that it does not degrade")
                if not span.projected <= set(span.layers) - span.degraded:
                    raise LayoutError(f"rank {span.rank} projects layers that it does not hold, or degrades too")
                seen.add(span.rank)
                expected = span.end
            if expected != self.num_layers:
                raise LayoutError(f"replica {replica.replica} ends at layer {expected} of {self.num_layers}")
            if replica.num_microbatches < 0:
                raise LayoutError(f"replica {replica.replica} has a negative number of microbatches")
        if self.num_microbatches != cluster.num_microbatches:
            raise LayoutError(f"{self.num_microbatches} microbatches planned, a step has {cluster.num_microbatches}")
        computed = [self.microbatches_of(replica.replica) for replica in self.replicas]
        if sorted(index for own in computed for index in own) != list(range(self.num_microbatches)):
            raise LayoutError("a microbatch of the step is not computed exactly once")
        if any(len(own) != replica.num_microbatches for own, replica in zip(computed, self.replicas, strict=True)):
            raise LayoutError("a replica computes another number of microbatches than it has")


@lru_cache(maxsize=8)
def configured_layout(cluster: Cluster) -> Layout:
    """The layout of `cluster` when nothing has failed; the first replicas take the microbatches that are left over."""
    shares = split_evenly(cluster.num_microbatches, cluster.data_parallel)
    stages = [cluster.stage_layers(stage) for stage in range(cluster.pipeline)]
    return Layout(
        num_layers=cluster.num_layers,
        replicas=tuple(
            Replica(
                replica,
                tuple(
                    Span(cluster.rank_at(replica, stage), layers.start, layers.stop)
                    for stage, layers in enumerate(stages)
                ),
                share,
            )
            for replica, share in enumerate(shares)
        ),
    )


def layer_unit(layer: int) -> str:
    """The name of a transformer layer as a unit of state."""
    return f"layer.{layer}"


def unit_layer(unit: str) -> int | None:
    """The layer that a unit name stands for, None for embedding and head."""
    return int(unit.removeprefix("layer.")) if unit.startswith("layer.") else None


def unit_order(unit: str) -> int:
    """A key that sorts units in pipeline order."""
    layer = unit_layer(unit)
    return (-1 if unit == EMBEDDING else sys.maxsize) if layer is None else layer


def split_evenly(total: int, parts: int) -> list[int]:
    """`total` as `parts` whole numbers that differ by at most one, the larger ones first."""
    base, extra = divmod(total, parts)
    return [base + (index < extra) for index in range(parts)]


def shards_of(num_types: int, num_microbatches: int) -> list[range]:
    """By shard type its microbatches: what each replica computes when nothing has failed."""
    ends = list(accumulate(split_evenly(num_microbatches, num_types)))
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, slots=True)
class Transfer:
    """`share` of `unit` goes from rank `source` to rank `destination`."""

    unit: str
    source: int
    destination: int
    share: Share = WHOLE
