"""What a rank holds: parameters and optimizer state by unit, their gradients, and how units move between ranks.

A unit's parameters, both AdamW moments and step counts live in one flat tensor, so that moving a unit is one message
and checking it one checksum. The gradients of all units that a rank holds live in one flat tensor in pipeline order,
so that neighbouring units with the same holders are reduced by one operation.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mecefo_runtime.config import JobConfig
from mecefo_runtime.groups import EpochBroken, Groups, wait
from mecefo_runtime.layout import HEAD, Layout, Transfer, unit_layer
from mecefo_runtime.model import Segment, build_unit, segments

# Tags of state messages start here: activations use the lower ones.
STATE_TAG = 1 << 20


class StateCorrupt(RuntimeError):
    """State arrived with another checksum than it was sent with."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A segment's place in its unit's flat tensors, elements `first` up to without `end`."""

    first: int
    end: int
    is_attention: bool
    is_decayed: bool


class UnitState:
    """One unit: its module, whose parameters are views into `storage`.

    `storage` is flat: parameters, first moments, second moments (n elements each), then one step count per segment.
    """

    def __init__(self, unit: str, config: JobConfig) -> None:
        self.unit = unit
        self.module: nn.Module = build_unit(unit, config.model, config.seed)
        parts = segments(self.module)
        self.num_parameters = sum(parameter.numel() for part in parts for parameter in part.parameters)
        n = self.num_parameters
        self.storage = torch.zeros(3 * n + len(parts))
        self.parameters, self.first_moments, self.second_moments = (self.storage[i * n : (i + 1) * n] for i in range(3))
        self.step_counts = self.storage[3 * n :]
        self.slices = tuple(self._place(parts))
        self._parameters = [parameter for part in parts for parameter in part.parameters]

    def _place(self, parts: Sequence[Segment]) -> Iterable[Slice]:
        offset = 0
        for part in parts:
            first = offset
            for parameter in part.parameters:
                view = self.parameters[offset : offset + parameter.numel()].view(parameter.shape)
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

    def checksum(self) -> int:
        """CRC-32 of parameters and optimizer state."""
        return zlib.crc32(self.storage.numpy().data)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Neighbouring units with the same holders: elements `first` up to without `end` of the flat gradients."""

    first: int
    end: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionShare:
    """The attention gradients of one unit, and what restores their mean over N(l) (arXiv 2510.16415, section 4.1).

    `scale` is samples of all replicas over samples of those whose layer is not degraded, None when all are degraded.
    """

    first: int
    end: int
    scale: float | None


class Bank:
    """All units of one rank under one layout, with gradients and optimizer.

    `tally_size` elements ride behind the head's gradients. Units that the rank held before are kept as they are; new
    ones are built as at step 0, to be overwritten by transfers.
    """

    def __init__(
        self, config: JobConfig, layout: Layout, rank: int, previous: dict[str, UnitState], tally_size: int
    ) -> None:
        self._config = config
        self.hidden_size = config.model.hidden_size
        names = layout.units(rank)
        self.units: dict[str, UnitState] = {}
        for name in names:
            self.units[name] = previous.get(name) or UnitState(name, config)
        holders = layout.holders()
        self.holders = {name: holders[name] for name in names}
        sizes = [unit.num_parameters for unit in self.units.values()]
        # The tally is reduced with the head's gradients, so that whoever has those has the step's loss and samples too.
        tally_size = tally_size if HEAD in self.units else 0
        self.gradients = torch.zeros(sum(sizes) + tally_size)
        self.tally = self.gradients[sum(sizes) :]
        self.offsets: dict[str, int] = {}
        offset = 0
        for name, unit in self.units.items():
            self.offsets[name] = offset
            unit.bind_gradients(self.gradients[offset : offset + unit.num_parameters])
            offset += unit.num_parameters
        self.buckets = tuple(self._buckets(tally_size))
        self.attention_shares = {
            name: share for name in names if (share := self._attention_share(name, layout)) is not None
        }
        self._optimizer = self._build_optimizer()

    def _buckets(self, tally_size: int) -> Iterable[Bucket]:
        names = list(self.units)
        for index, name in enumerate(names):
            if index and self.holders[names[index - 1]] == self.holders[name]:
                continue
            end_index = index
            while end_index < len(names) and self.holders[names[end_index]] == self.holders[name]:
                end_index += 1
            last = names[end_index - 1]
            end = self.offsets[last] + self.units[last].num_parameters
            if end_index == len(names):
                end += tally_size
            yield Bucket(self.offsets[name], end, self.holders[name])

    def _attention_share(self, name: str, layout: Layout) -> AttentionShare | None:
        """None when nobody degrades the unit: then a plain sum is the mean."""
        layer = unit_layer(name)
        attention = [part for part in self.units[name].slices if part.is_attention]
        if layer is None or not attention:
            return None
        exact = sum(
            replica.num_microbatches
            for replica in layout.replicas
            for span in replica.spans
            if layer in span.layers and layer not in span.degraded
        )
        if exact == layout.num_microbatches:
            return None
        offset = self.offsets[name]
        scale = layout.num_microbatches / exact if exact else None
        return AttentionShare(offset + attention[0].first, offset + attention[-1].end, scale)

    def _build_optimizer(self) -> torch.optim.AdamW:
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        self._segments: list[tuple[str, bool, Tensor, Tensor]] = []
        moments: dict[Tensor, dict[str, Tensor]] = {}
        for name, unit in self.units.items():
            for index, part in enumerate(unit.slices):
                flat = unit.parameters[part.first : part.end]
                gradient = self.gradients[self.offsets[name] + part.first : self.offsets[name] + part.end]
                groups[part.is_decayed].append(flat)
                moments[flat] = {
                    "step": unit.step_counts[index],
                    "exp_avg": unit.first_moments[part.first : part.end],
                    "exp_avg_sq": unit.second_moments[part.first : part.end],
                }
                self._segments.append((name, part.is_attention, flat, gradient))
        optimizer = torch.optim.AdamW(
            [
                {"params": groups[True], "weight_decay": self._config.weight_decay},
                {"params": groups[False], "weight_decay": 0.0},
            ],
            lr=self._config.learning_rate,
            betas=self._config.betas,
            fused=True,
        )
        optimizer.state.update(moments)
        return optimizer

    def squared_norms(self) -> dict[str, float]:
        """Per unit the sum of squares of its reduced gradient; equal on all holders."""
        return {name: float(self._gradient_of(name).square().sum(dtype=torch.float64)) for name in self.units}

    def _gradient_of(self, name: str) -> Tensor:
        return self.gradients[self.offsets[name] : self.offsets[name] + self.units[name].num_parameters]

    def restore_attention_mean(self) -> None:
        """Undo the zeros that degraded holders contributed to the attention gradients."""
        for share in self.attention_shares.values():
            self.gradients[share.first : share.end].mul_(share.scale or 0.0)

    def apply(self, learning_rate: float, clip_ratio: float) -> None:
        """One AdamW step with gradients scaled by `clip_ratio`.

        Attention that every replica degrades has no gradient anywhere: it is left as it is, moments included.
        """
        if clip_ratio < 1.0:
            self.gradients.mul_(clip_ratio)
        for name, is_attention, flat, gradient in self._segments:
            share = self.attention_shares.get(name)
            flat.grad = None if is_attention and share is not None and share.scale is None else gradient
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()


def move_units(
    groups: Groups, bank: Bank, previous: dict[str, UnitState], transfers: Sequence[Transfer]
) -> tuple[float, int]:
    """Carry out this rank's part of `transfers`; returns (seconds, bytes sent and received).

    All messages are under way at once, from and to any number of peers; the checksum travels behind each unit.

    Raises:
        EpochBroken: a peer died meanwhile.
        StateCorrupt: a unit arrived damaged.
    """
    began = time.monotonic()
    moved_bytes = 0
    sending, receiving, kept = [], [], []
    for index, transfer in enumerate(transfers):
        tag = STATE_TAG + 2 * index
        if transfer.source == groups.rank:
            unit = previous.get(transfer.unit) or bank.units.get(transfer.unit)
            if unit is None:
                raise EpochBroken(f"asked to send {transfer.unit}, which this rank does not hold")
            checksum = torch.tensor([unit.checksum()], dtype=torch.int64)
            kept.append(checksum)
            sending.append(groups.send(unit.storage, transfer.destination, tag))
            sending.append(groups.send(checksum, transfer.destination, tag + 1))
            moved_bytes += unit.storage.nbytes
        elif transfer.destination == groups.rank:
            unit = bank.units[transfer.unit]
            checksum = torch.empty(1, dtype=torch.int64)
            works = (
                groups.start_receive(unit.storage, transfer.source, tag),
                groups.start_receive(checksum, transfer.source, tag + 1),
            )
            receiving.append((unit, checksum, transfer.source, works))
            moved_bytes += unit.storage.nbytes
    for unit, checksum, source, works in receiving:
        for work in works:
            wait(work)
        if unit.checksum() != int(checksum[0]):
            raise StateCorrupt(f"{unit.unit} arrived damaged from rank {source}")
    for work in sending:
        wait(work)
    return time.monotonic() - began, moved_bytes
