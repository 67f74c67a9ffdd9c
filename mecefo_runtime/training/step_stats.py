"""What a step consumed and how well it did: loss, tokens, samples and a checksum over the samples.

A step stats rides behind the head's gradients through the same sum over replicas. So whoever has the head's reduced
gradients has the step's step stats, and a step that survivors commit after a loss is known as well as any other. The
sum is done in float32, where large whole numbers would be rounded: they travel as limbs of 12 bits, which stay exact
for 4096 replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LIMB_BITS = 12
_NUM_LIMBS = 5
STEP_STATS_SIZE = 1 + 3 * _NUM_LIMBS


@dataclass(frozen=True, slots=True)
class StepStats:
    """Sums over samples; `loss_sum` in nats over all tokens."""

    loss_sum: float = 0.0
    tokens: int = 0
    samples: int = 0
    checksum: int = 0

    def encode(self) -> Tensor:
        """As TALLY_SIZE float32 values whose sums decode to the sum of step stats."""
        values = [self.loss_sum]
        for number in (self.tokens, self.samples, self.checksum):
            values += [float(number >> (_LIMB_BITS * limb) & ((1 << _LIMB_BITS) - 1)) for limb in range(_NUM_LIMBS)]
        return torch.tensor(values, dtype=torch.float32)

    @classmethod
    def decode(cls, values: Tensor | Sequence[float]) -> StepStats:
        """Read a sum of encoded step stats."""
        raw = values.tolist() if isinstance(values, Tensor) else values
        numbers = (
            sum(int(raw[1 + field * _NUM_LIMBS + limb]) << (_LIMB_BITS * limb) for limb in range(_NUM_LIMBS))
            for field in range(3)
        )
        return cls(raw[0], *numbers)
