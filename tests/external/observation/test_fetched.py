"""The indices of a batch are those of its samples, however the script fetches, keeps and copies batches."""

import gc
from collections import deque

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, dataloader

from chaos.external.observation.fetched import FetchedBatches
from chaos.external.observation.rows import rows_of

pytestmark = pytest.mark.unit


class Numbers(Dataset):
    """Each sample is its index."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([index, index + 100]), torch.tensor(index)


@pytest.fixture
def fetched(monkeypatch):
    """Hooked as `chaos.external.hooks.TorchHooks` does it."""
    batches = FetchedBatches()
    kind = dataloader._BaseDataLoaderIter
    fetch, draw, reset = kind.__next__, kind._next_index, kind._reset

    def next_batch(iterator):
        is_first = iterator._num_yielded == 0
        batch = fetch(iterator)
        batches.returned(iterator, batch, is_first=is_first)
        return batch

    def next_index(iterator):
        indices = draw(iterator)
        batches.asked(iterator, indices)
        return indices

    def restart(iterator, *args, **kwargs):
        batches.restart(iterator)
        return reset(iterator, *args, **kwargs)

    monkeypatch.setattr(kind, "__next__", next_batch)
    monkeypatch.setattr(kind, "_next_index", next_index)
    monkeypatch.setattr(kind, "_reset", restart)
    return batches


def indices_of(fetched, tensor):
    batch = fetched.of([tensor])
    return None if batch is None else list(batch.indices)


def content(tensor):
    return tensor[:, 0].tolist()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_batch_that_is_used_later_has_its_own_indices(fetched, workers, ahead):
    waiting = deque()
    num_used = 0
    for x, _ in DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=workers):
        waiting.append(x)
        if len(waiting) > ahead:
            used = waiting.popleft()
            assert indices_of(fetched, used) == content(used)
            num_used += 1
    assert num_used == 6 - ahead


def test_what_was_skipped_shifts_nothing(fetched):
    batches = iter(DataLoader(Numbers(), batch_size=4, shuffle=True))
    for _ in range(3):
        next(batches)
    x, y = next(batches)
    assert indices_of(fetched, x[:, :-1]) == indices_of(fetched, y.reshape(4, 1)) == content(x)
    assert not fetched.of([x]).is_first


def test_two_loaders_in_turn(fetched):
    one = DataLoader(Numbers(), batch_size=4, shuffle=True)
    other = DataLoader(Subset(Numbers(), range(8, 24)), batch_size=2, shuffle=True)
    for (x, _), (z, _) in zip(one, other, strict=False):
        assert (indices_of(fetched, x), indices_of(fetched, z)) == (content(x), content(z))


def test_a_new_epoch_of_the_same_workers_forgets_what_was_fetched_ahead(fetched):
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    x, _ = next(iter(loader))
    assert fetched.of([x]).is_first
    for x, _ in loader:
        assert indices_of(fetched, x) == content(x)


def test_a_copy_is_no_batch_of_a_loader(fetched):
    x, _ = next(iter(DataLoader(Numbers(), batch_size=4)))
    assert fetched.of([x.float()]) is None


def test_copies_on_another_device_are_found_by_their_rows(fetched):
    fetched.are_copied()
    every = [x.clone() for x, _ in DataLoader(Numbers(), batch_size=4, shuffle=True)]
    for x in every:
        own = rows_of([x]).tolist()
        (batch,) = (one for one in fetched.candidates() if any(rows.values(0.0) == own for rows in one.rows))
        assert list(batch.indices) == content(x)


def test_the_first_copies_are_found_before_it_is_known_that_they_are(fetched):
    x = next(iter(DataLoader(Numbers(), batch_size=4)))[0].clone()
    assert fetched.of([x]) is None
    (batch,) = fetched.candidates()
    assert [rows_of([x]).tolist()] == [rows.values(0.0) for rows in batch.rows][:1]


def test_a_model_that_is_never_called_with_a_batch_ends_the_search(fetched):
    loader = DataLoader(Numbers(), batch_size=4)
    fetched.are_copied()
    next(iter(loader))
    for _ in range(16):
        assert fetched.may_be_copied
        fetched.found(None)
    assert not fetched.may_be_copied
    num_before = len(fetched.candidates())
    for _ in range(8):
        next(iter(loader))
    assert len(fetched.candidates()) == num_before + 7


def test_a_batch_whose_memory_is_used_again_is_not_taken_for_the_one_before(fetched):
    x, y = next(iter(DataLoader(Numbers(), batch_size=4)))
    places = set(fetched.of([x]).places)
    del x, y
    gc.collect()
    again = [torch.zeros(4, 2, dtype=torch.int64) for _ in range(64)]
    reused = [one for one in again if one.data_ptr() in places]
    assert all(fetched.of([one]) is None for one in reused)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(24).reshape(12, 2))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=4),
        DataLoader(Numbers(), batch_size=4, num_workers=2, in_order=False),
        DataLoader({"a": torch.ones(2), "b": torch.ones(2)}, sampler=["a", "b"], batch_size=2),
    ],
)
def test_where_indices_are_not_known_none_are_said(fetched, loader):
    for batch in loader:
        x = batch if isinstance(batch, torch.Tensor) else batch[0]
        assert fetched.of([x]).indices is None


def test_few_batches_are_kept(fetched):
    every = [x for _ in range(20) for x, _ in DataLoader(Numbers(), batch_size=4)]
    assert fetched.of([every[0]]) is None
    assert indices_of(fetched, every[-1]) == content(every[-1])
    assert len(fetched._by_place) <= 2 * 64
