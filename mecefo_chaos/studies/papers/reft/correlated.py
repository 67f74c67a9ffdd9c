"""Where independent losses are the wrong picture: racks, all holders of a stage, and the time until all is made good.

What is borne the product's own code says. The window is a closed form: while the others have not encoded again,
the group of a lost node bears one less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mecefo_chaos.studies.papers.reft.claims import CORRELATED_RATIO, NODE_MTBF_SECONDS
from mecefo_chaos.studies.papers.reft.sampling import Memory
from mecefo_chaos.studies.papers.reft.schemes import SCHEMES, Scheme
from mecefo_chaos.studies.papers.reft.survival import after, given_losses
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.protection import NUM_PARITIES, Group

NUM_NODES = 64
RACK_SIZES = (4, 8, 16, 32)
# (ranks a node, replicas) of jobs that need the memory when all nodes that hold a stage are lost.
SHAPES = ((1, 2), (8, 2), (8, 4), (8, 8))
WINDOWS_SECONDS = (1.0, 60.0, 3600.0)


@dataclass(frozen=True, slots=True)
class RackRow:
    """Of the racks of `nodes_per_rack`, the share that can be lost whole: `spread` over racks, or `adjacent` nodes."""

    scheme: str
    nodes_per_rack: int
    spread_ratio: float
    adjacent_ratio: float


@dataclass(frozen=True, slots=True)
class StageRow:
    """Of the stages of a job with so many replicas, the share of which all nodes can be lost: no peer is left."""

    scheme: str
    gpus_per_node: int
    data_parallel: int
    borne_ratio: float


@dataclass(frozen=True, slots=True)
class WindowRow:
    """How likely the state in memory is lost after the loss of one node, before the others have encoded again.

    `by_seconds`: where they take so long, and losses are independent. `by_follower`: where another node follows at
    once, which is the share `CORRELATED_RATIO` of failures, any node as likely; `by_rack_mate`: one of its own rack.
    """

    scheme: str
    by_seconds: tuple[float, ...]
    by_follower: float
    by_rack_mate: float


@cache
def rack_rows() -> tuple[RackRow, ...]:
    """Of all schemes and racks."""
    return tuple(
        RackRow(
            scheme.name,
            size,
            _borne_racks(scheme.groups(NUM_NODES, size), size),
            _borne_racks(adjacent_groups(scheme), size),
        )
        for scheme in SCHEMES
        for size in RACK_SIZES
    )


def adjacent_groups(scheme: Scheme) -> tuple[Group, ...]:
    """Groups of nodes that stand beside each other, which the product never forms."""
    size, parities = scheme.group_size, NUM_PARITIES[scheme.protection]
    nodes = [tuple(range(first, min(first + size, NUM_NODES))) for first in range(0, NUM_NODES, size)]
    return tuple(Group(some, min(parities, len(some) - 1)) for some in nodes)


def _borne_racks(groups: Sequence[Group], nodes_per_rack: int) -> float:
    memory = Memory(groups)
    racks = [range(first, first + nodes_per_rack) for first in range(0, NUM_NODES, nodes_per_rack)]
    return sum(memory.survives(rack) for rack in racks) / len(racks)


@cache
def stage_rows() -> tuple[StageRow, ...]:
    """Of all schemes and shapes."""
    found = []
    for gpus_per_node, data_parallel in SHAPES:
        pipeline = NUM_NODES * gpus_per_node // data_parallel
        apart = Cluster(NUM_NODES, gpus_per_node, data_parallel, pipeline, pipeline, data_parallel).nodes_by_stage()
        stages = Counter(apart)
        for scheme in SCHEMES:
            memory = Memory(scheme.groups(NUM_NODES, apart=apart))
            borne = sum(number for nodes, number in stages.items() if memory.survives(nodes))
            found.append(StageRow(scheme.name, gpus_per_node, data_parallel, borne / stages.total()))
    return tuple(found)


@cache
def window_rows(nodes_per_rack: int = 8) -> tuple[WindowRow, ...]:
    """Of all schemes."""
    return tuple(_window(scheme, nodes_per_rack) for scheme in SCHEMES)


def _window(scheme: Scheme, nodes_per_rack: int) -> WindowRow:
    groups = scheme.groups(NUM_NODES, nodes_per_rack)
    hit, others = groups[0], groups[1:]
    left = (Group(hit.nodes[1:], hit.num_parities - 1), *others)
    lost_node = hit.nodes[0]
    mates = [node for node in range(NUM_NODES) if node // nodes_per_rack == lost_node // nodes_per_rack]
    memory = Memory(groups)
    fatal = [not memory.survives((lost_node, mate)) for mate in mates if mate != lost_node]
    return WindowRow(
        scheme.name,
        tuple(1 - after(left, math.exp(-seconds / NODE_MTBF_SECONDS)) for seconds in WINDOWS_SECONDS),
        CORRELATED_RATIO * float(1 - given_losses(left, 1)),
        CORRELATED_RATIO * sum(fatal) / len(fatal),
    )
