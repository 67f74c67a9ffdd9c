"""Erasure codes: bit-exact for any loss that the code can bear, a clear refusal for any other, and ISA-L's parity."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyeclib.ec_iface import ECDriver

from mecefo_runtime.snapshots.codes import BLOCK_BYTES, Unrecoverable, encode_p, encode_q, rebuild

pytestmark = pytest.mark.unit


def row(num_data: int, num_bytes: int, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, num_bytes, dtype=np.uint8) for _ in range(num_data)]


rows = st.builds(row, st.integers(1, 9), st.integers(1, 300), st.integers(0, 1 << 20))


@given(rows, st.data())
def test_any_two_lost_stripes_of_a_row_are_rebuilt_bit_for_bit(data, drawn) -> None:
    stripes = {**dict(enumerate(data)), "p": encode_p(data), "q": encode_q(data)}
    for number in (0, 1, 2):
        for lost in combinations(stripes, number):
            left = {name: stripe for name, stripe in stripes.items() if name not in lost}
            there = {name: stripe for name, stripe in left.items() if isinstance(name, int)}
            found = rebuild(there, len(data), left.get("p"), left.get("q"))
            assert set(found) == {name for name in lost if isinstance(name, int)}
            assert all(np.array_equal(stripe, data[index]) for index, stripe in found.items())


@given(rows, st.integers(0, 8))
def test_nothing_that_is_there_is_changed(data, lost: int) -> None:
    lost %= len(data)
    p, q = encode_p(data), encode_q(data)
    before = [stripe.copy() for stripe in (*data, p, q)]
    rebuild({index: stripe for index, stripe in enumerate(data) if index != lost}, len(data), None, q)
    assert all(np.array_equal(stripe, kept) for stripe, kept in zip((*data, p, q), before, strict=True))


def test_more_than_the_code_can_bear_is_refused() -> None:
    data = row(4, 3, 1)
    p, q = encode_p(data), encode_q(data)
    for there, parity in (((0, 1), (p, None)), ((0, 1), (None, q)), ((0,), (p, q)), ((0, 1, 2), (None, None))):
        with pytest.raises(Unrecoverable, match=rf"{4 - len(there)} of 4 stripes are lost"):
            rebuild({index: data[index] for index in there}, 4, *parity)


@pytest.mark.parametrize(("num_data", "num_bytes"), [(2, 4096), (4, 4096), (6, BLOCK_BYTES + 4096), (8, 4096)])
def test_the_parity_is_that_of_isal(num_data: int, num_bytes: int) -> None:
    """An oracle: pyeclib brings Intel's ISA-L, whose Vandermonde code with two parities is P+Q of the same field."""
    data = row(num_data, num_bytes, 7)
    driver = ECDriver(k=num_data, m=2, ec_type="isa_l_rs_vand")
    fragments = driver.encode(b"".join(stripe.tobytes() for stripe in data))
    # liberasurecode puts a header before each fragment.
    p, q = (np.frombuffer(fragment, dtype=np.uint8)[-data[0].size :] for fragment in fragments[num_data:])
    assert np.array_equal(p, encode_p(data))
    assert np.array_equal(q, encode_q(data))
