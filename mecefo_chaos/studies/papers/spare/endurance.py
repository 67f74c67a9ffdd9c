"""The closed forms against orders of failures drawn by chance (Monte-Carlo)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.spare.claims import SIZES
from mecefo_chaos.studies.papers.spare.closed_forms import endured, mean_depth
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import least_depth, original_stacks, reorder
from mecefo_runtime.stacks.rulers import largest_redundancy

# Of each case: the mean of so many is good to 0.8% for r = 2, where draws differ most, and to 0.2% for r = 12.
NUM_DRAWS = 4_000
_DRAWN_AT_ONCE = 500
# Of these, orders in which the controller is asked for the depth wherever it may change: it takes a hundred times as
# long, and finds the lower bound but for one failure in hundreds.
NUM_CONTROLLED = 4


@dataclass(frozen=True, slots=True)
class Endurance:
    """How many failures N groups with r copies of each shard endure, and how deep steps are until then.

    `drawn` is the mean over draws and `standard_error` its own. `depth` in layers is the closed form, `drawn_depth` the
    mean over draws of what it has to be at least until the wipe-out; `excess_depth` is by how much the controller's
    depth is above that, in the draws in which it was asked.
    """

    num_groups: int
    redundancy: int
    closed: float
    drawn: float
    standard_error: float
    depth: float
    drawn_depth: float
    excess_depth: float

    @property
    def error_ratio(self) -> float:
        """Of the closed form: below 0, it says too little."""
        return self.closed / self.drawn - 1

    @property
    def depth_error_ratio(self) -> float:
        """The same of the depth."""
        return self.depth / (self.drawn_depth + self.excess_depth) - 1


def endurances(
    seed: int, num_draws: int = NUM_DRAWS, num_controlled: int = NUM_CONTROLLED, progress: Progress = no_progress
) -> tuple[Endurance, ...]:
    """For every number of copies that fits, of 200, 600 and 1,000 groups."""
    cases = [(size, redundancy) for size in SIZES for redundancy in range(2, largest_redundancy(size) + 1)]
    found = []
    for number, (num_groups, redundancy) in enumerate(cases):
        progress(f"orders of failures, N={num_groups} r={redundancy}", number, len(cases))
        found.append(endurance(num_groups, redundancy, seed, num_draws, num_controlled))
    return tuple(found)


# What a seed draws is drawn once.
@cache
def endurance(num_groups: int, redundancy: int, seed: int, num_draws: int, num_controlled: int) -> Endurance:
    """Of one case."""
    placement = Placement.of(num_groups, redundancy)
    generator = np.random.default_rng([seed, num_groups, redundancy])
    in_order = np.tile(np.arange(num_groups, dtype=np.int32), (_DRAWN_AT_ONCE, 1))
    ranks = [generator.permuted(in_order, axis=1) for _ in range(-(-num_draws // _DRAWN_AT_ONCE))]
    drawn = np.concatenate([num_endured(placement, some) for some in ranks])[:num_draws]
    least = [least_depth(num_groups, num_groups - k) for k in range(num_groups)]
    # By the number of failures endured, of which there always is one.
    least_mean = np.cumsum(least) / np.arange(1, num_groups + 1)
    excess = [
        float(np.mean(depths(placement, np.argsort(rank)[:num]))) - least_mean[num - 1]
        for rank, num in zip(ranks[0][:num_controlled], drawn, strict=False)
    ]
    closed = endured(num_groups, redundancy)
    return Endurance(
        num_groups,
        redundancy,
        closed,
        float(drawn.mean()),
        float(drawn.std(ddof=1) / num_draws**0.5),
        mean_depth(num_groups, closed),
        float(least_mean[drawn - 1].mean()),
        float(np.mean(excess)),
    )


def num_endured(placement: Placement, ranks: NDArray[np.int32]) -> NDArray[np.int32]:
    """Failures that leave every shard a holder; in each row, group g is the `ranks[g]`th to fail, from 0."""
    # A shard is lost with the last of its holders, who are as far behind it as the offsets say.
    last_of_shard = ranks.copy()
    for offset in placement.offsets[1:]:
        np.maximum(last_of_shard[:, offset:], ranks[:, :-offset], out=last_of_shard[:, offset:])
        np.maximum(last_of_shard[:, :offset], ranks[:, -offset:], out=last_of_shard[:, :offset])
    found: NDArray[np.int32] = last_of_shard.min(axis=1)
    return found


def depths(placement: Placement, lost: NDArray[np.int64]) -> list[int]:
    """The depth that the controller finds after 0, 1, ... of these failures; the last of them is not looked at.

    What is enough after a failure is enough before it: so each run of the same lower bound is tried from its end.
    """
    stacks = original_stacks(placement)
    found = [0] * len(lost)
    known = 0
    for k in reversed(range(len(lost))):
        if known != least_depth(placement.num_groups, placement.num_groups - k):
            alive = np.ones(placement.num_groups, dtype=np.bool_)
            alive[lost[:k]] = False
            reordered = reorder(stacks, alive)
            assert reordered is not None, "every shard has a holder"
            known = reordered.depth
        found[k] = known
    return found


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute errors of the closed forms over all numbers of copies, and the largest of them."""

    num_groups: int
    num_cases: int
    endured_ratio: float
    worst_endured: Endurance
    depth_ratio: float
    worst_depth: Endurance


def errors(cases: tuple[Endurance, ...]) -> tuple[Errors, ...]:
    """For each number of groups."""
    found = []
    for num_groups in dict.fromkeys(case.num_groups for case in cases):
        mine = [case for case in cases if case.num_groups == num_groups]
        found.append(
            Errors(
                num_groups,
                len(mine),
                float(np.mean([abs(case.error_ratio) for case in mine])),
                max(mine, key=lambda case: abs(case.error_ratio)),
                float(np.mean([abs(case.depth_error_ratio) for case in mine])),
                max(mine, key=lambda case: abs(case.depth_error_ratio)),
            )
        )
    return tuple(found)
