"""An external training as effects see it: its modules and tensors by name, found by way of its optimizers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chaos.in_process.base import TensorKind
from chaos.in_process.values import local_part

# What wraps a model, by class, and the child under which the model itself then is: left out of names, as state dicts of
# the unwrapped model do.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


class ExternalSubject:
    """Looks when it is asked: nothing is kept alive that the script lets go, and no step pays for it.

    Names are those of the state dict of the script's model. Of several models, each one's begin with its class; a
    parameter in no module is `parameter_NUMBER`, counted from 0 in the order in which the optimizers have them.
    """

    def __init__(
        self,
        optimizers: Callable[[], Iterable[Optimizer]],
        is_within_step: Callable[[], bool] = lambda: False,
        called: Callable[[], nn.Module | None] = lambda: None,
    ) -> None:
        self._optimizers = optimizers
        # The module that the script calls in each step: the model, where the optimizers have copies of its parameters,
        # or there are none.
        self._called = called
        # Whether phases are announced from within an optimizer's step or after it, so that its hooks are too late: with
        # a closure, or compiled.
        self.is_within_step = is_within_step
        # The models that were found last, and for which parameters (by id): to go through all objects of the process
        # takes as long as many steps do, and would be taken for an effect of the fault.
        self._found: list[weakref.ref[nn.Module]] = []
        self._found_for: list[int] | None = None
        # What the optimizers have of each: FSDP puts another tensor in its place, gathered from all, while it computes.
        self._parts: dict[str, weakref.ref[Tensor]] = {}

    def modules(self) -> Mapping[str, nn.Module]:
        """All modules of the models that the optimizers train, by name; a model itself is named by its class."""
        return {name or type(module).__name__: module for name, module in self._named_modules()}

    def parameters(self) -> Mapping[str, Tensor]:
        """What the optimizers train, by name, as the script has it: of several ranks', not only this one's part."""
        return {name: parameter for parameter, name in self._parameter_names().items()}

    def tensors(self, kind: TensorKind) -> Mapping[str, Tensor]:
        """The parameters, their gradients or the optimizers' state (`NAME.exp_avg`), as far as this rank holds them."""
        found: dict[str, Tensor] = {}
        names = self._parameter_names()
        if kind == "parameters":
            return {name: local_part(parameter.data) for parameter, name in names.items()}
        if kind == "gradients":
            return {name: local_part(p.grad) for p, name in names.items() if p.grad is not None and _is_dense(p.grad)}
        for optimizer in _updating(self._optimizers()):
            for parameter in _parameters(optimizer):
                if parameter.grad is not None and not _is_dense(parameter.grad):
                    continue
                for key, value in optimizer.state.get(parameter, {}).items():
                    # Adam's count of steps is a tensor too, and no state of the parameter's elements.
                    if isinstance(value, Tensor) and key != "step" and parameter in names:
                        found[f"{names[parameter]}.{key}"] = local_part(value)
        return found

    def updater(self, name: str) -> tuple[Optimizer, Tensor, int]:
        """Who updates a parameter: its optimizer, the tensor as that one knows it, the parameter's first element there.

        Raises:
            LookupError: no optimizer updates it.
        """
        names = self._parameter_names()
        for optimizer in _updating(self._optimizers()):
            for parameter in _parameters(optimizer):
                if names.get(parameter) == name:
                    return optimizer, parameter, 0
        raise LookupError(f"no optimizer here updates a parameter {name}")

    def _parameter_names(self) -> dict[Tensor, str]:
        names: dict[Tensor, str] = {}
        trained = {id(parameter) for optimizer in self._optimizers() for parameter in _parameters(optimizer)}
        for module_name, module in self._named_modules():
            for local_name, parameter in module.named_parameters(recurse=False):
                name = f"{module_name}.{local_name}" if module_name else local_name
                part = self._parts.get(name, lambda: None)()
                if id(parameter) in trained:
                    self._parts[name] = weakref.ref(parameter)
                elif part is not None and id(part) in trained:
                    names.setdefault(part, name)
                    continue
                names.setdefault(parameter, name)
        num_loose = 0
        for optimizer in self._optimizers():
            for loose in _parameters(optimizer):
                if loose not in names:
                    names[loose] = f"parameter_{num_loose}"
                    num_loose += 1
        return names

    def _named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        models = self._models()
        classes = [type(model).__name__ for model in models]
        for number, model in enumerate(models):
            prefix = ""
            if len(models) > 1:
                before = classes[:number].count(classes[number])
                prefix = classes[number] + (f".{before + 1}" if before else "")
            yield from _walk(model, prefix, set())

    def _models(self) -> list[nn.Module]:
        """The outermost modules with parameters that an optimizer has, in the order of these; wrappers left out."""
        wanted = [id(parameter) for optimizer in self._optimizers() for parameter in _parameters(optimizer)]
        models = [model for found in self._found if (model := found()) is not None]
        if wanted != self._found_for or len(models) < len(self._found):
            models = self._find_models() or [_unwrapped(model) for model in (self._called(),) if model is not None]
            self._found, self._found_for = [weakref.ref(model) for model in models], wanted
        return models

    def _find_models(self) -> list[nn.Module]:
        order: dict[int, int] = {}
        for optimizer in self._optimizers():
            for parameter in _parameters(optimizer):
                order.setdefault(id(parameter), len(order))
        # By the real type: what passes for a module need not be one, and may do anything when asked.
        modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
        modules = [module for module in modules if "_modules" in module.__dict__]
        inner = {id(child) for module in modules for child in module._modules.values()}
        found: dict[int, tuple[set[int], nn.Module]] = {}
        for module in modules:
            places = {order[id(p)] for p in module.parameters() if id(p) in order}
            if places and id(module) not in inner:
                model = _unwrapped(module)
                found[id(model)] = places, model
        models: list[tuple[set[int], nn.Module]] = []
        # One whose parameters are all in a larger one (an alias, a wrapper around a part) shows nothing more.
        for places, model in sorted(found.values(), key=lambda one: (-len(one[0]), min(one[0]))):
            if not places <= set().union(*(others for others, _ in models)):
                models.append((places, model))
        return [model for _, model in sorted(models, key=lambda one: min(one[0]))]


def _walk(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    module = _unwrapped(module)
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    for child_name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{name}.{child_name}" if name else child_name, seen)


def _unwrapped(module: nn.Module) -> nn.Module:
    while (child_name := _WRAPPERS.get(type(module).__name__)) is not None:
        child = module._modules.get(child_name)
        # FSDP keeps its flat parameter in the wrapper itself.
        if child is None or next(module.parameters(recurse=False), None) is not None:
            break
        module = child
    return module


def _updating(optimizers: Iterable[Optimizer], outer: tuple[Optimizer, ...] = ()) -> Iterator[Optimizer]:
    """Those that update, of those that wrap others (ZeRO, Accelerate, SAM): with the parameters that this rank has."""
    for optimizer in optimizers:
        attributes = vars(optimizer).values()
        values = [one for value in attributes for one in (value if isinstance(value, list | tuple) else (value,))]
        inner = [one for one in values if isinstance(one, Optimizer) and one not in outer]
        yield from _updating(inner, (*outer, optimizer)) if inner else (optimizer,)


def _is_dense(gradient: Tensor) -> bool:
    """Whether its elements have places: those of a sparse one do not."""
    return gradient.layout == torch.strided


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
