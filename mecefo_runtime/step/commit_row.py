"""What the commit exchange carries: a row of numbers of every member, and their sum.

By position: first the figures of the whole step, then a part for each member, which only that member fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from mecefo_runtime.job.snapshot_interval import NO_SNAPSHOT_COSTS, NUM_SNAPSHOT_COSTS, SnapshotCosts
from mecefo_runtime.job.step_report import PART_SIZE, PartHealth, StepStats, StepTotals, StepVerdict
from mecefo_runtime.step.health import Judgement

WANTS_BOUNDARY, IS_BUSY, VERDICT, _SQUARED_NORM, _LOSS_SUM, _TOKENS, _SAMPLES, _CHECKSUM, _PARTS = range(9)
# How well a member's part went, when it came to the exchange, by its device and by the clock, of which step its newest
# snapshot is, and what snapshots cost it.
_MEMBER_SIZE = PART_SIZE + 3 + NUM_SNAPSHOT_COSTS
_SNAPSHOT_STEP = PART_SIZE + 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step went, the same for all members but for the leader's `judgement`.

    `all_called`: every member has seen the call to park at this boundary. `can_save`: nobody is still writing a
    checkpoint. `snapshot_step`: the newest step of which all have a snapshot, 0: there is none; `snapshot_costs`: what
    one takes those whom it takes longest.
    """

    verdict: StepVerdict
    all_called: bool
    can_save: bool
    judgement: Judgement | None = None
    snapshot_step: int = 0
    snapshot_costs: SnapshotCosts = NO_SNAPSHOT_COSTS


def neutral_row(num_members: int) -> list[float]:
    """The row of a member that adds nothing."""
    return [0.0] * (_PARTS + _MEMBER_SIZE * num_members)


def to_tensor(row: Sequence[float]) -> Tensor:
    """A row as it is exchanged."""
    return torch.tensor(row, dtype=torch.float64)


def put_totals(row: list[float], squared_norm: float, stats: StepStats | None) -> None:
    """Put in what counts of one member only: the norm of its gradients, and what the step came to."""
    row[_SQUARED_NORM] = squared_norm
    if stats is not None:
        row[_LOSS_SUM : _CHECKSUM + 1] = [stats.loss_sum, stats.tokens, stats.samples, stats.checksum]


def totals_of(row: Sequence[float]) -> StepTotals:
    """What a sum of rows says of a step that is fit to be committed."""
    counts = (int(row[place]) for place in (_TOKENS, _SAMPLES, _CHECKSUM))
    stats = StepStats(row[_LOSS_SUM], *counts)
    return StepTotals(row[_SQUARED_NORM], stats, StepVerdict(int(row[VERDICT])))


def put_part(
    row: list[float],
    place: int,
    part: PartHealth,
    began: tuple[float, float],
    snapshot_step: int,
    snapshot_costs: SnapshotCosts,
) -> None:
    """Put in the part of the member at `place`, which came to the exchange when it `began`.

    `snapshot_step` is that of its newest complete snapshot; 0: it has none.
    """
    first = _PARTS + _MEMBER_SIZE * place
    row[first : first + _MEMBER_SIZE] = [*part.encode(), *began, snapshot_step, *astuple(snapshot_costs)]


def to_judge(row: Sequence[float], members: Sequence[int]) -> tuple[float, float, dict[int, PartHealth]]:
    """(loss sum, squared norm, how well the part of each of `members` went): finite or not."""
    places = range(_PARTS, len(row), _MEMBER_SIZE)
    parts = {
        member: PartHealth.decode(row[place : place + PART_SIZE]) for member, place in zip(members, places, strict=True)
    }
    return row[_LOSS_SUM], row[_SQUARED_NORM], parts


def last_began(row: Sequence[float]) -> tuple[float, float]:
    """When the last member came: by its device, and by the clock."""
    device, clock = (max(row[_PARTS + PART_SIZE + index :: _MEMBER_SIZE]) for index in range(2))
    return device, clock


def outcome_of(row: Sequence[float], num_members: int, judgement: Judgement | None) -> Outcome:
    """What a sum of rows says of how the step went."""
    return Outcome(
        StepVerdict(int(row[VERDICT])),
        all_called=row[WANTS_BOUNDARY] == num_members,
        can_save=row[IS_BUSY] == 0,
        judgement=judgement,
        # What every member has.
        snapshot_step=int(min(row[_PARTS + _SNAPSHOT_STEP :: _MEMBER_SIZE])),
        snapshot_costs=SnapshotCosts.greatest(
            [
                SnapshotCosts(*row[first : first + NUM_SNAPSHOT_COSTS])
                for first in range(_PARTS + _SNAPSHOT_STEP + 1, len(row), _MEMBER_SIZE)
            ]
        ),
    )
