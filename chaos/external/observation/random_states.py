"""The states of the random generators from which a step may draw."""

from __future__ import annotations

import ctypes
import random
import sys
import zlib
from typing import Any

import torch

from chaos.external.observation.rows import rows_of

# A Mersenne Twister has 624 words and its place among them (NumPy, `mt19937.h`).
_TWISTER_BYTES = 625 * 4
_MASK = (1 << 64) - 1


def random_states() -> dict[str, str]:
    """A digest of the state of each global generator that there is: `python`, `numpy`, `torch`, `device`.

    All of them take some 20 us. Python's hash of whole numbers is the same in every process.
    """
    _, numbers, gauss = random.getstate()
    told = {"python": f"{hash(numbers) & _MASK:x}.{gauss}", "torch": f"{_of_tensor(torch.get_rng_state()):x}"}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        told["numpy"] = f"{_of_numpy(numpy):x}"
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        told["device"] = f"{_of_tensor(torch.cuda.get_rng_state()):x}"
    return told


def _of_tensor(state: torch.Tensor) -> int:
    try:
        return zlib.crc32(state.numpy().tobytes())
    except RuntimeError:
        # Without NumPy: ten times as slow.
        digests = rows_of([state.reshape(1, -1)])
        return 0 if digests is None else int(digests.item()) & _MASK


def _of_numpy(numpy: Any) -> int:
    """Of the global generator; `numpy.random.get_state` alone takes longer than all the rest."""
    generator: Any = getattr(numpy, "get_bit_generator", lambda: None)()
    if type(generator).__name__ != "MT19937":
        kind, key, *rest = numpy.get_state()
        return zlib.crc32(f"{kind} {rest}".encode(), zlib.crc32(key.tobytes()))
    address = generator.ctypes.state_address
    return zlib.crc32(ctypes.string_at(address, _TWISTER_BYTES))
