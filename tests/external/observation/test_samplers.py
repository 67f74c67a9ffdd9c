"""What is said of a sampler is what its epochs are: counted over all ranks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from chaos.external.observation.samplers import base_index, describe

pytestmark = pytest.mark.unit


def used(samplers):
    return Counter(index for sampler in samplers for batch in sampler for index in batch)


def said_of(sampler, data_set=()):
    seen = describe(sampler, data_set)
    return seen.num_samples, seen.is_shared, seen.has_replacement, seen.padding, seen.drops


sizes = st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.booleans()


@given(*sizes)
def test_of_ranks_that_divide_a_data_set(size, num_ranks, batch, drops_ranks, drops_batches):
    if drops_ranks and size < num_ranks:
        return
    every = [
        BatchSampler(
            DistributedSampler(range(size), num_replicas=num_ranks, rank=rank, drop_last=drops_ranks),
            batch,
            drops_batches,
        )
        for rank in range(num_ranks)
    ]
    num_samples, is_shared, has_replacement, padding, drops = said_of(every[0])
    counts = used(every)
    assert (num_samples, is_shared, has_replacement) == (size, True, False)
    assert counts.total() == size + padding - drops
    if not drops_batches:
        assert (sum(counts.values()) - len(counts), size - len(counts)) == (padding, drops)


@given(*sizes)
def test_of_accelerate(size, num_ranks, batch, drops, is_split):
    data_loader = pytest.importorskip("accelerate.data_loader")
    if is_split:
        batch *= num_ranks
    if drops and size < batch * num_ranks:
        return

    def shard(rank):
        inner = BatchSampler(SequentialSampler(range(size)), batch, drops)
        return data_loader.BatchSamplerShard(inner, num_ranks, rank, split_batches=is_split)

    every = [shard(rank) for rank in range(num_ranks)]
    num_samples, is_shared, has_replacement, padding, num_dropped = said_of(every[0], range(size))
    counts = used(every)
    assert (num_samples, is_shared, has_replacement) == (size, True, False)
    assert (sum(counts.values()) - len(counts), size - len(counts)) == (padding, num_dropped)


@given(st.integers(1, 40), st.integers(1, 5), st.booleans())
def test_of_a_rank_by_itself(size, batch, drops):
    for sampler in (RandomSampler(range(size)), SequentialSampler(range(size)), SubsetRandomSampler(range(size))):
        own = BatchSampler(sampler, batch, drops)
        num_samples, is_shared, has_replacement, padding, num_dropped = said_of(own)
        assert (num_samples, is_shared, has_replacement, padding) == (size, False, False, 0)
        assert num_dropped == size - used([own]).total()


@pytest.mark.parametrize(
    ("sampler", "has_replacement"),
    [
        (RandomSampler(range(8), replacement=True), True),
        (RandomSampler(range(8), num_samples=4), None),
        (RandomSampler(range(8), num_samples=16), None),
        (WeightedRandomSampler([0.5] * 8, 8), True),
        (iter(range(8)), None),
    ],
)
def test_where_an_epoch_does_not_go_through_all_samples_once_no_number_is_said(sampler, has_replacement):
    assert said_of(BatchSampler(sampler, 2, False), range(8)) == (None, False, has_replacement, None, None)


def test_an_iterable_data_set_has_no_samples_with_numbers():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    loader = DataLoader(Stream(), batch_size=2)
    assert said_of(loader._index_sampler, loader.dataset)[0] is None


def test_indices_are_those_of_the_data_set_below_all_subsets():
    whole = list(range(100))
    nested = Subset(Subset(whole, range(50, 100)), [3, 1, 2])
    assert [base_index(nested)(place) for place in range(3)] == [nested[place] for place in range(3)] == [53, 51, 52]
    with pytest.raises(TypeError):
        base_index(whole)("key")
