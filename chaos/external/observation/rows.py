"""Digests of the rows of a batch, computed where the batch is, and read later."""

from __future__ import annotations

import base64
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_MAX_DEPTH = 4
# Of a batch with more rows there is one digest of all of them.
MAX_ROWS = 4096
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Odd, and far from any pattern: the golden ratio in 64 bits, and the multiplier of PCG-64, as signed numbers.
_STEP, _FACTOR = -7046029254386353131, 6364136223846793005
_SEQUENCES = (list, tuple)
# By number of words and device; a script has batches of few shapes.
_weights: dict[tuple[int, torch.device], Tensor] = {}
_MAX_WEIGHTS = 64


def tensors_in(value: object, depth: int = _MAX_DEPTH) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and mappings, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, _SEQUENCES):
        for part in value:
            yield from tensors_in(part, depth - 1)
    elif depth and isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part, depth - 1)


def rows_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """A digest of each row of a batch, as int64 [B], on its device; None: there is nothing that can be looked at.

    A row is what all tensors have at one place of the first dimension [B, ...] of the first of them; others are left
    out. Equal bits have equal digests.
    """
    known = [one for one in tensors if _has_rows(one)]
    if not known or (known[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    num_rows = known[0].shape[0]
    with torch.no_grad():
        total: Tensor | None = None
        for one in known:
            if one.shape[0] == num_rows and one.device == known[0].device:
                own = _digests(one.detach())
                total = own if total is None else total * _FACTOR + own
    assert total is not None
    return total if num_rows <= MAX_ROWS else (total * _weights_of(num_rows, total.device)).sum().reshape(1)


def _has_rows(tensor: Tensor) -> bool:
    return (
        tensor.dim() > 0
        and tensor.numel() > 0
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
    )


def _digests(tensor: Tensor) -> Tensor:
    """Sum the words of each row modulo 2**64; each word has another weight."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.reshape(tensor.shape[0], -1).contiguous()
    size = flat.element_size()
    if (flat.shape[1] * size) % 8 == 0:
        if (flat.storage_offset() * size) % 8:
            # Where the values begin in memory must not change their digest.
            flat = flat.clone()
        words = flat.view(torch.int64)
    else:
        words = flat.view(_INTEGERS[size]).to(torch.int64)
    return (words * _weights_of(words.shape[1], words.device)).sum(1)


def _weights_of(number: int, device: torch.device) -> Tensor:
    known = _weights.get((number, device))
    if known is None:
        if len(_weights) >= _MAX_WEIGHTS:
            _weights.clear()
        places = torch.arange(1, number + 1, dtype=torch.int64, device=device)
        mixed = places * _STEP
        # Of neighbours, and of sums of places, it must not be the sum.
        known = ((mixed ^ (mixed >> 29)) * _FACTOR) | 1
        _weights[number, device] = known
    return known


class Later:
    """The `size` values of a tensor [N], copied from its device without waiting for it."""

    def __init__(self, tensor: Tensor) -> None:
        self.size = tensor.numel()
        self._event: Any = None
        self._values: Tensor | list[Any]
        if tensor.device.type == "cpu":
            self._values = tensor.tolist()
            return
        self._values = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._values.copy_(tensor, non_blocking=True)
        self._event = torch.get_device_module(tensor.device).Event()
        self._event.record()

    def values(self, deadline_seconds: float) -> list[Any] | None:
        """Them, when they are there; None where they are not by then (CLOCK_MONOTONIC): a device may hang."""
        while self._event is not None and not self._event.query():
            if time.monotonic() >= deadline_seconds:
                return None
            time.sleep(0.001)
        if isinstance(self._values, Tensor):
            self._values = self._values.tolist()
        return self._values


def in_base64(digests: Sequence[int]) -> str:
    """8 bytes each, in the byte order of the machine."""
    return base64.b64encode(array("q", digests).tobytes()).decode()
