"""The states of the random generators from which a step may draw."""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
import zlib
from typing import Any

import torch

from chaos.external.observation.rows import rows_of

# A Mersenne Twister has 624 words and its place among them (NumPy, `mt19937.h`).
_TWISTER_BYTES = 625 * 4


def digest_of_random_states() -> str:
    """A digest of the states of Python's, NumPy's, torch's and its device's generators, of those that there are.

    It takes some 20 us. Python's hash of whole numbers is the same in every process.
    """
    _, numbers, gauss = random.getstate()
    told = f"{hash(numbers)} {gauss!r} {_of_tensor(torch.get_rng_state())}"
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        told += f" {_of_numpy(numpy)}"
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        told += f" {_of_tensor(torch.cuda.get_rng_state())}"
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def _of_tensor(state: torch.Tensor) -> int:
    try:
        return zlib.crc32(state.numpy().tobytes())
    except RuntimeError:
        # Without NumPy: ten times as slow.
        digests = rows_of([state.reshape(1, -1)])
        return 0 if digests is None else int(digests.item())


def _of_numpy(numpy: Any) -> int:
    """Of the global generator; `numpy.random.get_state` alone takes longer than all the rest."""
    generator: Any = getattr(numpy, "get_bit_generator", lambda: None)()
    if type(generator).__name__ != "MT19937":
        kind, key, *rest = numpy.get_state()
        return zlib.crc32(f"{kind} {rest}".encode(), zlib.crc32(key.tobytes()))
    address = generator.ctypes.state_address
    return zlib.crc32(ctypes.string_at(address, _TWISTER_BYTES))
