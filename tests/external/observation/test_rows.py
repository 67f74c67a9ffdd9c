"""Rows of a batch have equal digests where their bits are equal, wherever and however they are stored."""

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chaos.external.observation import rows
from chaos.external.observation.rows import Later, in_base64, rows_of, tensors_in

pytestmark = pytest.mark.unit
DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def digests(*tensors):
    found = rows_of(tensors)
    return None if found is None else found.tolist()


@st.composite
def batches(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    values = draw(st.lists(st.integers(0, 100), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(values).reshape(shape).to(dtype)


@given(batches(), st.randoms())
def test_a_digest_is_of_the_row_and_of_nothing_else(batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    assert digests(batch[order]) == [digests(batch)[place] for place in order]
    assert digests(batch) == [digest for row in batch for digest in digests(row.reshape(1, *row.shape))]


@given(batches(), st.integers(0, 3))
def test_the_same_bits_have_the_same_digest_wherever_they_lie(batch, offset):
    memory = torch.zeros(batch.numel() + offset, dtype=batch.dtype)
    moved = memory[offset:].view(batch.shape)
    moved.copy_(batch)
    strided = torch.stack([batch, batch], dim=-1)[..., 0]
    assert (
        digests(batch)
        == digests(moved)
        == digests(strided)
        == digests(batch.clone().requires_grad_(batch.is_floating_point()))
    )


@given(batches(), st.data())
def test_another_value_has_another_digest(batch, data):
    place = data.draw(st.integers(0, batch.numel() - 1))
    other = batch.clone()
    flat = other.view(-1)
    flat[place] = ~flat[place] if batch.dtype is torch.bool else flat[place] + 1
    row = place // (batch.numel() // len(batch))
    assert [one == two for one, two in zip(digests(batch), digests(other), strict=True)] == [
        number != row for number in range(len(batch))
    ]


@given(st.lists(st.integers(0, 50_000), min_size=2, max_size=8, unique=True))
def test_the_order_within_a_row_counts(tokens):
    assert digests(torch.tensor([tokens])) != digests(torch.tensor([tokens[::-1]]))


def test_many_rows_have_different_digests():
    every = torch.arange(4096).reshape(4096, 1)
    assert len(set(digests(every))) == len(set(digests(torch.cat([every, every], 1)))) == 4096


def test_all_tensors_of_the_batch_count_and_others_do_not():
    inputs, mask, positions = torch.arange(6).reshape(2, 3), torch.ones(2, 3), torch.arange(3)
    assert digests(inputs, positions) == digests(inputs) != digests(inputs, mask)
    assert digests(inputs, mask) != digests(inputs, mask * 2)


def test_more_rows_than_are_told_have_one_digest():
    many = torch.arange(rows.MAX_ROWS + 1).reshape(-1, 1)
    assert len(digests(many)) == 1
    assert digests(many) != digests(many.flip(0))


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (torch.tensor(1.0),),
        (torch.zeros(0, 3),),
        (torch.ones(2, 2).to_sparse(),),
        (torch.ones(2, 2, device="meta"),),
    ],
)
def test_what_has_no_rows_has_none(tensors):
    assert digests(*tensors) is None


def test_tensors_are_found_in_what_a_model_is_called_with():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    assert list(tensors_in(([one, {"a": two}], "text", {"b": (three,)}))) == [one, two, three]
    nested = one
    for _ in range(10):
        nested = [nested]
    assert list(tensors_in(nested)) == []


class Never:
    """The event of a device that hangs."""

    def query(self):
        return False


def test_a_device_that_hangs_is_not_waited_for():
    later = Later(torch.arange(3))
    assert (later.values(0.0), later.size) == ([0, 1, 2], 3)
    later._event = Never()
    assert later.values(time.monotonic() + 0.01) is None


def test_digests_are_eight_bytes_each():
    assert in_base64([1, -1]) == "AQAAAAAAAAD//////////w=="
