"""Whether a script keeps computing after a fault inside its rank without taking a step, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from chaos.in_process.injection import Watcher
from chaos.in_process.values import local_part, tensors_in

# What is larger has no square: a loss that is computed outside of the model is not finite then.
_LARGEST = torch.finfo(torch.float32).max ** 0.5


class StallReason:
    """Follows the passes of a training from an effect to the first step that began after it and is committed.

    A pass is a forward pass of the module that the script calls, with its backward pass, if there is one. It is
    corrupted where the module's output, the loss or a gradient is not finite. Passes of which every one is corrupted,
    more than a step has ever taken, and without a step, were left out by the script for what is wrong in them. One
    sound pass among them, and the script has another reason.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._undo: Callable[[], None] = lambda: None
        self._is_watching = False
        self._is_open = self._is_corrupted = self._is_elsewhere = False
        self._num_corrupted = self._num_sound = 0

    @property
    def is_watching(self) -> bool:
        """Whether anything is wanted of the training."""
        return self._is_watching

    def begin(self, module: nn.Module | None) -> None:
        """An effect has begun; `module` is what the script calls. What is compiled is left as it is."""
        self.end()
        self._is_watching = True
        if module is not None and "_orig_mod" not in module._modules and module._compiled_call_impl is None:
            handle = module.register_forward_hook(Watcher(self._on_output, self._fail))
            self._undo = handle.remove

    def fetched(self, *, is_trained_from: bool) -> None:
        """A batch is fetched: what is computed of one of another loader (evaluation) is no pass."""
        self._is_elsewhere = not is_trained_from

    def _on_output(self, module: nn.Module, arguments: object, output: object) -> None:
        if not torch.is_grad_enabled() or not module.training or self._is_elsewhere:
            return
        self._close()
        self._is_open, self._is_corrupted = True, is_corrupted(tensors_in(output))

    def computed_back(self, losses: object, gradients: Iterable[Tensor | None]) -> None:
        """A backward pass is over."""
        self._is_open = True
        given = (gradient for gradient in gradients if gradient is not None)
        self._is_corrupted = self._is_corrupted or is_corrupted(tensors_in(losses)) or is_corrupted(given)

    def committed(self, *, began_after: bool) -> None:
        """A step is committed; one that `began_after` the effect answers the question."""
        if not self._is_watching:
            return
        self._is_open, self._num_corrupted, self._num_sound = False, 0, 0
        if began_after:
            self.end()

    def end(self) -> None:
        """Stop watching."""
        self._is_watching = False
        self._undo()
        self._undo = lambda: None

    def num_left_out(self, most_passes: int) -> int:
        """How many passes since the last commit were left out; `most_passes` is the most that a step has taken."""
        self._close()
        if not self._is_watching:
            return 0
        return self._num_corrupted if not self._num_sound and self._num_corrupted > most_passes else 0

    def _close(self) -> None:
        if self._is_open:
            self._num_corrupted += self._is_corrupted
            self._num_sound += not self._is_corrupted
        self._is_open = self._is_corrupted = False


def is_corrupted(tensors: Iterable[Tensor]) -> bool:
    """Whether anything in them is not finite, or too large to be squared."""
    with torch.no_grad():
        # Written so that a comparison with not-a-number is one that fails.
        return any(not bool((local.detach().abs() <= _LARGEST).all()) for local in map(_dense, tensors))


def _dense(tensor: Tensor) -> Tensor:
    tensor = local_part(tensor)
    return tensor if tensor.layout == torch.strided else tensor.coalesce().values()
