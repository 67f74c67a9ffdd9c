"""Injections into activations: what a module puts out in a forward pass, before anybody downstream reads it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chaos.in_process.base import InProcessFaultRefused, Subject
from chaos.in_process.injection import Mark, TensorInjection
from chaos.in_process.tensors import MAX_FORWARDS
from chaos.in_process.values import is_same_bits, local_part, read, tensors_in


class InjectActivations(TensorInjection):
    """Changes the output of a module in its next forward pass (sticky: in all of them).

    Tells who received it: the next module that is given the same memory, or else the backward pass that comes back
    through it, for which somebody downstream must have computed with it. Where nothing comes back through all that the
    model puts out, since the script looks at it and leaves the pass out, that it is not finite there.
    """

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Choose the module, and hook it."""
        modules = self._trained.modules()
        leaves = {name for name, module in modules.items() if next(module.children(), None) is None}
        names = self._selector.names(modules if self._selector.tensor else leaves, "modules")
        self._name = self._rng.choice(names)
        self._affected: Mark | None = None
        self._output: Tensor | None = None
        # What the model put out in the pass that was affected: whether anything in it was not finite, and whether a
        # gradient came back to any of it. Passes of the model since, that one included.
        self._is_output_corrupted = self._is_used = False
        self._num_passes = 0
        self._step, self._phase = step, phase
        self._watch(self._trained)
        return {"module": self._name, "step": step, "phase": phase}

    def exposed(self, subject: Subject) -> None:
        """The modules may be other ones by now."""
        super().exposed(subject)
        self._unhook()
        if not self._is_told or self._is_sticky:
            self._watch(subject)

    def _watch(self, subject: Subject) -> None:
        modules = subject.modules()
        if self._name not in modules:
            return
        self._hook(modules[self._name].register_forward_hook(self._watcher(self._on_output)))
        if not self._is_told:
            model = next(iter(modules.values()))
            if any(module is modules[self._name] for module in model.modules()):
                self._hook(model.register_forward_hook(self._watcher(self._on_pass)))
            for name, module in modules.items():
                self._hook(module.register_forward_pre_hook(self._watcher(self._on_input(name)), with_kwargs=True))

    def _announced(self, step: int, phase: str) -> None:
        is_next = self._output is not None and phase in ("optimizer", "regroup") and not self._is_told
        if is_next and not self._tell_left_out():
            self._tell("unused", next_phase=phase)
        self._step, self._phase = step, phase

    def _on_output(self, module: nn.Module, args: Any, output: Any) -> None:
        whole = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(whole, Tensor):
            raise InProcessFaultRefused(f"{self._name} puts out no tensor")
        first = local_part(whole)
        if self._affected is not None:
            if (
                self._is_sticky
                and first.numel() > int(self._affected.indices.max())
                and self._affected.inject_again(first)
            ):
                self._num_injections += 1
            return
        mark = self._affected = self._mark(self._name, first)
        self._output = first
        self._told = {
            "struck": mark.description,
            "is_changed": mark.is_changed,
            "step": self._step,
            "phase": self._phase,
        }
        if whole.requires_grad:
            self._hook(whole.register_hook(self._watcher(self._on_gradient)))  # type: ignore[no-untyped-call]

    def _on_pass(self, module: nn.Module, args: Any, output: Any) -> None:
        """The model has put out something: of the pass that was affected, or of one after it."""
        if self._output is None or self._is_told:
            return
        self._num_passes += 1
        if self._num_passes > MAX_FORWARDS:
            self._tell_left_out()
        elif self._num_passes == 1:
            tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
            self._is_output_corrupted = not all(bool(local_part(tensor).isfinite().all()) for tensor in tensors)
            for tensor in tensors:
                self._hook(tensor.register_hook(self._watcher(self._on_use)))  # type: ignore[no-untyped-call]

    def _on_use(self, gradient: Tensor) -> None:
        self._is_used = True

    def _tell_left_out(self) -> bool:
        """Tell that the script made nothing of the pass, if it is one that shows why."""
        if not self._is_output_corrupted or self._is_used:
            return False
        self._output = None
        receiver = "what the model put out was not finite, and the script left that pass out (no gradient came back)"
        self._tell("consumed", receiver=receiver)
        return True

    def _on_input(self, name: str) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._output is None or self._is_told:
                return
            for given in (*args, *kwargs.values()):
                if isinstance(given, Tensor) and self._is_within(given):
                    self._received(f"the module {name} was given it")
                    return

        return look

    def _on_gradient(self, gradient: Tensor) -> None:
        if not self._is_told:
            self._received("the backward pass came back through it: what follows computed with it")

    def _received(self, receiver: str) -> None:
        assert self._output is not None and self._affected is not None
        # What works in place may have gone over it; that is a use, too.
        is_there = is_same_bits(read(self._output, self._affected.indices), self._affected.after)
        self._output = None
        self._tell("consumed", receiver=receiver, is_still_there=is_there)

    def _is_within(self, given: Tensor) -> bool:
        """Whether the affected elements lie in the memory that `given` spans."""
        assert self._output is not None and self._affected is not None
        given = local_part(given)
        if given.untyped_storage().data_ptr() != self._output.untyped_storage().data_ptr():
            return False
        if given.data_ptr() == self._output.data_ptr() and given.numel() == self._output.numel():
            return True
        return given.numel() > self._output.numel()
