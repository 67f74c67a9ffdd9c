"""What an optimizer's step makes of single elements, computed beside it: with the values as they are, and otherwise.

Element by element where the optimizer treats them so (SGD, the Adams, RMSprop, Adagrad), else the whole tensor (Muon,
Adafactor). Of one that needs a closure, or all tensors together (LBFGS), only what is no number shows.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from chaos.in_process.base import InProcessFaultRefused
from chaos.in_process.values import is_same_bits, local_part, read, shown, write

# Vectorised and single elements may be rounded differently: so many units in the last place.
_TOLERANCE_ULPS = 16

Consumption = Literal["consumed", "masked", "unchanged", "otherwise"]
"""What a step did with an affected value: used it; used it, but the result is the same to the last place as without it;
did not change the elements at all; or did something that neither explains."""


class _OnlyBeside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises RuntimeError where the training itself would be touched.

    That is where something is about to be exchanged between ranks (the others would not take part), and where a tensor
    of `optimizer` is about to be written to: one that wraps another, or keeps a list of its own, steps those.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = {place for tensor in _tensors_of(optimizer) if (place := _place(tensor))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError(f"the optimizer's step exchanges tensors between ranks ({func})")
        given = {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **(kwargs or {})}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = given.get(argument.name)
                for tensor in written if isinstance(written, list | tuple) else (written,):
                    if isinstance(tensor, Tensor) and _place(tensor) in self._kept:
                        raise RuntimeError(f"the optimizer's step is one of other tensors too ({func})")
        return func(*args, **(kwargs or {}))


def _tensors_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """All that `optimizer` has, those of others that it has too."""
    waiting: list[Any] = [vars(optimizer)]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
            waiting.append(value.grad if value.is_leaf else None)
        elif isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | set | deque):
            waiting += value
        elif isinstance(value, Optimizer):
            waiting.append(vars(value))


def _place(tensor: Tensor) -> int:
    """The address of its memory; 0 where it has none of its own."""
    try:
        return local_part(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


@contextmanager
def _unseen() -> Iterator[None]:
    """Call no hooks on all optimizers: they are of those who count steps."""
    module = sys.modules[Optimizer.__module__]
    names = [name for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks") if hasattr(module, name)]
    kept = {name: getattr(module, name) for name in names}
    for name in names:
        # Another one in its place, as somebody may be going through it.
        setattr(module, name, OrderedDict())
    try:
        yield
    finally:
        for name, hooks in kept.items():
            setattr(module, name, hooks)


class ReplayedOptimizer:
    """Elements of one parameter just before its optimizer's step; `names` of their state are the optimizer's own."""

    def __init__(self, optimizer: Optimizer, tensor: Tensor, indices: Tensor) -> None:
        """`tensor` as the optimizer knows it, `indices` flat in it, or in the part of it that this rank holds."""
        self._optimizer = optimizer
        self._tensor = tensor
        self._indices = indices
        self._whole = local_part(tensor).detach().clone()
        self._whole_state = {name: self._state_of(name) for name in optimizer.state.get(tensor, {})}
        self.parameters = read(self._whole, indices)
        # What is of another shape is of the whole tensor: the step count.
        self._is_by_element = {
            name: isinstance(value, Tensor) and value.shape == self._whole.shape
            for name, value in self._whole_state.items()
        }
        self.state = {
            name: read(value, indices) if self._is_by_element[name] else value
            for name, value in self._whole_state.items()
        }

    def _state_of(self, name: str) -> Any:
        value = self._optimizer.state[self._tensor][name]
        return local_part(value).clone() if isinstance(value, Tensor) else copy.copy(value)

    def now(self) -> Tensor:
        """The parameter's elements as they are by now."""
        return read(local_part(self._tensor), self._indices)

    def is_untouched(self) -> bool:
        """Whether neither the parameter nor its state has changed anywhere."""
        return _is_equal(self._whole, local_part(self._tensor)) and all(
            _is_equal(value, self._state_of(name))
            for name, value in self._whole_state.items()
            if self._is_by_element[name]
        )

    def predict(
        self,
        gradient: Tensor,
        *,
        parameters: Tensor | None = None,
        state: Mapping[str, Tensor] | None = None,
        is_whole: bool = False,
    ) -> Tensor:
        """What the step makes of the elements with `gradient`, and with other `parameters` or `state` where given.

        With the optimizer's present options (its learning rate is often set just before the step). `is_whole`: the step
        of the whole tensor is computed, of which the other elements are as they are.

        Raises:
            RuntimeError: its step is one of all ranks together, or of other tensors too.
        """
        own = self._whole_state if is_whole else self.state
        own = {name: value.clone() if isinstance(value, Tensor) else copy.copy(value) for name, value in own.items()}
        if is_whole:
            element, slope = self._whole.clone(), self._gradient()
            write(slope, self._indices, gradient.to(slope.dtype))
            if parameters is not None:
                write(element, self._indices, parameters)
            for name, values in (state or {}).items():
                if self._is_by_element[name]:
                    write(own[name], self._indices, values)
                else:
                    own[name] = values
        else:
            element = (self.parameters if parameters is None else parameters).clone()
            slope = gradient.to(element.dtype).clone()
            own.update(state or {})
        return self._step(element, slope, own, is_whole=is_whole)

    def _gradient(self) -> Tensor:
        if self._tensor.grad is None:
            raise RuntimeError("the gradient is no more")
        return local_part(self._tensor.grad).clone()

    def _step(self, element: Tensor, gradient: Tensor, state: Mapping[str, Any], *, is_whole: bool) -> Tensor:
        parameter = torch.nn.Parameter(element)
        parameter.grad = gradient
        group = next(g for g in self._optimizer.param_groups if any(p is self._tensor for p in g["params"]))
        twin = object.__new__(type(self._optimizer))
        twin.__dict__.update(self._optimizer.__dict__)
        # Hooks are somebody's who counts steps, and a scheduler may have put its own `step` there.
        twin.__dict__.pop("step", None)
        twin.__dict__.update(
            param_groups=[{**group, "params": [parameter]}],
            state=defaultdict(dict, {parameter: dict(state)}),
            _optimizer_step_pre_hooks=OrderedDict(),
            _optimizer_step_post_hooks=OrderedDict(),
        )
        with torch.no_grad(), _unseen(), _OnlyBeside(self._optimizer):
            inspect.unwrap(type(self._optimizer).step)(twin)
        return read(parameter, self._indices) if is_whole else parameter.data

    def judge(
        self, gradient: Tensor, clean_gradient: Tensor, clean_state: Mapping[str, Tensor] | None = None
    ) -> tuple[Consumption, dict[str, Any]]:
        """What became of an affected value in the step that is over, and what shows it.

        `gradient` is what the step took in; without the fault it would have been `clean_gradient`, with
        `clean_state`. By elements, and where that does not explain the step (Muon, Adafactor), by the whole tensor.

        Raises:
            InProcessFaultRefused: the step cannot be computed beside the training, and does not show it by itself.
        """
        if self.is_untouched():
            return "unchanged", {}
        now, found, reason = self.now(), None, None
        for is_whole in (False, True):
            try:
                affected = self.predict(gradient, is_whole=is_whole)
                clean = self.predict(clean_gradient, state=clean_state, is_whole=is_whole)
            except Exception as error:
                is_closure = isinstance(error, TypeError) and "closure" in str(error)
                reason = reason or ("its step calls the script's closure" if is_closure else str(error))
                continue
            update = Update(self.parameters, now, affected, clean)
            found = update.judge(), {"update": update.widest_gap()}
            if found[0] != "otherwise":
                return found
        is_wrong = not all(bool(values.isfinite().all()) for values in (gradient, *self._floats()))
        if is_wrong and bool((self.parameters.isfinite() & ~now.isfinite()).any()):
            most = int((self.parameters.isfinite() & ~now.isfinite()).nonzero()[0])
            became = f"the parameter became {float(now[most])}, and was {float(self.parameters[most]):.6g} before"
            return "consumed", {"receiver": f"the optimizer used it: {became}"}
        if found is None:
            name = type(self._optimizer).__name__
            raise InProcessFaultRefused(f"what {name} makes of it cannot be computed beside the training ({reason})")
        return found

    def _floats(self) -> Iterator[Tensor]:
        values = (*self.state.values(),)
        return (value for value in values if isinstance(value, Tensor) and value.is_floating_point())


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return is_same_bits(one, other) if one.is_floating_point() else torch.equal(one, other)


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step of some elements: what it did, and what it would have done with and without the fault."""

    before: Tensor
    actual: Tensor
    affected: Tensor
    clean: Tensor

    def judge(self) -> Consumption:
        """What became of the affected values. Of several elements one that shows it is enough, none may contradict."""
        if is_same_bits(self.before, self.actual) and not is_same_bits(self.before, self.affected):
            return "unchanged"
        as_affected, as_clean = (self._is_near(values) for values in (self.affected, self.clean))
        if not bool(as_affected.all()):
            return "otherwise"
        return "masked" if bool(as_clean.all()) else "consumed"

    def _is_near(self, values: Tensor) -> Tensor:
        actual, before, values = self.actual.double(), self.before.double(), values.double()
        both_nan = actual.isnan() & values.isnan()
        both_same = actual == values
        tolerance = _TOLERANCE_ULPS * torch.finfo(self.actual.dtype).eps * (before.abs() + (actual - before).abs())
        return both_nan | both_same | ((actual - values).abs() <= tolerance)

    def widest_gap(self) -> dict[str, Any]:
        """The element in which the two differ most, as plain JSON values."""
        gaps = (self.affected.double() - self.clean.double()).abs().nan_to_num(torch.inf, torch.inf)
        most = int(gaps.argmax())
        values = {"before": self.before, "actual": self.actual, "struck": self.affected, "clean": self.clean}
        return {f"parameter_{name}": shown(float(value[most])) for name, value in values.items()}
