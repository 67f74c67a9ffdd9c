"""What a rank holds under one layout: its units, their gradients and the optimizer.

The gradients of all units that a rank holds live in one flat tensor in pipeline order, so that neighbouring units with
the same holders are reduced by one operation. Before they are, the rank's own are copied: a reduction that breaks off
leaves nothing of use in what it was to reduce, and what the rank has computed still counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import HEAD, Layout
from mecefo_runtime.job.share import WHOLE, Share, share_of
from mecefo_runtime.state.unit_optimizer import UnitOptimizer
from mecefo_runtime.state.units import CPU, UnitState

_NORM_PIECE_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring `units` with the same holders: elements `first` up to without `end` of the flat gradients."""

    first: int
    end: int
    holders: tuple[int, ...]
    units: tuple[str, ...]


class ModelState:
    """All units of one rank under one layout, with gradients and optimizer; the rank computes with `computed`.

    Of each unit it has all parameters, and the optimizer state of its share. `stats_size` elements ride behind the
    head's gradients. Units that the rank held before are kept as they are. New ones are built on `device`: as at step
    0, but for those `to_come`, which will be received or loaded. Before a step's gradients are reduced, `enter_step`
    must be called.
    """

    def __init__(
        self,
        config: JobConfig,
        layout: Layout,
        rank: int,
        previous: dict[str, UnitState],
        stats_size: int,
        background: Background | None = None,
        device: torch.device = CPU,
        *,
        to_come: Collection[str] = (),
    ) -> None:
        self.device = device
        self._layout = layout
        self._background = background or Background()
        self.hidden_size = config.model.hidden_size
        self.computed = layout.units(rank)
        names = self._background.units(layout, rank)
        self.units: dict[str, UnitState] = {}
        shares = shares_of(config, layout, rank)
        for name in names:
            unit, share = previous.get(name), shares.get(name, WHOLE)
            if unit is None or unit.share != share:
                unit = UnitState(name, config, device, is_to_come=name in to_come, share=share)
            if name in to_come:
                unit.has_all_parameters = True
            self.units[name] = unit
        self._first_steps = {shadow.unit: shadow.step for shadow in self._background.of(rank)}
        self.holders: dict[str, tuple[int, ...]] = {}
        self.buckets: tuple[Bucket, ...] = ()
        sizes = [unit.num_parameters for unit in self.units.values()]
        # The step's stats are reduced with the head's gradients: who has those has the step's loss and samples.
        stats_size = stats_size if HEAD in self.units else 0
        self.gradients = torch.zeros(sum(sizes) + stats_size, device=device)
        # What this rank had computed when the reduction began; the memory is not touched before there is one.
        self._own = torch.empty(sum(sizes), device=device)
        self._are_reduced = False
        self.stats = self.gradients[sum(sizes) :]
        self.offsets: dict[str, int] = {}
        offset = 0
        for name, unit in self.units.items():
            self.offsets[name] = offset
            unit.bind_gradients(self.gradients[offset : offset + unit.num_parameters])
            offset += unit.num_parameters
        self._stats_size = stats_size
        self.enter_step(0)
        self.optimizer = UnitOptimizer(config, self.units, {name: self._gradient_of(name) for name in self.units})

    def release(self) -> None:
        """Release the units, the gradients and the optimizer, even if this state is still referred to."""
        # Replaced, where others may know them; cleared, where this state alone does.
        self.units, self.computed, self.holders, self.buckets = {}, (), {}, ()
        self.gradients = self.stats = self._own = self.gradients.new_empty(0)
        self.optimizer.release()

    def begin_gradients(self, carried: Mapping[str, Tensor]) -> None:
        """Let this rank's own gradients be zero, or what is `carried` of a unit: what is computed now is added."""
        self._are_reduced = False
        self.gradients.zero_()
        for name, gradient in carried.items():
            self._gradient_of(name).copy_(gradient)

    def begin_reduction(self) -> None:
        """Keep this rank's own gradients: from now on `gradients` are what all holders' come to."""
        self._own.copy_(self.gradients[: self._own.numel()])
        self._are_reduced = True

    def own_gradients(self) -> dict[str, Tensor]:
        """By unit what this rank has computed, flat; it stays what it is when this state is released."""
        flat = self._own if self._are_reduced else self.gradients
        return {name: flat[self.offsets[name] :][: self.units[name].num_parameters] for name in self.computed}

    def enter_step(self, step: int) -> None:
        """Shadows take part from their first step on: know with whom each unit is reduced in `step`."""
        if self.holders and not self._background:
            return
        holders = self._background.holders(self._layout, step)
        live = {name: holders[name] for name in self.units if self._first_steps.get(name, 0) <= step}
        if live != self.holders:
            self.holders = live
            self.buckets = tuple(self._buckets())

    def _buckets(self) -> Iterable[Bucket]:
        names = list(self.units)
        index = 0
        while index < len(names):
            first, holders = index, self.holders.get(names[index])
            while index < len(names) and self.holders.get(names[index]) == holders:
                index += 1
            if holders is None:
                continue
            last = names[index - 1]
            end = self.offsets[last] + self.units[last].num_parameters
            yield Bucket(
                self.offsets[names[first]],
                end + (self._stats_size if last == HEAD else 0),
                holders,
                tuple(names[first:index]),
            )

    @property
    def has_live_stats(self) -> bool:
        """Whether this rank reduces the head, and with it the step stats, in the present step."""
        return HEAD in self.holders

    @property
    def shares(self) -> dict[str, Share]:
        """Of each unit that this rank reduces in the present step, the share that it updates."""
        return {name: self.units[name].share for name in self.holders}

    def gradient_norm(self) -> Tensor:
        """The norm of this rank's own gradients, before they are reduced: a scalar on the device."""
        size = self.gradients.numel() - self.stats.numel()
        norm: Tensor = torch.linalg.vector_norm(self.gradients[:size])
        return norm

    def settled_units(self, step: int) -> tuple[str, ...]:
        """The units that this rank has had since before `step`, in pipeline order."""
        return tuple(name for name in self.holders if self._first_steps.get(name, 0) < step)

    def units_by_holders(self, step: int) -> dict[tuple[int, ...], tuple[str, ...]]:
        """The settled units by the ranks that have had them since before `step`, in the same order for all of these."""
        holders = self._background.holders(self._layout, step - 1)
        names = self.settled_units(step)
        return {ranks: tuple(n for n in names if holders[n] == ranks) for ranks in sorted({holders[n] for n in names})}

    def squared_norms(self) -> dict[str, Tensor]:
        """Per unit the sum of squares of its reduced gradient, a scalar on the device.

        Equal on all holders, to rounding.
        """
        return {name: _squared_norm(self._gradient_of(name)) for name in self.holders}

    def _gradient_of(self, name: str) -> Tensor:
        return self.gradients[self.offsets[name] : self.offsets[name] + self.units[name].num_parameters]

    def apply(self, learning_rate: float, clip_ratio: float) -> None:
        """One AdamW step with gradients scaled by `clip_ratio`.

        A shadow stays as it is before its first step.
        """
        if clip_ratio < 1.0:
            self.gradients.mul_(clip_ratio)
        self.optimizer.step(learning_rate, self.holders)
        for unit in self.units.values():
            unit.has_all_parameters = unit.share == WHOLE

    def gather_parameters(self, groups: Groups) -> None:
        """After the optimizer's step: get the parameters that other holders have updated.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: one of them is gone.
        """
        for bucket in self.buckets:
            units = [self.units[name] for name in bucket.units]
            if all(unit.has_all_parameters for unit in units):
                continue
            for unit, share, parameters in _gather(groups, bucket, units, lambda unit: (unit.owned_parameters,)):
                first, end = share.extent(unit.num_parameters)
                unit.parameters[first:end] = parameters
            for unit in units:
                unit.has_all_parameters = True

    def gather_storages(self, groups: Groups, wanted: Collection[str]) -> dict[str, Tensor]:
        """The storages of the units `wanted` as if nobody shared the optimizer; all holders take part.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: one of them is gone.
        """
        found: dict[str, Tensor] = {}
        for bucket in self.buckets:
            units = [self.units[name] for name in bucket.units]
            if len(bucket.holders) == 1 or units[0].share == WHOLE:
                continue
            moments = _gather(groups, bucket, units, lambda unit: (unit.first_moments, unit.second_moments))
            for unit, share, content in moments:
                if unit.unit not in wanted:
                    continue
                n = unit.num_parameters
                if unit.unit not in found:
                    found[unit.unit] = torch.empty(unit.num_elements(WHOLE))
                    found[unit.unit][:n] = unit.parameters
                    found[unit.unit][3 * n :] = unit.step_counts
                first, end = share.extent(n)
                found[unit.unit][n + first : n + end], found[unit.unit][2 * n + first : 2 * n + end] = content.chunk(2)
        return found


