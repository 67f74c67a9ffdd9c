"""Single elements of tensors as bits: reading them, and the ways in which they go wrong.

An element is named by its flat index: its place in the tensor counted row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from chaos.in_process.base import InProcessFaultRefused

# Width in bits, and the bits of the mantissa; above them the exponent, the highest bit is the sign.
_FORMATS: Mapping[torch.dtype, tuple[int, int]] = {
    torch.float64: (64, 52),
    torch.float32: (32, 23),
    torch.bfloat16: (16, 7),
    torch.float16: (16, 10),
}
_INTEGERS = {64: torch.int64, 32: torch.int32, 16: torch.int16}
# Evidence shows so many elements; there may be millions.
MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Corruption:
    """What becomes of elements: `how` is flip, fill or scale.

    `bit` (of flip) is a number from 0, the lowest of the mantissa, or sign, exponent, mantissa or drawn; `number` is
    what fill writes and what scale multiplies by.
    """

    how: str
    bit: int | str = "drawn"
    number: float = 0.0

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Corruption:
        """Read the arguments of an effect; numbers that JSON does not know come as text."""
        return cls(arguments["how"], arguments.get("bit", "drawn"), float(arguments.get("number", 0.0)))

    def settle(self, values: Tensor, rng: Random) -> Settled:
        """Decide what is open: for flip which bit of each of `values` (one-dimensional), and what it becomes.

        Raises:
            InProcessFaultRefused: the elements are narrower than that, or no floating-point numbers.
        """
        if self.how != "flip":
            wrong = values * self.number if self.how == "scale" else torch.full_like(values, self.number)
            return Settled(self, (), wrong)
        bits = tuple(_bit(self.bit, values.dtype, rng) for _ in range(values.numel()))
        masks = _masks(bits, values)
        flipped = as_integers(values) ^ masks
        return Settled(self, bits, flipped.view(values.dtype))


@dataclass(frozen=True, slots=True)
class Settled:
    """A corruption of certain elements: `wrong` are they after the first time; `bits` is empty unless it flips."""

    corruption: Corruption
    bits: tuple[int, ...]
    wrong: Tensor

    def again(self, values: Tensor) -> Tensor:
        """The elements once more, now that they are `values`: a bit that was flipped is stuck at what it became."""
        if self.corruption.how == "flip":
            masks = _masks(self.bits, values)
            stuck = as_integers(values) & ~masks | as_integers(self.wrong) & masks
            return stuck.view(values.dtype)
        return values * self.corruption.number if self.corruption.how == "scale" else self.wrong


def local_part(tensor: Tensor) -> Tensor:
    """The part of a distributed tensor that this rank holds, of the same storage; others as they are.

    One that an exchange between ranks still fills (tensor parallelism has them) is waited for.
    """
    for name in ("_local_tensor", "trigger_wait"):
        part = getattr(tensor, name, None)
        part = part() if callable(part) and not isinstance(part, Tensor) else part
        tensor = part if isinstance(part, Tensor) else tensor
    return tensor


def tensors_in(value: object) -> list[Tensor]:
    """The floating-point tensors of what a module puts out: one, or several in lists, tuples and mappings."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    return [tensor for part in parts for tensor in tensors_in(part)]


def read(tensor: Tensor, indices: Tensor) -> Tensor:
    """A copy of the elements at `indices`, one-dimensional."""
    if tensor.is_contiguous():
        return tensor.data.view(-1)[indices]
    return tensor.data[torch.unravel_index(indices, tensor.shape)]


def write(tensor: Tensor, indices: Tensor, values: Tensor) -> None:
    """Put `values` into the tensor's memory. Autograd does not notice, as with a real fault in memory."""
    if tensor.is_contiguous():
        tensor.data.view(-1)[indices] = values
    else:
        tensor.data[torch.unravel_index(indices, tensor.shape)] = values


def is_same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, not-a-numbers and signed zeros included."""
    return torch.equal(as_integers(one), as_integers(other))


def is_equal(one: Tensor, other: Tensor) -> Tensor:
    """Which elements are the same number: two not-a-numbers are, and the two zeros, as arithmetic tells neither apart.

    What is written into memory as a number has changed nothing where it is; only a flipped bit is a change of bits.
    """
    return (one == other) | (one.isnan() & other.isnan())


def as_integers(values: Tensor) -> Tensor:
    """The bits of `values` as integers of the same width.

    Raises:
        InProcessFaultRefused: they are no floating-point numbers that are known here.
    """
    if values.dtype not in _FORMATS:
        raise InProcessFaultRefused(f"elements of {_name(values.dtype)} cannot be corrupted: not floating-point")
    return values.contiguous().view(_INTEGERS[_FORMATS[values.dtype][0]])


def shown(value: float) -> float | str:
    """A number as JSON can carry it."""
    return value if math.isfinite(value) else str(value)


def most_different(one: Tensor, other: Tensor) -> Tensor:
    """The places in which two one-dimensional tensors differ most, at most as many as evidence shows."""
    gaps = (one.double() - other.double()).abs().nan_to_num(torch.inf, torch.inf)
    # Infinity less infinity is no number either.
    gaps = gaps.masked_fill(is_equal(one, other), 0.0)
    return gaps.topk(min(MAX_SHOWN, gaps.numel())).indices


def describe(name: str, tensor: Tensor, indices: Tensor, before: Tensor, after: Tensor, bits: Sequence[int]) -> Any:
    """What was done to a tensor's elements, those that changed most one by one, as plain JSON values."""
    elements = []
    width = tensor.element_size() * 8
    for place in map(int, most_different(before, after)):
        index = int(indices[place])
        codes = [int(as_integers(values)[place]) % (1 << width) for values in (before, after)]
        elements.append(
            {
                "index": index,
                "place": [int(part) for part in torch.unravel_index(torch.tensor(index), tensor.shape)],
                "before": shown(float(before[place])),
                "after": shown(float(after[place])),
                "bits_before": f"{codes[0]:0{width // 4}x}",
                "bits_after": f"{codes[1]:0{width // 4}x}",
                **({"bit": bits[place]} if bits else {}),
            }
        )
    return {
        "tensor": name,
        "shape": list(tensor.shape),
        "dtype": _name(tensor.dtype),
        "count": indices.numel(),
        "elements": elements,
    }


def _bit(wanted: int | str, dtype: torch.dtype, rng: Random) -> int:
    if dtype not in _FORMATS:
        raise InProcessFaultRefused(f"elements of {_name(dtype)} cannot be corrupted: not floating-point")
    width, mantissa = _FORMATS[dtype]
    if isinstance(wanted, int):
        if not 0 <= wanted < width:
            raise InProcessFaultRefused(f"elements of {_name(dtype)} have the bits 0 to {width - 1}, not {wanted}")
        return wanted
    first, end = {
        "sign": (width - 1, width),
        "exponent": (mantissa, width - 1),
        "mantissa": (0, mantissa),
        "drawn": (0, width),
    }[wanted]
    return rng.randrange(first, end)


def _masks(bits: Sequence[int], values: Tensor) -> Tensor:
    width = _FORMATS[values.dtype][0]
    # The sign's bit is what makes an integer of this width negative.
    masks = [(1 << bit) - ((1 << width) if bit == width - 1 else 0) for bit in bits]
    return torch.tensor(masks, dtype=_INTEGERS[width], device=values.device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
