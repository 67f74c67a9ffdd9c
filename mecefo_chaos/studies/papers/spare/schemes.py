"""Two ways to bear the loss of groups: who holds which shards, whether one is lost, and what is missing in a step."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.claims import Scheme
from mecefo_chaos.studies.papers.spare.closed_forms import endured, endured_by_sets, mean_depth
from mecefo_runtime.job.layout import split_evenly
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import Stacks, original_stacks, reorder

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Masking(Protocol):
    """Groups that bear the loss of some of them."""

    @property
    def depth(self) -> int:
        """How many layers a group computes in a step."""

    @property
    def num_endured(self) -> float:
        """Failures before a wipe-out, by the closed form."""

    @property
    def mean_depth(self) -> float:
        """Layers of a step in the mean, by the closed form."""

    def reset(self) -> None:
        """All groups are there again."""

    def lose(self, groups: Ints) -> None:
        """These are lost."""

    def is_wiped_out(self) -> bool:
        """Whether a shard has no holder left."""

    def repair(self, alive: Mask) -> int:
        """Say how many shards of the step in flight were lost with the groups; who computes what is decided again."""


class Stacked:
    """SPARe; what one move cannot mend is asked of the runtime's own controller."""

    def __init__(self, num_groups: int, redundancy: int, assumptions: Assumptions) -> None:
        self._placement = Placement.of(num_groups, redundancy, assumptions.offsets)
        self._offsets = np.array(self._placement.offsets)
        self._original = original_stacks(self._placement)
        self.reset()

    @property
    def depth(self) -> int:
        """How many layers a group computes in a step."""
        return self._stacks.depth

    @property
    def num_endured(self) -> float:
        """Failures before a wipe-out, by the closed form."""
        return endured(self._placement.num_groups, self._placement.redundancy)

    @property
    def mean_depth(self) -> float:
        """Layers of a step in the mean, by the closed form."""
        return mean_depth(self._placement.num_groups, self.num_endured)

    def reset(self) -> None:
        """All groups are there again."""
        num_groups = self._placement.num_groups
        self._stacks = self._original
        # Of each shard: groups that hold it, and those that compute it.
        self._holders = np.full(num_groups, self._placement.redundancy)
        self._computing = np.ones(num_groups, dtype=np.int64)

    def lose(self, groups: Ints) -> None:
        """These are lost."""
        np.subtract.at(self._holders, (groups[:, None] + self._offsets) % len(self._holders), 1)
        np.subtract.at(self._computing, self._stacks.orders[groups, : self.depth], 1)

    def is_wiped_out(self) -> bool:
        """Whether a shard has no holder left."""
        return not self._holders.all()

    def repair(self, alive: Mask) -> int:
        """Say how many shards of the step in flight were lost with the groups; who computes what is decided again."""
        missing = np.flatnonzero(self._computing == 0)
        if missing.size and not self._bring_forward(missing, alive):
            stacks = reorder(self._stacks, alive)
            assert stacks is not None, "a shard that has a holder can be computed in as many layers as it has shards"
            self._stacks = stacks
            computed = stacks.orders[alive, : stacks.depth]
            self._computing = np.bincount(computed.ravel(), minlength=len(self._computing))
        return missing.size

    def _bring_forward(self, missing: Ints, alive: Mask) -> bool:
        """Whether each missing shard can be computed in place of one that others compute, too; then it is.

        Fewer moves and fewer layers there cannot be, so that is what the controller would find, which takes longer.
        """
        orders, computing, depth = self._stacks.orders.copy(), self._computing.copy(), self.depth
        for shard in missing:
            holders = (shard - self._offsets) % len(alive)
            holders = holders[alive[holders]]
            computed = orders[holders, :depth]
            spare = np.flatnonzero(computing[computed.ravel()] > 1)
            if not spare.size:
                return False
            number, layer = divmod(int(spare[0]), depth)
            stack = orders[holders[number]]
            computing[stack[layer]] -= 1
            computing[shard] += 1
            behind_at = int(np.flatnonzero(stack == shard)[0])
            stack[layer], stack[behind_at] = shard, stack[layer]
        self._stacks, self._computing = Stacks(orders, depth, self._stacks.counted), computing
        return True


class Replicated:
    """Sets of r groups that compute the same r shards; of r + 1 where they do not come out even.

    Then each shard is computed by r of them: all are there as long as not r of the set are lost.
    """

    def __init__(self, num_groups: int, redundancy: int) -> None:
        sizes = split_evenly(num_groups, max(1, num_groups // redundancy))
        self.depth = redundancy
        self.num_endured = endured_by_sets(num_groups, redundancy)
        self.mean_depth = float(redundancy)
        self._set_of = np.repeat(np.arange(len(sizes)), sizes)
        self.reset()

    def reset(self) -> None:
        """All groups are there again."""
        self._left = np.full(self._set_of[-1] + 1, self.depth)

    def lose(self, groups: Ints) -> None:
        """These are lost."""
        np.subtract.at(self._left, self._set_of[groups], 1)

    def is_wiped_out(self) -> bool:
        """Whether a shard has no holder left."""
        return bool(self._left.min() <= 0)

    def repair(self, alive: Mask) -> int:
        """Whoever is left has computed the same."""
        return 0


def masking(scheme: Scheme, num_groups: int, redundancy: int, assumptions: Assumptions) -> Masking:
    """What bears losses.

    Raises:
        ValueError: so many copies do not fit among so few groups.
    """
    if scheme == "spare":
        return Stacked(num_groups, redundancy, assumptions)
    if not 1 <= redundancy <= num_groups:
        raise ValueError(f"a redundancy of {redundancy} does not fit {num_groups} groups")
    return Replicated(num_groups, redundancy)


def num_draws_of(scheme: Scheme, depth: int, assumptions: Assumptions) -> tuple[int, float]:
    """(how often a group's jitter is drawn until the barrier, the spread of their sum in seconds)."""
    if scheme == "replication" and assumptions.jitter == "block":
        return 1, depth * assumptions.layer_seconds * assumptions.jitter_ratio
    return depth, math.sqrt(depth) * assumptions.layer_seconds * assumptions.jitter_ratio
