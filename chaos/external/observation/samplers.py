"""Which samples of its data set a loader goes through, by its sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as as_index
from typing import Any

from torch.utils.data import Subset

from mecefo_runtime.system.command_records import SamplerSeen

_MAX_WRAPPERS = 8
# What goes through all samples once, in whatever order; by name, since some are defined by trainers.
_WITHOUT_REPLACEMENT = {
    "SequentialSampler",
    "RandomSampler",
    "SeedableRandomSampler",
    "SubsetRandomSampler",
    "DistributedSampler",
    "DistributedSamplerWrapper",
    "UnrepeatedDistributedSampler",
}


def describe(index_sampler: object, data_set: object) -> SamplerSeen:
    """What is known of the sampler of a loader (`_BaseDataLoaderIter._index_sampler`)."""
    batches, sampler = _unwrapped(index_sampler)
    name = type(sampler).__name__
    if name not in _WITHOUT_REPLACEMENT:
        return SamplerSeen(sampler=name, has_replacement=True if name == "WeightedRandomSampler" else None)
    if getattr(sampler, "replacement", False):
        return SamplerSeen(sampler=name, has_replacement=True)
    num_drawn, num_samples = _length(sampler), _num_samples(sampler, data_set)
    if num_drawn is None or num_samples is None:
        return SamplerSeen(sampler=name)
    num_ranks = int(getattr(sampler, "num_replicas", 1)) if hasattr(sampler, "total_size") else 1
    padding = drops = 0
    is_shared = num_ranks > 1 or hasattr(sampler, "total_size")
    if is_shared:
        total = int(getattr(sampler, "total_size", num_samples))
        padding, drops = max(0, total - num_samples), max(0, num_samples - total)
    elif num_drawn != num_samples:
        # `RandomSampler(num_samples=...)`: a part of the samples, or several times all of them.
        return SamplerSeen(sampler=name)
    for wrapper in batches:
        if type(wrapper).__name__ == "BatchSamplerShard":
            return _sharded(name, wrapper, num_samples)
        if getattr(wrapper, "drop_last", False):
            drops += num_ranks * (num_drawn % max(1, int(getattr(wrapper, "batch_size", 1) or 1)))
    return SamplerSeen(
        sampler=name,
        num_samples=num_samples,
        is_shared=is_shared,
        has_replacement=False,
        padding=padding,
        drops=drops,
    )


def _sharded(name: str, shard: Any, num_samples: int) -> SamplerSeen:
    """Accelerate divides the batches of one sampler among the ranks (accelerate 1.15, `data_loader.py`)."""
    num_ranks, batch = int(shard.num_processes), int(shard.batch_size or 1)
    of_all = batch if shard.split_batches else batch * num_ranks
    beyond = num_samples % of_all
    padding = (of_all - beyond) % of_all if shard.even_batches and not shard.drop_last else 0
    return SamplerSeen(
        sampler=name,
        num_samples=num_samples,
        is_shared=True,
        has_replacement=False,
        padding=padding,
        drops=beyond if shard.drop_last else 0,
    )


def _unwrapped(sampler: object) -> tuple[list[Any], object]:
    """The samplers of batches, from the outermost, and the sampler of samples within."""
    batches: list[Any] = []
    current: Any = sampler
    while len(batches) < _MAX_WRAPPERS:
        inner = getattr(current, "batch_sampler", None)
        if inner is None and type(current).__name__ not in _WITHOUT_REPLACEMENT:
            inner = getattr(current, "sampler", None)
        if inner is None:
            break
        batches.append(current)
        current = inner
    return batches, current


def _num_samples(sampler: Any, data_set: object) -> int | None:
    """How many samples it goes through."""
    if hasattr(sampler, "indices"):
        return _length(sampler.indices)
    source = getattr(sampler, "dataset", getattr(sampler, "data_source", data_set))
    return _length(source)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def base_index(data_set: object) -> Callable[[Any], int]:
    """Maps an index of `data_set` to that of the data set below all `Subset`s."""
    chain: list[Sequence[int]] = []
    while isinstance(data_set, Subset) and len(chain) < _MAX_WRAPPERS:
        chain.append(data_set.indices)
        data_set = data_set.dataset

    def mapped(number: Any) -> int:
        found = as_index(number)
        for indices in chain:
            found = as_index(indices[found])
        return found

    return mapped
