"""Sizes in bytes, as users write them."""

from __future__ import annotations

import re

from chaos.errors import UsageError, nearest, shown
from mecefo_runtime.job.setting import BYTES_PER_UNIT

QUANTITY = re.compile(r"(\d{1,16}(?:\.\d{1,6})?)\s*([A-Za-z]*)")
"""A number and a unit."""
# All whole numbers up to here are exact as floats.
_MOST_BYTES = 2**53


def parse_bytes(value: object) -> int:
    """Bytes of `512MiB`, `1.5 GB` or `4096B`.

    Raises:
        UsageError: it is none of these, or not at least 1 byte.
    """
    match = QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UsageError(f"{shown(value)} is not a size: write 512MiB, 1.5GB or 4096B")
    number, unit = match.groups()
    if unit not in BYTES_PER_UNIT:
        wanted = f"{unit!r} is no unit" if unit else f"{shown(value)} has no unit"
        words = tuple(BYTES_PER_UNIT)
        raise UsageError(f"{wanted}: use one of {', '.join(words)}", suggestion=nearest(unit, words))
    size_bytes = int(float(number) * BYTES_PER_UNIT[unit])
    if size_bytes < 1:
        raise UsageError(f"{shown(value)} is nothing: write at least 1B")
    if size_bytes > _MOST_BYTES:
        raise UsageError(f"{shown(value)} is more than any machine has")
    return size_bytes


def bytes_text(size_bytes: int) -> str:
    """A size as `parse_bytes` reads it, exactly: in the largest binary unit of which it is a whole number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes % BYTES_PER_UNIT[unit] == 0:
            return f"{size_bytes // BYTES_PER_UNIT[unit]}{unit}"
    return f"{size_bytes}B"
