"""The optimizer of a rank's units: AdamW, whose moments lie where the unit's state lies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.model.optimizer import EagerAdamW
from mecefo_runtime.state.units import Slice, UnitState


class UnitOptimizer:
    """Updates `units` by their reduced `gradients`, which are flat, by unit."""

    def __init__(self, config: JobConfig, units: Mapping[str, UnitState], gradients: Mapping[str, Tensor]) -> None:
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        moments: dict[Tensor, dict[str, Tensor]] = {}
        # Of every slice of every unit: the tensor that the optimizer knows, and its gradient.
        # Elements whose moments another holder has are not among them.
        self._slices: list[tuple[str, Slice, Tensor, Tensor]] = []
        # Of each slice of which this holder has no moment: its step count, which all holders have alike.
        self._counts_alone: list[tuple[str, Slice, Tensor]] = []
        self._first_owned = {name: unit.first_owned for name, unit in units.items()}
        for name, unit in units.items():
            for index, part in enumerate(unit.slices):
                first, end = max(part.first, unit.first_owned), min(part.end, unit.end_owned)
                if first >= end:
                    self._counts_alone.append((name, part, unit.step_counts[index]))
                    continue
                flat = unit.parameters[first:end]
                groups[part.is_decayed].append(flat)
                moments[flat] = {
                    "step": unit.step_counts[index],
                    "exp_avg": unit.first_moments[first - unit.first_owned : end - unit.first_owned],
                    "exp_avg_sq": unit.second_moments[first - unit.first_owned : end - unit.first_owned],
                }
                self._slices.append((name, part, flat, gradients[name][first:end]))
        self._left_out: set[tuple[str, Slice]] = set()
        self._adamw = EagerAdamW(
            [
                {"params": groups[True], "weight_decay": config.weight_decay},
                {"params": groups[False], "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            fused=True,
        )
        self._adamw.state.update(moments)

    def leave_out(self, parts: Iterable[tuple[str, Slice]]) -> None:
        """Leave these parts of units as they are, moments included: in this step they get no gradient."""
        self._left_out = set(parts)

    def step(self, learning_rate: float, names: Collection[str]) -> None:
        """One step of the units `names`; the others, and what is left out, stay as they are."""
        for name, part, flat, gradient in self._slices:
            flat.grad = gradient if self._is_updated(name, part, names) else None
        for name, part, count in self._counts_alone:
            if self._is_updated(name, part, names):
                count += 1
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()

    def _is_updated(self, name: str, part: Slice, names: Collection[str]) -> bool:
        return name in names and (name, part) not in self._left_out

    def updater(self, name: str, element: int) -> tuple[torch.optim.Optimizer, Tensor, int]:
        """Who updates `element` of a unit's parameters: the optimizer, the tensor as it knows it, its place there."""
        for unit, part, flat, _ in self._slices:
            first = max(part.first, self._first_owned[unit])
            if unit == name and first <= element < first + flat.numel():
                return self._adamw, flat, element - first
        raise LookupError(f"{name} has no element {element}")

    def release(self) -> None:
        """Release all tensors."""
        self._slices.clear()
        self._counts_alone.clear()
        self._adamw.state.clear()
        self._adamw.param_groups.clear()