def _gather(
    groups: Groups, bucket: Bucket, units: Sequence[UnitState], part: Callable[[UnitState], tuple[Tensor, ...]]
) -> Iterator[tuple[UnitState, Share, Tensor]]:
    """What each holder of `bucket` has as its `part` of each unit: so many elements per parameter of its share."""
    num_holders = len(bucket.holders)
    num_tensors = len(part(units[0]))
    # Of one size, for all of them; shares differ by one element.
    sent = torch.zeros(num_tensors * sum(-(-unit.num_parameters // num_holders) for unit in units))
    offset = 0
    for unit in units:
        for tensor in part(unit):
            sent[offset : offset + tensor.numel()] = tensor
            offset += tensor.numel()
    received = groups.all_gather(sent, bucket.holders)
    for holder in bucket.holders:
        share, offset = share_of(holder, bucket.holders), 0
        for unit in units:
            first, end = share.extent(unit.num_parameters)
            size = num_tensors * (end - first)
            yield unit, share, received[holder][offset : offset + size]
            offset += size


def shares_of(config: JobConfig, layout: Layout, rank: int) -> dict[str, Share]:
    """Of each unit that `rank` holds the share whose optimizer state it has; empty: it has that of all of them."""
    if not config.sharded_optimizer:
        return {}
    return {name: share_of(rank, ranks) for name, ranks in layout.holders().items() if rank in ranks}


def _squared_norm(gradient: Tensor) -> Tensor:
    """The sum of squares of a flat tensor, to seven digits, without a copy of it: a float64 scalar on its device.

    On the CPU summed in float32 within a piece and in float64 over pieces: `square().sum(dtype=float64)` makes two
    copies, one of them in float64, and takes seven times as long. A GPU's sum is a tree, and as exact in float32.
    """
    if gradient.is_cuda:
        norm: Tensor = torch.linalg.vector_norm(gradient)
        return norm.double().square()
    pieces = torch.split(gradient, _NORM_PIECE_ELEMENTS)
    return torch.tensor(math.fsum(float(torch.dot(piece, piece)) for piece in pieces), dtype=torch.float64)
