"""Erasure codes over raw bytes: XOR, which rebuilds any one lost stripe of a row, and P+Q, which rebuilds any two.

P is the XOR of a row's data stripes. Q is their sum with the coefficients 1, 2, 4, ... in GF(2^8) with the polynomial
x^8 + x^4 + x^3 + x^2 + 1 (H. P. Anvin, "The mathematics of RAID-6", https://kernel.org/pub/linux/kernel/people/hpa/).
Stripes are flat uint8 arrays of one length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Stripe = NDArray[np.uint8]

# What is worked on at a time: it stays in the cache, and is long beside what a call costs.
BLOCK_BYTES = 1 << 20
# With more, coefficients repeat.
MAX_DATA_STRIPES = 255
_POLYNOMIAL = np.uint8(0x1D)


class Unrecoverable(ValueError):
    """More stripes of a row are lost than its code can rebuild."""


def encode_p(data: Sequence[Stripe]) -> Stripe:
    """The XOR of all of `data`, at least one stripe."""
    return _encode(data, doubles=False)


def encode_q(data: Sequence[Stripe]) -> Stripe:
    """The sum of all of `data`, stripe i times 2 to the power of i."""
    _check_number(len(data))
    return _encode(data, doubles=True)


def _encode(data: Sequence[Stripe], *, doubles: bool) -> Stripe:
    parity = np.zeros_like(data[0])
    for stripe in reversed(data):
        add_stripe(parity, stripe, doubles=doubles)
    return parity


def add_stripe(parity: Stripe, stripe: Stripe, *, doubles: bool) -> None:
    """One more stripe into a parity that begins as zeros, the last one first (Horner): Q `doubles`, P does not."""
    for first in range(0, len(parity), BLOCK_BYTES):
        block = parity[first : first + BLOCK_BYTES]
        if doubles:
            _double(block)
        np.bitwise_xor(block, stripe[first : first + BLOCK_BYTES], out=block)


def rebuild(
    data: Mapping[int, Stripe], num_data: int, p: Stripe | None = None, q: Stripe | None = None
) -> dict[int, Stripe]:
    """The data stripes of a row that are lost: of `num_data`, all that are not in `data`, by their indexes.

    Raises:
        Unrecoverable: more are lost than there is parity for.
    """
    _check_number(num_data)
    lost = [index for index in range(num_data) if index not in data]
    if not lost:
        return {}
    if len(lost) > (p is not None) + (q is not None):
        raise Unrecoverable(f"{len(lost)} of {num_data} stripes are lost, more than there is parity for")
    if len(lost) == 1:
        return {lost[0]: _one_by_p(data, p) if p is not None else _one_by_q(data, num_data, lost[0], q)}
    assert p is not None and q is not None
    return _two(data, num_data, lost[0], lost[1], p, q)


def _check_number(num_data: int) -> None:
    if not 1 <= num_data <= MAX_DATA_STRIPES:
        raise ValueError(f"a row has 1 to {MAX_DATA_STRIPES} data stripes, not {num_data}")


def _one_by_p(data: Mapping[int, Stripe], p: Stripe) -> Stripe:
    return encode_p([p, *data.values()])


def _one_by_q(data: Mapping[int, Stripe], num_data: int, lost: int, q: Stripe | None) -> Stripe:
    assert q is not None
    return _multiply(encode_p([q, _sum(data, num_data, q)]), _inverse(_power(lost)))


def _two(data: Mapping[int, Stripe], num_data: int, first: int, second: int, p: Stripe, q: Stripe) -> dict[int, Stripe]:
    """Two unknowns a, b: a + b = p', 2^i a + 2^j b = q'."""
    p_rest = encode_p([p, *data.values()])
    q_rest = encode_p([q, _sum(data, num_data, q)])
    q_rest ^= _multiply(p_rest, _power(second))
    a = _multiply(q_rest, _inverse(_power(first) ^ _power(second)))
    p_rest ^= a
    return {first: a, second: p_rest}


def _sum(data: Mapping[int, Stripe], num_data: int, like: Stripe) -> Stripe:
    """What the stripes that are there add to Q."""
    nothing = np.zeros_like(like)
    return encode_q([data.get(index, nothing) for index in range(num_data)])


def _double(stripe: Stripe) -> None:
    """Multiply by 2 in place: shift every byte, and reduce those that overflow."""
    overflows = np.less(stripe.view(np.int8), 0).view(np.uint8)
    np.multiply(overflows, _POLYNOMIAL, out=overflows)
    np.add(stripe, stripe, out=stripe)
    np.bitwise_xor(stripe, overflows, out=stripe)


def _multiply(stripe: Stripe, factor: int) -> Stripe:
    product: Stripe = _table(factor)[stripe]
    return product


def _powers() -> list[int]:
    """All 255 powers of 2, which are all elements but 0."""
    found = [1]
    while len(found) < MAX_DATA_STRIPES:
        doubled = found[-1] << 1
        found.append(doubled ^ (0x100 | int(_POLYNOMIAL)) if doubled & 0x100 else doubled)
    return found


_POWERS = _powers()
_LOGARITHMS = {power: exponent for exponent, power in enumerate(_POWERS)}


def _power(exponent: int) -> int:
    return _POWERS[exponent % len(_POWERS)]


def _inverse(value: int) -> int:
    return _power(-_LOGARITHMS[value])


def _table(factor: int) -> Stripe:
    """The products of `factor`, which is not 0, with every byte."""
    logarithm = _LOGARITHMS[factor]
    products = [0, *(_power(logarithm + _LOGARITHMS[byte]) for byte in range(1, 256))]
    return np.array(products, dtype=np.uint8)
