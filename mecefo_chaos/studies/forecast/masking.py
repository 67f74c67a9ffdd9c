"""Strategies that mask the loss of a whole data-parallel group: other holders of its shards compute them.

A group is a unit here: it is out as soon as one of its ranks is lost, and until all of them are back. So what an event
costs goes with the number of groups, not with that of ranks.

`Spare` is SPARe (arXiv 2603.00357) as the runtime has it: a step takes as many layers of the stacks as the least depth
at which the groups that are left can compute every shard (`mecefo_runtime.stacks`). `Replication` is what the paper
compares with, a model alone: groups are in sets of r, and each computes the shards of its whole set, so that a step
takes r times the compute, and nothing changes as long as one group of a set is left. In both a loss leaves what the
others have computed of the step, and the state of a group that is back comes from a peer while all wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Protocol

import numpy as np

from mecefo_chaos.studies.forecast.layouts import Change
from mecefo_chaos.studies.forecast.model import REPLICATION, SPARE, JobModel, Rating
from mecefo_chaos.studies.forecast.pipeline import rate_configured
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, split_evenly
from mecefo_runtime.prediction.step_time import state_bytes
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import least_depth, original_stacks, reorder
from mecefo_runtime.stacks.rulers import largest_redundancy

# What the paper found to be the best for 200, 600 and 1,000 groups.
REPLICATION_REDUNDANCY = 3
# Costs must be positive.
_NOTHING = 1e-12


class _Masking:
    """What both have in common: how long a step of so many shards takes, and a group's way back."""

    def __init__(self, job: JobModel, redundancy: int) -> None:
        self._cluster = job.cluster
        self._job = job
        self.redundancy = redundancy

    def _rate(self, depth: int, num_groups: int) -> Rating:
        """With `depth` shards for each of the groups, of which `num_groups` are left."""
        cluster = self._cluster
        num_microbatches = -(-cluster.num_microbatches // cluster.data_parallel)
        return rate_configured(self._job, depth * num_microbatches, num_groups)

    def _fetch_seconds(self) -> float:
        """How long a group takes to fetch its state: its ranks at once, each from one of another group."""
        cluster, costs = self._cluster, self._job.costs
        largest_bytes = max(
            state_bytes(len(cluster.stage_layers(stage)), stage == 0, stage == cluster.pipeline - 1, costs)
            for stage in range(cluster.pipeline)
        )
        return largest_bytes / costs.transfer_bytes_per_second


class Spare(_Masking):
    """Stacked shards; the redundancy is by default the one that the paper finds best, as far as it can be had."""

    def __init__(self, job: JobModel, redundancy: int | None = None) -> None:
        self._placement = Placement.of(job.cluster.data_parallel, redundancy)
        super().__init__(job, self._placement.redundancy)
        self._stacks = original_stacks(self._placement)
        self._rated = cache(self._rate)
        self._depths: dict[frozenset[int], int | None] = {}

    @property
    def free(self) -> Rating:
        """Without failures: redundancy costs nothing."""
        return self._rated(1, self._cluster.data_parallel)

    def rating(self, dead: frozenset[int]) -> Rating | None:
        """With the groups of the `dead` ranks masked; None: a shard is lost, or there are not groups enough for all."""
        lost = groups_of(self._cluster, dead)
        depth = self._depth(lost)
        return None if depth is None else self._rated(depth, self._cluster.data_parallel - len(lost))

    def change(self, before: frozenset[int], after: frozenset[int]) -> Change:
        """After a loss nothing moves, and whoever has a shard more computes all of that one."""
        were, are = (groups_of(self._cluster, dead) for dead in (before, after))
        depth = self._depth(are)
        if depth is None:
            return Change(is_lost=True)
        num_left = self._cluster.data_parallel - len(are)
        owed_seconds = self._rated(depth, num_left).compute_seconds
        if depth > 1:
            owed_seconds -= self._rated(depth - 1, num_left).compute_seconds
        return Change(
            transfer_seconds=self._fetch_seconds() if were - are else 0.0,
            kept_ratio=1.0,
            owed_seconds=owed_seconds if are - were else 0.0,
        )

    def _depth(self, lost: frozenset[int]) -> int | None:
        if lost not in self._depths:
            self._depths[lost] = self._least_depth(lost)
        return self._depths[lost]

    def _least_depth(self, lost: frozenset[int]) -> int | None:
        num_groups = self._cluster.data_parallel
        if len(lost) == num_groups:
            return None
        least = least_depth(num_groups, num_groups - len(lost))
        if self._can_take_over(lost, least):
            return least
        alive = np.ones(num_groups, dtype=np.bool_)
        alive[list(lost)] = False
        found = reorder(self._stacks, alive)
        return None if found is None else found.depth

    def _can_take_over(self, lost: Iterable[int], depth: int) -> bool:
        """Whether the others find a place for the lost shards without giving up their own: mostly so, soon said."""
        num_groups = self._cluster.data_parallel
        load = Counter(dict.fromkeys(lost, depth))
        for shard in lost:
            holders = [(shard - offset) % num_groups for offset in self._placement.offsets]
            chosen = min(holders, key=lambda group: load.get(group, 1))
            load[chosen] = load.get(chosen, 1) + 1
            if load[chosen] > depth:
                return False
        return True


class Replication(_Masking):
    """Sets of as many groups as the redundancy says, and of one more where they do not come out even.

    In a larger set each group leaves out one shard: all sets lose one when as many groups as that are gone.
    """

    def __init__(self, job: JobModel, redundancy: int | None = None) -> None:
        num_groups = job.cluster.data_parallel
        wanted = REPLICATION_REDUNDANCY if redundancy is None else redundancy
        super().__init__(job, min(wanted, num_groups))
        sizes = split_evenly(num_groups, num_groups // self.redundancy)
        self._set_of = [number for number, size in enumerate(sizes) for _ in range(size)]
        self._free = self._rate(self.redundancy, num_groups)

    @property
    def free(self) -> Rating:
        """Without failures, with all the copies."""
        return self._free

    def rating(self, dead: frozenset[int]) -> Rating | None:
        """The same, as long as there is one; None: all copies of a shard are lost."""
        in_set = Counter(self._set_of[group] for group in groups_of(self._cluster, dead))
        return None if max(in_set.values(), default=0) >= self.redundancy else self._free

    def change(self, before: frozenset[int], after: frozenset[int]) -> Change:
        """After a loss nothing moves, and nothing is left to do but what all do anyway."""
        were, are = (groups_of(self._cluster, dead) for dead in (before, after))
        if self.rating(after) is None:
            return Change(is_lost=True)
        return Change(transfer_seconds=self._fetch_seconds() if were - are else 0.0, kept_ratio=1.0)


class _Made(Protocol):
    def __call__(self, job: JobModel, redundancy: int | None = None) -> Spare | Replication: ...


MASKING: Mapping[str, _Made] = {SPARE: Spare, REPLICATION: Replication}


def most_redundancy(name: str, num_groups: int) -> int:
    """The most copies of a shard that `num_groups` can have under that strategy."""
    return largest_redundancy(num_groups) if name == SPARE else num_groups


def job_of_groups(
    num_groups: int,
    microbatches_per_group: int,
    compute_seconds: float,
    reduction_seconds: float,
    fetch_seconds: float,
    tokens_per_step: int,
) -> JobModel:
    """A job in which a group is a rank, alone in its replica and on a node of its own, with a model of one layer.

    A group computes its share of a step in `compute_seconds`, and fetches its state in `fetch_seconds`.
    """
    cluster = Cluster(num_groups, 1, num_groups, 1, 1, num_groups * microbatches_per_group)
    forward_seconds = compute_seconds / microbatches_per_group / 3
    backward_seconds = 2 * forward_seconds
    costs = Costs(
        layer_forward_seconds=forward_seconds,
        layer_backward_seconds=backward_seconds,
        # Of what works inside of groups: nobody asks.
        degraded_forward_seconds=forward_seconds,
        degraded_backward_seconds=backward_seconds,
        recomputed_backward_seconds=backward_seconds,
        fully_recomputed_backward_seconds=backward_seconds,
        # All of the compute is in the layer.
        embedding_forward_seconds=_NOTHING,
        embedding_backward_seconds=_NOTHING,
        head_forward_seconds=_NOTHING,
        head_backward_seconds=_NOTHING,
        layer_update_seconds=_NOTHING,
        layer_checksum_seconds=_NOTHING,
        refresh_seconds=_NOTHING,
        # Only their ratio to the speed matters.
        layer_state_bytes=1,
        embedding_state_bytes=1,
        head_state_bytes=1,
        layer_activation_bytes=1,
        degraded_activation_bytes=1,
        recomputed_activation_bytes=1,
        transfer_bytes_per_second=3 / max(fetch_seconds, _NOTHING),
        commit_seconds=max(reduction_seconds, _NOTHING),
    )
    return JobModel(cluster, costs, tokens_per_step)


def groups_of(cluster: Cluster, dead: Iterable[int]) -> frozenset[int]:
    """The groups that have lost a rank."""
    return frozenset(cluster.cell_of(rank)[0] for rank in dead)
