"""What a rank's hooks may read and change: the modules and tensors that it trains with in the present epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.system.dilation import Pacer

TensorKind = Literal["parameters", "gradients", "optimizer"]


class Inspection:
    """One rank's units by name.

    The tensors are those in use by the training, not copies, and valid until the epoch ends.

    `pacer` is the rank's, the same in all epochs.
    """

    def __init__(self, state: ModelState, pacer: Pacer) -> None:
        self._state = state
        self.pacer = pacer

    def modules(self) -> Mapping[str, nn.Module]:
        """All modules of the units that this rank computes with, by their names in the unit: `layer.3.attention.q`."""
        found: dict[str, nn.Module] = {}
        for name in self._state.computed:
            for inner, module in self._state.units[name].module.named_modules(prefix=name):
                found[inner] = module
        return found

    def tensors(self, kind: TensorKind) -> Mapping[str, Tensor]:
        """The parameters, their gradients, or AdamW's moments (`NAME.exp_avg`, `NAME.exp_avg_sq`), by name.

        Of moments those that are all here.

        Gradients are this rank's own until the step's reduction, and the reduced ones after it.
        """
        found: dict[str, Tensor] = {}
        for unit_name, unit in self._state.units.items():
            for name, parameter in unit.module.named_parameters(prefix=unit_name):
                if kind == "parameters":
                    found[name] = parameter.data
                elif kind == "gradients":
                    assert parameter.grad is not None
                    found[name] = parameter.grad
                else:
                    first = parameter.data.storage_offset() - unit.parameters.storage_offset() - unit.first_owned
                    if first >= 0 and first + parameter.numel() <= unit.first_moments.numel():
                        place = slice(first, first + parameter.numel())
                        found[f"{name}.exp_avg"] = unit.first_moments[place].view(parameter.shape)
                        found[f"{name}.exp_avg_sq"] = unit.second_moments[place].view(parameter.shape)
        return found

    def updater(self, name: str) -> tuple[Optimizer, Tensor, int]:
        """What updates a parameter: its optimizer, the optimizer's tensor, and the parameter's first element there.

        Raises:
            LookupError: there is no such parameter here, or others update a part of it.
        """
        for unit_name, unit in self._state.units.items():
            parameter = dict(unit.module.named_parameters(prefix=unit_name)).get(name)
            if parameter is not None:
                first = int(parameter.storage_offset() - unit.parameters.storage_offset())
                optimizer, tensor, place = self._state.optimizer.updater(unit_name, first)
                if place + parameter.numel() > tensor.numel():
                    break
                return optimizer, tensor, place
        raise LookupError(f"no unit of this rank has a parameter {name}")
