"""Copies of state into memory that stays as it is when the state changes: in slices, while the rank computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Half a millisecond on a slow host: nothing beside a compute segment.
SLICE_BYTES = 2 << 20


class Staging:
    """A copy under way of each `source` into its `target`, flat tensors of one size and type.

    Sources must not change until it `is_done`. From a GPU everything goes at once, on a stream of its own into memory
    that should be page-locked, and nothing waits for it but `finish`.
    """

    def __init__(self, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._copies = [(source, target) for source, target in copies if source.numel()]
        self._first = 0
        self._streams: list[torch.cuda.Stream] = []
        self.num_bytes = sum(source.nbytes for source, _ in copies)

    @property
    def is_done(self) -> bool:
        """Whether all of it is copied."""
        return not self._copies and all(stream.query() for stream in self._streams)

    def advance(self, max_bytes: int = SLICE_BYTES) -> None:
        """Copy up to so many bytes more."""
        while self._copies and max_bytes > 0:
            source, target = self._copies[0]
            if source.is_cuda:
                self._start_on_stream()
                break
            end = min(source.numel(), self._first + max(1, max_bytes // source.element_size()))
            target[self._first : end].copy_(source[self._first : end])
            max_bytes -= (end - self._first) * source.element_size()
            self._first = end
            if end == source.numel():
                self._copies.pop(0)
                self._first = 0

    def finish(self) -> None:
        """Copy the rest; afterwards sources may change."""
        while self._copies:
            self.advance(self.num_bytes)
        for stream in self._streams:
            stream.synchronize()

    def _start_on_stream(self) -> None:
        device = self._copies[0][0].device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # What the optimizer has written is there before it is copied.
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for source, target in self._copies:
                target.copy_(source, non_blocking=True)
        self._streams.append(stream)
        self._copies.clear()
