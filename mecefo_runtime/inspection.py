"""What a rank's hooks may look at, and change: the modules and tensors that it trains with in the present epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from mecefo_runtime.state import Bank

TensorKind = Literal["parameters", "gradients", "optimizer"]


class Inspection:
    """One rank's units by name. The tensors are the very ones of the training, valid until the epoch ends."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    def modules(self) -> Mapping[str, nn.Module]:
        """All modules of the units that this rank computes with, by their names in the unit: `layer.3.attention.q`."""
        found: dict[str, nn.Module] = {}
        for name in self._bank.computed:
            for inner, module in self._bank.units[name].module.named_modules(prefix=name):
                found[inner] = module
        return found

    def tensors(self, kind: TensorKind) -> Mapping[str, Tensor]:
        """The parameters, their gradients, or AdamW's moments (`NAME.exp_avg`, `NAME.exp_avg_sq`), by name.

        Gradients are this rank's own until the step's reduction, and the reduced ones after it.
        """
        found: dict[str, Tensor] = {}
        for unit_name, unit in self._bank.units.items():
            for name, parameter in unit.module.named_parameters(prefix=unit_name):
                if kind == "parameters":
                    found[name] = parameter.data
                elif kind == "gradients":
                    assert parameter.grad is not None
                    found[name] = parameter.grad
                else:
                    first = parameter.data.storage_offset() - unit.parameters.storage_offset()
                    place = slice(first, first + parameter.numel())
                    found[f"{name}.exp_avg"] = unit.first_moments[place].view(parameter.shape)
                    found[f"{name}.exp_avg_sq"] = unit.second_moments[place].view(parameter.shape)
        return found
