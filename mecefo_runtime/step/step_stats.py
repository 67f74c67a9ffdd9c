"""Encodes a step's stats as elements behind the head's gradients, so that the same sum over replicas reduces both.

Each rank with the head's reduced gradients has the step's stats, and a step that survivors commit after a loss is as
well known as any other. The sum is done in float32, where large whole numbers would be rounded: they travel as limbs
of 12 bits, which stay exact for 4096 replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mecefo_runtime.job.step_report import StepStats

_LIMB_BITS = 12
_NUM_LIMBS = 5
STEP_STATS_SIZE = 1 + 3 * _NUM_LIMBS


def encode_stats(stats: StepStats) -> Tensor:
    """As STEP_STATS_SIZE float32 values whose sums decode to the sum of step stats."""
    values = [stats.loss_sum]
    for number in (stats.tokens, stats.samples, stats.checksum):
        values += [float(number >> (_LIMB_BITS * limb) & ((1 << _LIMB_BITS) - 1)) for limb in range(_NUM_LIMBS)]
    return torch.tensor(values, dtype=torch.float32)


def decode_stats(values: Sequence[float]) -> StepStats:
    """Read a sum of encoded step stats."""
    numbers = (
        sum(int(values[1 + field * _NUM_LIMBS + limb]) << (_LIMB_BITS * limb) for limb in range(_NUM_LIMBS))
        for field in range(3)
    )
    return StepStats(values[0], *numbers)
