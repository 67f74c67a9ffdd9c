"""What an optimizer's step makes of single elements, computed beside it: with the values as they are, and otherwise.

Holds for every optimizer that treats elements one by one (SGD, the Adams, RMSprop, Adagrad); for others there is no
shadow.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from chaos.inside.values import is_same_bits, read, shown

# Vectorised and single elements may be rounded differently: so many units in the last place.
_TOLERANCE_ULPS = 16

Consumption = Literal["consumed", "masked", "unchanged", "otherwise"]
"""What a step did with a struck value: used it; used it, but the result is the same to the last place as it would have
been; did not change the elements at all; or did something that neither explains."""


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises RuntimeError where something is about to be exchanged between ranks: the others would not take part."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError(f"the optimizer's step exchanges tensors between ranks ({func})")
        return func(*args, **(kwargs or {}))


class Shadow:
    """Elements of one parameter just before its optimizer's step; `names` of their state are the optimizer's own."""

    def __init__(self, optimizer: Optimizer, tensor: Tensor, indices: Tensor) -> None:
        """`tensor` as the optimizer knows it, `indices` flat in it."""
        self._optimizer = optimizer
        self._tensor = tensor
        self._indices = indices
        self.parameters = read(tensor, indices)
        # What is of another shape is of the whole tensor: the step count.
        self._is_by_element = {
            name: isinstance(value, Tensor) and value.shape == tensor.shape
            for name, value in optimizer.state.get(tensor, {}).items()
        }
        self.state = {name: self._read_state(name) for name in self._is_by_element}

    def _read_state(self, name: str) -> Any:
        value = self._optimizer.state[self._tensor][name]
        if self._is_by_element[name]:
            return read(value, self._indices)
        return value.clone() if isinstance(value, Tensor) else copy.copy(value)

    def now(self) -> Tensor:
        """The parameter's elements as they are by now."""
        return read(self._tensor, self._indices)

    def is_untouched(self) -> bool:
        """Whether neither the elements nor their state have changed."""
        same = [is_same_bits(self.parameters, self.now())]
        same += [
            is_same_bits(self.state[name], self._read_state(name))
            for name, is_by_element in self._is_by_element.items()
            if is_by_element
        ]
        return all(same)

    def predict(
        self, gradient: Tensor, *, parameters: Tensor | None = None, state: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """What the step makes of the elements with `gradient`, and with other `parameters` or `state` where given.

        With the optimizer's present options (its learning rate is often set just before the step).

        Raises:
            RuntimeError: its step is one of all ranks together.
        """
        element = torch.nn.Parameter((self.parameters if parameters is None else parameters).clone())
        element.grad = gradient.to(element.dtype).clone()
        group = next(g for g in self._optimizer.param_groups if any(p is self._tensor for p in g["params"]))
        twin = object.__new__(type(self._optimizer))
        own = {name: value.clone() if isinstance(value, Tensor) else value for name, value in self.state.items()}
        twin.__dict__.update(self._optimizer.__dict__)
        # Hooks are somebody's who counts steps, and a scheduler may have put its own `step` there.
        twin.__dict__.pop("step", None)
        twin.__dict__.update(
            param_groups=[{**group, "params": [element]}],
            state=defaultdict(dict, {element: {**own, **(state or {})}}),
            _optimizer_step_pre_hooks=OrderedDict(),
            _optimizer_step_post_hooks=OrderedDict(),
        )
        with torch.no_grad(), _NoCollectives():  # type: ignore[no-untyped-call]
            inspect.unwrap(type(self._optimizer).step)(twin)
        return element.data


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step of some elements: what it did, and what it would have done with and without the fault."""

    before: Tensor
    actual: Tensor
    struck: Tensor
    clean: Tensor

    def judge(self) -> Consumption:
        """What became of the struck values. Of several elements one that shows it is enough, none may contradict."""
        if is_same_bits(self.before, self.actual) and not is_same_bits(self.before, self.struck):
            return "unchanged"
        as_struck, as_clean = (self._is_near(values) for values in (self.struck, self.clean))
        if not bool(as_struck.all()):
            return "otherwise"
        return "masked" if bool(as_clean.all()) else "consumed"

    def _is_near(self, values: Tensor) -> Tensor:
        actual, before, values = self.actual.double(), self.before.double(), values.double()
        both_nan = actual.isnan() & values.isnan()
        both_same = actual == values
        tolerance = _TOLERANCE_ULPS * torch.finfo(self.actual.dtype).eps * (before.abs() + (actual - before).abs())
        return both_nan | both_same | ((actual - values).abs() <= tolerance)

    def to_dict(self) -> dict[str, Any]:
        """The element in which the two differ most, as plain JSON values."""
        gaps = (self.struck.double() - self.clean.double()).abs().nan_to_num(torch.inf, torch.inf)
        most = int(gaps.argmax())
        names = ("before", "actual", "struck", "clean")
        return {f"parameter_{name}": shown(float(getattr(self, name)[most])) for name in names}
