"""The commit exchange: every member adds its part, and no member gets the sum before all have added theirs.

A member that has the sum therefore knows that all members have their reduced gradients (see `commit`). It goes
through the leader: two hops, where a ring over n members takes 2 (n - 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import wait_all

# Between the tags of activations and those of state.
_COMMIT_TAG = 1 << 18


def exchange(
    groups: Groups, leader: int, part: Tensor, decide: Callable[[Tensor], None] = lambda total: None
) -> Tensor:
    """The sum of every member's `part` (equal shapes), in the same order of addition for all.

    `part` lies in host memory, so this goes by gloo, whatever carries the rest. The leader calls `decide`, which may
    change the sum in place, before anybody else gets it.

    Raises:
        mecefo_runtime.comm.operations.EpochBroken: a member is gone; then nobody may have the sum, or some.
    """
    if groups.rank != leader:
        total = torch.empty_like(part)
        sending = groups.send(part, leader, _COMMIT_TAG)
        wait_all([groups.start_receive(total, leader, _COMMIT_TAG + 1), sending])
        return total
    others = [member for member in groups.members if member != leader]
    received = [torch.empty_like(part) for _ in others]
    wait_all([groups.start_receive(t, member, _COMMIT_TAG) for t, member in zip(received, others, strict=True)])
    total = part
    for tensor in received:
        total = total + tensor
    decide(total)
    wait_all([groups.send(total, member, _COMMIT_TAG + 1) for member in others])
    return total
