"""One unit of the model as a rank holds it: parameters and optimizer state.

They live in one flat tensor, so that moving a unit is one message and checking it one checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.model.model import build_unit
from mecefo_runtime.model.segments import Segment, segments
from mecefo_runtime.system.devices import host_bytes

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Slice:
    """A segment's place in its unit's flat tensors, elements `first` up to without `end`."""

    first: int
    end: int
    is_attention: bool
    is_decayed: bool


class UnitState:
    """One unit: its module, whose parameters are views into `storage`, on `device`.

    `storage` is flat: parameters, first moments, second moments (n elements each), then one step count per segment.
    It is as at step 0. Where `is_to_come` says that it will be received or loaded, it is whatever the memory holds, and
    that memory is not touched until then.
    """

    def __init__(self, unit: str, config: JobConfig, device: torch.device = CPU, *, is_to_come: bool = False) -> None:
        self.unit = unit
        self.module: nn.Module = build_unit(unit, config.model, config.seed, device=device, draws=not is_to_come)
        parts = segments(self.module)
        self.num_parameters = sum(parameter.numel() for part in parts for parameter in part.parameters)
        n = self.num_parameters
        make = torch.empty if is_to_come else torch.zeros
        self.storage = make(3 * n + len(parts), device=device)
        self.parameters, self.first_moments, self.second_moments = (self.storage[i * n : (i + 1) * n] for i in range(3))
        self.step_counts = self.storage[3 * n :]
        self.slices = tuple(self._place(parts, must_copy=not is_to_come))
        self._parameters = [parameter for part in parts for parameter in part.parameters]

    def _place(self, parts: Sequence[Segment], *, must_copy: bool) -> Iterable[Slice]:
        offset = 0
        for part in parts:
            first = offset
            for parameter in part.parameters:
                view = self.parameters[offset : offset + parameter.numel()].view(parameter.shape)
                if must_copy:
                    view.copy_(parameter.data)
                parameter.data = view
                offset += parameter.numel()
            yield Slice(first, offset, part.is_attention, part.is_decayed)

    def bind_gradients(self, gradients: Tensor) -> None:
        """Make `gradients` (flat, `num_parameters` elements) what autograd accumulates into."""
        offset = 0
        for parameter in self._parameters:
            parameter.grad = gradients[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()

    def release_gradients(self) -> None:
        """Let go of the memory that autograd accumulates into."""
        for parameter in self._parameters:
            parameter.grad = None

    def vital_sign(self) -> Tensor:
        """A scalar on the device that is not finite if any moment is not; a sum that overflows is none the worse."""
        return torch.dot(self.first_moments, self.second_moments)

    def is_corrupted(self) -> bool:
        """Whether parameters are not finite, or would not be after AdamW's next step, whatever the gradient."""
        # Second moments and step counts, whose neighbours they are, are never negative; what is no number is not >= 0.
        end = 2 * self.num_parameters
        return not (bool(self.storage[:end].isfinite().all()) and bool((self.storage[end:] >= 0).all()))

    def checksum(self) -> int:
        """CRC-32 of parameters and optimizer state."""
        return zlib.crc32(host_bytes(self.storage))
