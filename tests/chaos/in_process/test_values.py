"""Bits of single elements, and which ones are drawn."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chaos.in_process.base import InProcessFaultRefused
from chaos.in_process.tensor_selector import TensorSelector
from chaos.in_process.values import Corruption, as_integers, describe, is_same_bits, most_different, read, write

pytestmark = pytest.mark.unit

WIDTHS = {torch.float64: 64, torch.float32: 32, torch.bfloat16: 16, torch.float16: 16}
dtypes = st.sampled_from(list(WIDTHS))
numbers = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=16), min_size=1, max_size=5)


@given(dtypes, numbers, st.data())
def test_a_flip_changes_just_that_bit_and_twice_is_nothing(dtype, values, data):
    before = torch.tensor(values, dtype=dtype)
    bit = data.draw(st.integers(0, WIDTHS[dtype] - 1))
    settled = Corruption("flip", bit=bit).settle(before, Random(0))
    changed = as_integers(before) ^ as_integers(settled.wrong)
    assert {int(value) % (1 << WIDTHS[dtype]) for value in changed} == {1 << bit}
    back = Corruption("flip", bit=bit).settle(settled.wrong, Random(0)).wrong
    assert is_same_bits(back, before)


@given(dtypes, numbers, numbers, st.sampled_from(["drawn", "sign", "exponent", "mantissa"]), st.integers())
def test_a_stuck_bit_is_what_it_became_whatever_comes_and_no_other_is(dtype, first, then, part, seed):
    size = min(len(first), len(then))
    first, then = (torch.tensor(values[:size], dtype=dtype) for values in (first, then))
    settled = Corruption("flip", bit=part).settle(first, Random(seed))
    stuck = settled.again(then)
    for place, bit in enumerate(settled.bits):
        wanted = int(as_integers(settled.wrong)[place]) >> bit & 1
        assert int(as_integers(stuck)[place]) >> bit & 1 == wanted
        assert int(as_integers(stuck)[place] ^ as_integers(then)[place]) % (1 << WIDTHS[dtype]) in (0, 1 << bit)
    assert is_same_bits(settled.again(stuck), stuck)


@pytest.mark.parametrize(
    ("dtype", "part", "bits"),
    [
        (torch.float32, "sign", {31}),
        (torch.float32, "exponent", set(range(23, 31))),
        (torch.float32, "mantissa", set(range(23))),
        (torch.bfloat16, "exponent", set(range(7, 15))),
        (torch.float16, "mantissa", set(range(10))),
        (torch.bfloat16, "drawn", set(range(16))),
    ],
)
def test_a_part_of_a_number_has_its_bits(dtype, part, bits):
    settled = Corruption("flip", bit=part).settle(torch.ones(500, dtype=dtype), Random(1))
    assert set(settled.bits) == bits


@pytest.mark.parametrize(("dtype", "bit"), [(torch.bfloat16, 16), (torch.float32, 32), (torch.int64, 3)])
def test_a_bit_that_is_not_there_is_refused(dtype, bit):
    with pytest.raises(InProcessFaultRefused, match=r"bits 0 to|floating-point"):
        Corruption("flip", bit=bit).settle(torch.ones(1, dtype=dtype), Random(0))


def test_fill_and_scale():
    values = torch.tensor([1.0, -2.0])
    assert Corruption("fill", number=float("inf")).settle(values, Random(0)).wrong.tolist() == [torch.inf] * 2
    assert Corruption("scale", number=3.0).settle(values, Random(0)).wrong.tolist() == [3.0, -6.0]
    assert Corruption.of({"how": "fill", "number": "nan"}).settle(values, Random(0)).wrong.isnan().all()


@pytest.mark.parametrize("shape", [(), (1,), (6,), (3, 4)])
def test_elements_are_written_in_place(shape):
    tensor = torch.zeros(shape)
    last = torch.tensor([tensor.numel() - 1])
    write(tensor, last, torch.tensor([7.0]))
    assert tensor.reshape(-1)[-1] == 7.0 and tensor.sum() == 7.0
    assert read(tensor, last).tolist() == [7.0]


def test_elements_of_a_tensor_that_is_not_contiguous_are_counted_row_by_row():
    base = torch.arange(12.0).view(3, 4)
    turned = base.T
    assert read(turned, torch.tensor([1])).item() == turned[0, 1]
    write(turned, torch.tensor([1]), torch.tensor([99.0]))
    assert turned[0, 1] == 99.0 and base[1, 0] == 99.0


def test_autograd_does_not_notice():
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * weight).sum()
    write(weight, torch.tensor([0]), torch.tensor([5.0]))
    loss.backward()
    assert weight.grad.tolist() == [10.0, 2.0], "the backward pass reads the memory as it is by then"


def test_descriptions_are_json_and_show_what_changed_most():
    before = torch.arange(20.0)
    after = before.clone()
    after[13], after[4] = float("nan"), 4.5
    told = describe("w", before.view(4, 5), torch.arange(20), before, after, ())
    assert told["count"] == 20 and len(told["elements"]) == 8
    first, second = told["elements"][:2]
    assert (first["index"], first["place"], first["before"], first["after"]) == (13, [2, 3], 13.0, "nan")
    assert (second["index"], second["bits_before"], second["bits_after"]) == (4, "40800000", "40900000")
    assert most_different(before, after).tolist()[:2] == [13, 4]


# ---- places ----

NAMES = {
    "embedding.weight": torch.zeros(100, 4),
    "layer.1.up.weight": torch.zeros(4, 4),
    "layer.11.up.weight": torch.zeros(4, 4),
    "layer.1.norm.weight": torch.zeros(4),
    "layer.1.counts": torch.zeros(4, dtype=torch.int64),
}


@pytest.mark.parametrize(
    ("aim", "expected"),
    [
        (TensorSelector(layer=1), {"layer.1.up.weight", "layer.1.norm.weight"}),
        (TensorSelector(tensor="layer.*.up.*"), {"layer.1.up.weight", "layer.11.up.weight"}),
        (TensorSelector(tensor="*.up.weight", layer=11), {"layer.11.up.weight"}),
        (TensorSelector(tensor="embedding.weight"), {"embedding.weight"}),
    ],
)
def test_only_what_fits_is_drawn(aim, expected):
    drawn = {aim.tensor_of(NAMES, "parameters", Random(seed)) for seed in range(60)}
    assert drawn == expected


def test_elements_are_drawn_alike_from_all_tensors():
    drawn = [TensorSelector().tensor_of(NAMES, "parameters", Random(seed)) for seed in range(300)]
    assert drawn.count("embedding.weight") / 300 == pytest.approx(400 / 436, abs=0.05)


def test_what_is_not_there_is_refused_with_what_is():
    with pytest.raises(InProcessFaultRefused, match=r"no parameters that fit 'layer.7.\*'; it has embedding.weight"):
        TensorSelector(tensor="layer.7.*").tensor_of(NAMES, "parameters", Random(0))
    with pytest.raises(InProcessFaultRefused, match=r"no parameters of layer 2; it has layer 1, 11$"):
        TensorSelector(layer=2).tensor_of(NAMES, "parameters", Random(0))
    with pytest.raises(InProcessFaultRefused, match="16 elements: 3 from index 14"):
        TensorSelector(index=14, count=3).indices(NAMES["layer.1.up.weight"], Random(0))


@given(st.integers(1, 16), st.integers())
def test_the_same_seed_draws_the_same_elements(count, seed):
    tensor = torch.zeros(4, 4)
    one, other = (TensorSelector(count=count).indices(tensor, Random(seed)) for _ in range(2))
    assert torch.equal(one, other)
    assert len(set(one.tolist())) == count and set(one.tolist()) <= set(range(16))


def test_a_share_of_the_elements():
    tensor = torch.zeros(10, 10)
    assert TensorSelector(share=1.0).indices(tensor, Random(0)).tolist() == list(range(100))
    part = TensorSelector(share=0.25).indices(tensor, Random(0))
    assert part.numel() == part.unique().numel() == 25
    assert TensorSelector(share=1e-6).indices(tensor, Random(0)).numel() == 1, "never none"
    assert TensorSelector(index=7, count=2).indices(tensor, Random(0)).tolist() == [7, 8]
