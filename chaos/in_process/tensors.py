"""Injections into what lives from step to step: parameters, read by the next forward pass, and optimizer state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chaos.in_process.base import InProcessFaultRefused, Subject
from chaos.in_process.gradients import PHASES
from chaos.in_process.injection import TensorInjection
from chaos.in_process.shadow import ReplayedOptimizer
from chaos.in_process.values import is_same_bits, local_part, most_different, read, shown, tensors_in, write

# A value that changed no output of so many forward passes is called masked.
MAX_FORWARDS = 16
_BEFORE_FORWARD = ("data", "forward")


class InjectParameters(TensorInjection):
    """Changes parameters where the rank is held.

    Tells what the next forward pass of their module put out instead of what it would have.
    """

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Corrupt the tensor, and hook the module."""
        modules = self._trained.modules()
        tensors = {name: tensor for name, tensor in self._tensors("parameters").items() if _path(name, modules)}
        self._name = self._selector.tensor_of(tensors, "parameters", self._rng)
        mark = self._affected = self._mark(self._name, tensors[self._name])
        # As they are, and as they would be: the optimizer may change both before they are used.
        self._told = {"struck": mark.description, "is_changed": mark.is_changed}
        self._present, self._clean = mark.after, mark.before
        self._shadow_before: ReplayedOptimizer | None = None
        self._was_there = False
        self._num_forwards = self._num_passes = 0
        # The first step all of whose forward passes come after this.
        self._whole_step = step if phase in _BEFORE_FORWARD else step + 1
        # The next announcement is of a later phase.
        self._announced(step, phase)
        self._watch(self._trained)
        return {"struck": mark.description, "is_changed": mark.is_changed, "step": step, "phase": phase}

    def exposed(self, subject: Subject) -> None:
        """The modules may be other ones by now."""
        super().exposed(subject)
        self._unhook()
        if not self._is_told or self._is_sticky:
            self._watch(subject)

    def _watch(self, subject: Subject) -> None:
        modules = subject.modules()
        path = _path(self._name, modules)
        if not path:
            return
        root, owner = path[0], path[-1]
        model = next(iter(modules.values()))
        if any(child is root for child in model.children()):
            # A part of it that is never called shows by its calls.
            root = model
        if self._is_sticky:
            self._hook(owner.register_forward_pre_hook(self._watcher(lambda *_: self._stick())))
            self._hook(root.register_forward_pre_hook(self._watcher(lambda *_: self._stick())))
        self._hook(owner.register_forward_hook(self._watcher(self._on_forward), with_kwargs=True))
        # A degraded layer computes with its modules' parameters without calling them.
        self._hook(root.register_forward_hook(self._watcher(self._on_pass)))

    def _tensor(self) -> Tensor | None:
        return self._trained.tensors("parameters").get(self._name)

    def _stick(self) -> None:
        tensor = self._tensor() if self._is_sticky else None
        if tensor is None:
            return
        clean = read(tensor, self._affected.indices)
        if self._affected.inject_again(tensor):
            self._num_injections += 1
            self._present, self._clean = read(tensor, self._affected.indices), clean

    def _announced(self, step: int, phase: str) -> None:
        tensor = self._tensor()
        if tensor is None:
            return
        if phase in PHASES and step >= self._whole_step:
            self._look_at_gradient()
            # Once a step, and before the gradient is mixed with the peers'.
            self._whole_step = step + 1
        if phase == "commit" and self._was_there:
            self._follow(tensor)
        self._stick()
        self._was_there = phase == "optimizer" and is_same_bits(read(tensor, self._affected.indices), self._present)
        self._shadow_before = self._shadow(self._name, self._affected.indices) if self._was_there else None

    def _follow(self, tensor: Tensor) -> None:
        """The optimizer has been at work: know what the elements are, and what they would be, from here on."""
        shadow, now = self._shadow_before, read(tensor, self._affected.indices)
        gradient = self._trained.tensors("gradients").get(self._name)
        if is_same_bits(now, self._present):
            return
        if shadow is not None and gradient is not None:
            self._clean = shadow.predict(read(gradient, self._affected.indices), parameters=self._clean)
        else:
            self._clean = self._clean + (now - self._present)
        self._present = now

    def _on_pass(self, module: nn.Module, args: Any, output: Any) -> None:
        self._num_passes += 1
        if not self._num_forwards and self._is_put_out(output):
            # Of a module that is computed with and not called; a script that looks at its loss may go no further.
            receiver = "a forward pass of the model computed with it, and put out what is no number"
            self._tell("consumed", receiver=receiver)
            return
        if self._num_passes - self._num_forwards > MAX_FORWARDS and self._is_there():
            self._tell("masked", num_forwards=self._num_passes)

    def _is_put_out(self, output: Any) -> bool:
        """Whether an affected value that is not finite made the model put out what is no number."""
        is_cause = bool(self._clean.isfinite().all()) and not bool(self._present.isfinite().all())
        if not is_cause or not any(bool(local_part(tensor).isnan().any()) for tensor in tensors_in(output)):
            return False
        return self._is_there()

    def _is_there(self) -> bool:
        tensor = self._tensor()
        if tensor is None or self._is_told:
            return False
        if is_same_bits(read(tensor, self._affected.indices), self._present):
            return True
        self._tell("restored")
        return False

    def _look_at_gradient(self) -> None:
        """Of what is computed with without a call of its module, or by one of several parts: its gradient shows it."""
        gradient = self._trained.tensors("gradients").get(self._name)
        if self._num_forwards or gradient is None or not self._is_there():
            return
        if bool((read(gradient, self._affected.indices) != 0).any()):
            receiver = "its gradient is not zero: a forward pass computed with it"
            self._tell("consumed", receiver=receiver)

    def _on_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if next(module.children(), None) is not None or not self._is_there():
            return
        tensor = self._tensor()
        whole = module._parameters.get(self._name.rpartition(".")[2])
        if tensor is None or whole is None or tensor.shape != whole.shape or local_part(whole) is not whole:
            # It computed with what all ranks have of it (FSDP, DTensor), of which the gradient of our part will show
            # it, or with something else (`torch.func.functional_call`).
            return
        self._num_forwards += 1
        told = {"num_forwards": self._num_forwards}
        change = self._change_of_output(module, args, kwargs, output)
        if change is not None:
            self._tell("consumed", **told, output=change)
        elif self._num_forwards >= MAX_FORWARDS:
            self._tell("masked", **told)

    def _change_of_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> dict[str, Any] | None:
        """In what the module's output differs from that with the elements as they would be; None: in nothing."""
        if not isinstance(output, Tensor):
            return None
        local = self._name.rpartition(".")[2]
        clean = module.get_parameter(local).data.clone()
        write(clean, self._affected.indices, self._clean)
        twin = copy.copy(module)
        twin._parameters = {**module._parameters, local: nn.Parameter(clean, requires_grad=False)}
        twin._buffers = {name: None if b is None else b.clone() for name, b in module._buffers.items()}
        # Nothing of this may be seen by the training: no graph, no hooks, no random numbers, no running means.
        with torch.no_grad(), torch.random.fork_rng(devices=[output.device] if output.is_cuda else []):
            other = type(module).forward(twin, *args, **kwargs)
        gaps = (output.detach().double() - other.double()).abs().nan_to_num(torch.inf, torch.inf)
        num_changed = int((gaps > 0).sum())
        if not num_changed:
            return None
        return {
            "num_changed": num_changed,
            "num_elements": output.numel(),
            "largest_change": shown(float(gaps.max())),
            "largest_value": shown(float(other.abs().max())),
        }


