"""A backward pass from the gradient of an output, less what torch imports for it.

`torch.autograd.backward` with a gradient imports the symbolic shapes of the compiler, 480 modules with SymPy: almost
half a second of CPU time, and memory, of every process that trains a stage which is not the last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _GivenGradient(torch.autograd.Function):
    """A scalar whose gradient with respect to an output is the one that is given."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


def backward(output: Tensor, gradient: Tensor | None) -> None:
    """Add to every leaf the gradient that follows from `gradient`, which has the shape of `output`; None: of a loss.

    The bits are those of `torch.autograd.backward`.
    """
    torch.autograd.backward(output if gradient is None else _GivenGradient.apply(output, gradient))  # type: ignore[no-untyped-call]
