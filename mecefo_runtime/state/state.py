"""What a rank holds: parameters and optimizer state by unit, their gradients, and how units move between ranks.

A unit's parameters, both AdamW moments and step counts live in one flat tensor, so that moving a unit is one message
and checking it one checksum. The gradients of all units that a rank holds live in one flat tensor in pipeline order,
so that neighbouring units with the same holders are reduced by one operation.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import EpochBroken, wait_all
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import HEAD, Layout, Transfer, unit_layer
from mecefo_runtime.model.low_rank import Bases, correct_, projections
from mecefo_runtime.model.model import Segment, build_unit, segments
from mecefo_runtime.model.optimizer import EagerAdamW
from mecefo_runtime.system.devices import host_bytes

# Tags of state messages start here: activations use the lower ones.
STATE_TAG = 1 << 20
_NORM_PIECE_ELEMENTS = 1 << 16
CPU = torch.device("cpu")


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
    """One unit: its module, whose parameters are views into `storage`, on `device`.

    `storage` is flat: parameters, first moments, second moments (n elements each), then one step count per segment.
    """

    def __init__(self, unit: str, config: JobConfig, device: torch.device = CPU) -> None:
        self.unit = unit
        self.module: nn.Module = build_unit(unit, config.model, config.seed, device=device)
        parts = segments(self.module)
        self.num_parameters = sum(parameter.numel() for part in parts for parameter in part.parameters)
        n = self.num_parameters
        self.storage = torch.zeros(3 * n + len(parts), device=device)
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
    """All units of one rank under one layout, with gradients and optimizer; the rank computes with `computed`.

    `stats_size` elements ride behind the head's gradients. Units that the rank held before are kept as they are; new
    ones are built on `device` as at step 0, to be overwritten by transfers. `enter_step` must be called before a step's
    gradients are reduced.
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
    ) -> None:
        self._config = config
        self.device = device
        self._layout = layout
        self._background = background or Background()
        self.hidden_size = config.model.hidden_size
        self.computed = layout.units(rank)
        names = self._background.units(layout, rank)
        self.units: dict[str, UnitState] = {}
        for name in names:
            self.units[name] = previous.get(name) or UnitState(name, config, device)
        self._first_steps = {shadow.unit: shadow.step for shadow in self._background.of(rank)}
        self.holders: dict[str, tuple[int, ...]] = {}
        self.buckets: tuple[Bucket, ...] = ()
        sizes = [unit.num_parameters for unit in self.units.values()]
        # The step stats is reduced with the head's gradients, so that whoever has those has the step's loss and samples
        # too.
        stats_size = stats_size if HEAD in self.units else 0
        self.gradients = torch.zeros(sum(sizes) + stats_size, device=device)
        self.stats = self.gradients[sum(sizes) :]
        self.offsets: dict[str, int] = {}
        offset = 0
        for name, unit in self.units.items():
            self.offsets[name] = offset
            unit.bind_gradients(self.gradients[offset : offset + unit.num_parameters])
            offset += unit.num_parameters
        self._stats_size = stats_size
        self.enter_step(0)
        self.attention_shares = {
            name: share for name in names if (share := self._attention_share(name, layout)) is not None
        }
        # Of layers that some replica degrades, the bases that all holders agree on; see `restore_means`.
        self.bases: dict[str, Bases] = {}
        self._optimizer = self._build_optimizer()

    @property
    def rest_units(self) -> tuple[str, ...]:
        """The units whose gradients have a part that only the exact replicas know.

        Not those with shadows, which have no weights to compute bases from when the epoch begins.
        """
        shadowed = {shadow.unit for shadow in self._background.shadows}
        shares = self.attention_shares.items()
        return tuple(name for name, share in shares if share.scale is not None and name not in shadowed)

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
            yield Bucket(self.offsets[names[first]], end + (self._stats_size if last == HEAD else 0), holders)

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

    def _build_optimizer(self) -> EagerAdamW:
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
        optimizer = EagerAdamW(
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

    @property
    def has_live_stats(self) -> bool:
        """Whether this rank reduces the head, and with it the step stats, in the present step."""
        return HEAD in self.holders

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

    def restore_means(self) -> None:
        """Undo the zeros that degraded holders contributed to the attention gradients.

        And, for units with `bases`, to what technique III drops of the feed-forward gradients.
        """
        for share in self.attention_shares.values():
            self.gradients[share.first : share.end].mul_(share.scale or 0.0)
        for name, bases in self.bases.items():
            scale = self.attention_shares[name].scale
            assert scale is not None
            for projection in projections(self.units[name].module, bases):
                assert projection.weight.grad is not None
                correct_(projection.weight.grad, projection.basis, scale, projection.side)

    def updater(self, name: str, element: int) -> tuple[torch.optim.Optimizer, Tensor, int]:
        """Who updates `element` of a unit's parameters: the optimizer, the tensor as it knows it, its place there."""
        flats = [flat for unit_name, _, flat, _ in self._segments if unit_name == name]
        for part, flat in zip(self.units[name].slices, flats, strict=True):
            if part.first <= element < part.end:
                return self._optimizer, flat, element - part.first
        raise LookupError(f"{name} has no element {element}")

    def apply(self, learning_rate: float, clip_ratio: float) -> None:
        """One AdamW step with gradients scaled by `clip_ratio`.

        Attention that every replica degrades has no gradient anywhere: it is left as it is, moments included.
        """
        if clip_ratio < 1.0:
            self.gradients.mul_(clip_ratio)
        for name, is_attention, flat, gradient in self._segments:
            share = self.attention_shares.get(name)
            has_none = name not in self.holders or (is_attention and share is not None and share.scale is None)
            flat.grad = None if has_none else gradient
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()


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
        wait_all(works)
        if unit.checksum() != int(checksum[0]):
            raise StateCorrupt(f"{unit.unit} arrived damaged from rank {source}")
    wait_all(sending)
    return time.monotonic() - began, moved_bytes