def _path(name: str, modules: Mapping[str, nn.Module]) -> list[nn.Module]:
    """The modules around the parameter `name`, outermost first, as far as they are known.

    One without a dot is the outermost module's own, which comes first in `modules`; or nobody's.
    """
    parts = name.split(".")
    if len(parts) == 1:
        first = next(iter(modules.values()), None)
        return [first] if first is not None and name in first._parameters else []
    return [modules[outer] for end in range(1, len(parts)) if (outer := ".".join(parts[:end])) in modules]


class InjectOptimizer(TensorInjection):
    """Changes the optimizer's state where the rank is held, and tells what its next step made of it."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Corrupt the state."""
        tensors = self._tensors("optimizer")
        if not tensors:
            raise InProcessFaultRefused("the optimizer keeps no state of its parameters, or not before its first step")
        self._name = self._selector.tensor_of(tensors, "optimizer state", self._rng)
        parameter = self._name.rpartition(".")[0]
        if self._shadow(parameter, torch.tensor([0])) is None:
            raise InProcessFaultRefused(f"no optimizer is known to update {parameter}")
        mark = self._affected = self._mark(self._name, tensors[self._name])
        self._told = {"struck": mark.description, "is_changed": mark.is_changed}
        self._present, self._clean = mark.after, mark.before
        self._shadow_before: ReplayedOptimizer | None = None
        self._step = step
        self._is_fresh = phase == "optimizer"
        if self._is_fresh:
            self._announced(step, phase)
        return {"struck": mark.description, "is_changed": mark.is_changed, "step": step, "phase": phase}

    def _announced(self, step: int, phase: str) -> None:
        self._step = step
        if self._owner_hooks:
            return
        if phase == "optimizer" and self._is_told_by_owners():
            parameter = self._name.rpartition(".")[0]
            if self._follow_owner(parameter, self._before_step, self._after_step):
                return
        if phase == "commit":
            self._after_step()
        self._shadow_before = None
        if phase == "optimizer":
            self._before_step()

    def _after_step(self) -> None:
        if self._shadow_before is not None and not self._is_told:
            self._judge(self._step)
        self._shadow_before = None

    def _before_step(self) -> None:
        tensor = self._trained.tensors("optimizer").get(self._name)
        if tensor is not None:
            clean = read(tensor, self._affected.indices)
            if self._is_sticky and not self._is_fresh and self._affected.inject_again(tensor):
                self._num_injections += 1
                self._present, self._clean = read(tensor, self._affected.indices), clean
            self._is_fresh = False
            if not self._is_told:
                if is_same_bits(read(tensor, self._affected.indices), self._present):
                    self._prepare()
                else:
                    self._tell("restored")

    def _prepare(self) -> None:
        parameter, _, key = self._name.rpartition(".")
        self._clean_state = {key: self._clean}
        indices = self._affected.indices
        whole = self._trained.tensors("parameters")[parameter]
        tensor = self._trained.tensors("optimizer")[self._name]
        if tensor.shape == whole.shape:
            most = most_different(self._clean, self._present)
            self._clean_state, indices = {key: self._clean[most]}, indices[most]
        else:
            # Of rows, or of the whole tensor: it may show anywhere.
            clean = tensor.clone()
            write(clean, indices, self._clean)
            self._clean_state, indices = {key: clean}, torch.arange(whole.numel(), device=whole.device)
        self._shadow_before = self._shadow(parameter, indices)
        self._indices = indices

    def _judge(self, step: int) -> None:
        shadow = self._shadow_before
        assert shadow is not None
        gradient = read(self._trained.tensors("gradients")[self._name.rpartition(".")[0]], self._indices)
        outcome, shows = shadow.judge(gradient, gradient, self._clean_state)
        if outcome != "unchanged":
            # A step that was left out is none: the next one will tell.
            self._tell(outcome, step=step, **shows)
