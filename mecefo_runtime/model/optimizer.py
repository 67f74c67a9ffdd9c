"""AdamW as torch has it, less what of it is there for `torch.compile`: its first use imports that whole compiler.

That takes much of the CPU time in which a process gets ready to train, and memory: every node in a container pays it
for itself, and again at each repair.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

# As they are written in torch's sources, beneath the decorators that keep the compiler out of them.
_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_step = inspect.unwrap(torch.optim.AdamW.step)


class EagerAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, whose hooks are called as ever; not for use in a function that is compiled."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See torch."""
        _add_param_group(self, param_group)

    def step(self, closure: Any = None) -> Any:
        """See torch."""
        with torch.no_grad():
            return _step(self, closure)
