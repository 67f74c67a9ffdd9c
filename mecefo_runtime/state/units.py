"""One unit of the model as a rank holds it: parameters and optimizer state.

They live in one flat tensor, so that moving a unit is one message and checking it one checksum. With a sharded
optimizer (ZeRO-1, arXiv 1910.02054, section 5.1) a holder has all parameters, and the moments of its share of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.share import WHOLE, Share
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

    `storage` is flat: n parameters, first and second moments of `share` of them, then one step count per segment.
    It is as at step 0. Where `is_to_come` says that it will be received or loaded, it is whatever the memory holds, and
    that memory is not touched until then. `has_all_parameters`: none waits to come from the holder who updates it.
    """

    def __init__(
        self,
        unit: str,
        config: JobConfig,
        device: torch.device = CPU,
        *,
        is_to_come: bool = False,
        share: Share = WHOLE,
    ) -> None:
        self.unit = unit
        self.module: nn.Module = build_unit(unit, config.model, config.seed, device=device, draws=not is_to_come)
        parts = segments(self.module)
        self.num_parameters = sum(parameter.numel() for part in parts for parameter in part.parameters)
        n = self.num_parameters
        self.share = share
        self.has_all_parameters = True
        # The parameters whose moments are here.
        self.first_owned, self.end_owned = share.extent(n)
        num_owned = self.end_owned - self.first_owned
        make = torch.empty if is_to_come else torch.zeros
        self.storage = make(n + 2 * num_owned + len(parts), device=device)
        sizes = [n, num_owned, num_owned, len(parts)]
        self.parameters, self.first_moments, self.second_moments, self.step_counts = torch.split(self.storage, sizes)
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

    @property
    def owned_parameters(self) -> Tensor:
        """The parameters whose moments are here: this holder updates them."""
        return self.parameters[self.first_owned : self.end_owned]

    def num_elements(self, share: Share) -> int:
        """Elements of `share` of the unit: parameters, their moments, and all step counts."""
        first, end = share.extent(self.num_parameters)
        return 3 * (end - first) + self.step_counts.numel()

    def views(self, share: Share) -> tuple[Tensor, ...]:
        """The tensors that make up `share` of the unit, `num_elements` together; this holder must have its moments."""
        first, end = share.extent(self.num_parameters)
        assert self.first_owned <= first and end <= self.end_owned
        moments = slice(first - self.first_owned, end - self.first_owned)
        return self.parameters[first:end], self.first_moments[moments], self.second_moments[moments], self.step_counts

    def packed(self, share: Share) -> Tensor:
        """`share` of the unit as one flat tensor, which may be a view."""
        return self.storage if share == self.share == WHOLE else torch.cat(self.views(share))

    def load(self, share: Share, content: Tensor) -> None:
        """Take over what is `packed` of `share`: its parameters, and moments as far as they are to be here."""
        first, end = share.extent(self.num_parameters)
        size = end - first
        parameters, first_moments, second_moments, step_counts = torch.split(
            content, [size, size, size, self.step_counts.numel()]
        )
        self.parameters[first:end] = parameters
        low, high = max(first, self.first_owned), min(end, self.end_owned)
        if low < high:
            here = slice(low - self.first_owned, high - self.first_owned)
            self.first_moments[here] = first_moments[low - first : high - first]
            self.second_moments[here] = second_moments[low - first : high - first]
        self.step_counts.copy_(step_counts)

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
        """A scalar on the device that is not finite if any moment is not; an overflow of the sum is harmless."""
        return torch.dot(self.first_moments, self.second_moments)

    def is_corrupted(self) -> bool:
        """Whether parameters are not finite, or would not be after AdamW's next step, whatever the gradient."""
        # Second moments and step counts, whose neighbours they are, are never negative; what is no number is not >= 0.
        end = self.num_parameters + self.first_moments.numel()
        return not (bool(self.storage[:end].isfinite().all()) and bool((self.storage[end:] >= 0).all()))

    def checksum(self) -> int:
        """CRC-32 of what all holders have alike: everything, but for the moments where each has those of its share."""
        if self.share == WHOLE:
            return zlib.crc32(host_bytes(self.storage))
        return zlib.crc32(host_bytes(self.step_counts), zlib.crc32(host_bytes(self.parameters)))
