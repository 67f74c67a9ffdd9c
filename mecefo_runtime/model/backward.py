"""A backward pass from the gradient of an output, less what torch imports for it.

`torch.autograd.backward` with a gradient imports the symbolic shapes of the compiler, 480 modules with SymPy: almost
half a second of CPU time, and memory, of every process that trains a stage which is not the last.
"""

from __future__ import annotations

import torch
from torch import Tensor


def backward(output: Tensor, gradient: Tensor | None) -> None:
    """Add to every leaf the gradient that follows from `gradient`, which has the shape of `output`; None: of a loss.

    The bits are those of `torch.autograd.backward`: the sum hands each element of `gradient` on, multiplied by one.
    """
    torch.autograd.backward(output if gradient is None else (output * gradient).sum())
