"""Which samples a batch consists of: the loader's indices, for the tensors that the model is later called with.

A loader fetches ahead, and trainers drop or collect batches before they use them. So the order of fetching says
nothing, and a batch is recognized by its tensors.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chaos.external.observation.rows import Later, rows_of, tensors_in
from chaos.external.observation.samplers import base_index, describe
from mecefo_runtime.system.command_records import SamplerSeen

# Batches that were fetched and are not used yet; a trainer that accumulates gradients fetches all of a step at once.
_MAX_WAITING = 64
# Number of tensors of a batch that are compared where the model is called with copies of them.
_MAX_COMPARED = 4
# Whether they are copies is known after the first step: batches that were fetched by then.
_NUM_FIRST = 8
# The number of passes with tensors of no batch after which batches are not searched for any more.
_MAX_NOT_FOUND = 16


@dataclass(slots=True)
class Batch:
    """One that a loader has returned: `indices` in the data set, None where they are not known.

    `is_first`: it is the first of a new iterator, and was not used yet. `rows` are digests of each of its first
    tensors, where the model is on another device.
    """

    indices: tuple[int, ...] | None
    is_first: bool
    sampler: SamplerSeen | None
    places: Mapping[int, weakref.ref[Tensor]]
    rows: tuple[Later, ...] = ()

    def has(self, tensor: Tensor) -> bool:
        """Whether `tensor` is one of its tensors, or a view that begins where that does."""
        own = self.places.get(tensor.data_ptr(), lambda: None)()
        return own is not None and own.device == tensor.device


class FetchedBatches:
    """Of all loaders of the process."""

    def __init__(self) -> None:
        # Of each iterator of a loader: the indices of batches that were asked for and are not returned yet.
        self._asked: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        # By sampler of a loader: what it is, and how its indices are mapped to those of the data set below all subsets.
        self._samplers: weakref.WeakKeyDictionary[Any, tuple[SamplerSeen, Any]] = weakref.WeakKeyDictionary()
        self._newest: deque[Batch] = deque()
        # By the address of the first element of each of their tensors.
        self._by_place: dict[int, Batch] = {}
        # The model is called with other tensors than the loader's: on another device, or of another layout.
        self._are_copied = False
        self._num_returned = self._num_not_found = 0

    @property
    def may_be_copied(self) -> bool:
        """Whether to look for a batch by its rows."""
        return bool(self._num_returned) and self._num_not_found < _MAX_NOT_FOUND

    def are_copied(self) -> None:
        """The model is called with tensors that no loader has returned."""
        self._are_copied = True

    def found(self, batch: Batch | None) -> None:
        """The batch of such tensors; None: they have the rows of none."""
        if batch is not None:
            self._num_not_found = -(1 << 62)
        else:
            self._num_not_found += 1

    def restart(self, iterator: Any) -> None:
        """It begins another epoch: what was asked for in the last one does not come."""
        self._asked.pop(iterator, None)

    def asked(self, iterator: Any, indices: Any) -> None:
        """The next batch that it will return, of those that are not asked for yet, has these indices."""
        self._asked.setdefault(iterator, deque()).append(indices)

    def returned(self, iterator: Any, batch: object, *, is_first: bool) -> None:
        """A batch was returned; they come in the order in which they were asked for."""
        waiting = self._asked.get(iterator)
        indices = waiting.popleft() if waiting else None
        if getattr(getattr(iterator, "_loader", None), "in_order", getattr(iterator, "_in_order", True)) is False:
            indices = None
        tensors = [one for one in tensors_in(batch) if one.layout == torch.strided]
        sampler, own = self._indices(iterator, indices)
        rows: list[Later] = []
        self._num_returned += 1
        is_needed = self._are_copied and self.may_be_copied
        if own is not None and (is_needed or self._num_returned <= _NUM_FIRST):
            digests = (rows_of([one]) for one in tensors[:_MAX_COMPARED])
            rows = [Later(one) for one in digests if one is not None]
        places = {one.data_ptr(): weakref.ref(one) for one in tensors}
        self._keep(Batch(own, is_first, sampler, places, tuple(rows)))

    def _keep(self, batch: Batch) -> None:
        self._newest.append(batch)
        self._by_place.update(dict.fromkeys(batch.places, batch))
        if len(self._newest) > _MAX_WAITING:
            oldest = self._newest.popleft()
            for place in oldest.places:
                if self._by_place.get(place) is oldest:
                    del self._by_place[place]

    def of(self, tensors: Sequence[Tensor]) -> Batch | None:
        """The batch that has one of these, which the model is called with; None: none is known to."""
        for tensor in tensors:
            batch = self._by_place.get(tensor.data_ptr())
            if batch is not None and batch.has(tensor):
                return batch
        return None

    def candidates(self) -> list[Batch]:
        """Those that may be meant where the tensors are copies, to be found by their rows."""
        return [batch for batch in self._newest if batch.rows]

    def _indices(self, iterator: Any, indices: Any) -> tuple[SamplerSeen | None, tuple[int, ...] | None]:
        index_sampler = getattr(iterator, "_index_sampler", None)
        data_set = getattr(iterator, "_dataset", None)
        if indices is None or index_sampler is None:
            return None, None
        try:
            known = self._samplers.get(index_sampler)
            if known is None:
                known = describe(index_sampler, data_set), base_index(data_set)
                self._samplers[index_sampler] = known
            every = indices if isinstance(indices, list | tuple) else [indices]
            return known[0], tuple(map(known[1], every))
        except (TypeError, ValueError, LookupError, AttributeError):
            # The keys are not numbers, or the sampler is of another kind.
            return None, None
