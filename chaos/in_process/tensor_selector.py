"""Which elements of which tensor: as they were named, or drawn from a seed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from chaos.in_process.base import InProcessFaultRefused

_SHOWN_NAMES = 6
# As `TensorSelector` finds the number of a layer in the name of a tensor, ours and others'.
_LAYER = re.compile(r"(?:^|\.)([0-9]+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class TensorSelector:
    """What is to be hit; what is None is drawn.

    `tensor` is a name or a pattern (`layer.3.*.weight`), `layer` the number of a layer, `index` the first flat index.
    `count` elements of one tensor are hit, or `share` of them all, a ratio.
    """

    tensor: str | None = None
    layer: int | None = None
    index: int | None = None
    count: int = 1
    share: float | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> TensorSelector:
        """Read the arguments of an effect."""
        return cls(**{name: arguments[name] for name in cls.__dataclass_fields__ if arguments.get(name) is not None})

    def names(self, names: Iterable[str], what: str) -> list[str]:
        """Those of `names` that fit, sorted; `what` they are is said when none does.

        Raises:
            InProcessFaultRefused: none fits.
        """
        known = sorted(names)
        fitting = [name for name in known if self._fits(name)]
        if not fitting:
            if not known:
                raise InProcessFaultRefused(f"this rank has no {what}")
            wanted = f" of layer {self.layer}" if self.layer is not None else ""
            wanted += f" that fit {self.tensor!r}" if self.tensor is not None else ""
            layers = sorted({int(number) for name in known for number in _LAYER.findall(name)})
            if self.layer is not None and self.layer not in layers:
                has = f"layer {', '.join(map(str, layers))}" if layers else "no layers"
                raise InProcessFaultRefused(f"this rank has no {what}{wanted}; it has {has}")
            sample = ", ".join(known[:_SHOWN_NAMES]) + (", ..." if len(known) > _SHOWN_NAMES else "")
            raise InProcessFaultRefused(f"this rank has no {what}{wanted}; it has {sample}")
        return fitting

    def _fits(self, name: str) -> bool:
        is_layer = self.layer is None or re.search(rf"(?:^|\.){self.layer}\.", f"{name}.") is not None
        return is_layer and (self.tensor is None or fnmatch.fnmatchcase(name, self.tensor))

    def tensor_of(self, tensors: Mapping[str, Tensor], what: str, rng: Random) -> str:
        """The name of the tensor that is hit, every element of those that fit being as likely as every other.

        Raises:
            InProcessFaultRefused: none fits.
        """
        names = self.names((name for name, tensor in tensors.items() if tensor.is_floating_point()), what)
        return rng.choices(names, weights=[tensors[name].numel() for name in names])[0]

    def indices(self, tensor: Tensor, rng: Random) -> Tensor:
        """The flat indices that are hit, one-dimensional, on the tensor's device.

        Raises:
            InProcessFaultRefused: the tensor is not as large as that.
        """
        size = tensor.numel()
        count = self.count if self.share is None else max(1, round(self.share * size))
        first = self.index or 0
        if first + count > size:
            raise InProcessFaultRefused(f"the tensor has {size} elements: {count} from index {first} on are too many")
        if self.index is not None or count == size:
            return torch.arange(first, first + count, device=tensor.device)
        if self.share is None:
            return torch.tensor(sorted(rng.sample(range(size), count)), device=tensor.device)
        # Apart from the training's own random state.
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        return torch.randperm(size, generator=generator)[:count].sort().values.to(tensor.device)
