"""Copies state into memory that does not change with it: in slices, while the rank computes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

# Half a millisecond on a slow host: nothing beside a compute segment.
SLICE_BYTES = 2 << 20
# cudaHostRegisterPortable: page-locked for every context.
_PORTABLE = 1


class Staging:
    """A copy under way of each `source` into its `target`, flat tensors of one size and type.

    Sources must not change until it `is_done`. From a GPU everything goes at once, on a stream of its own into memory
    that should be page-locked (`page_lock`), and nothing waits for it but `finish`.
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

    def begin(self) -> bool:
        """Copy a slice, or half of it all if that is less; False: it cannot be halved, and nothing is done."""
        limit_bytes = min(SLICE_BYTES, self.num_bytes // 2)
        first: list[tuple[Tensor, Tensor]] = []
        while self._copies and limit_bytes >= (num_bytes := self._copies[0][0].nbytes):
            first.append(self._copies.pop(0))
            limit_bytes -= num_bytes
        if self._copies and (end := limit_bytes // self._copies[0][0].element_size()):
            source, target = self._copies[0]
            first.append((source[:end], target[:end]))
            self._copies[0] = source[end:], target[end:]
        has_begun, rest, self._copies = bool(first), self._copies, first
        while self._copies:
            self.advance()
        self._copies = rest
        return has_begun

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


def page_lock(memory: memoryview, owner: object, device: torch.device) -> bool:
    """Let `device` write to `memory` by itself, until `owner`, which keeps it mapped, is gone; False: it cannot.

    Into other memory CUDA copies by way of its own, and the host waits for that ("API synchronization behavior" in the
    CUDA Runtime API). What is mapped again at the same place must not be taken for what was there before.
    """
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # The thread that asks may never have had to do with a GPU: it would begin with the first one.
    with torch.cuda.device(device):
        if int(runtime.cudaHostRegister(address, len(memory), _PORTABLE)):
            return False
    # At the process's end CUDA may be gone before.
    weakref.finalize(owner, runtime.cudaHostUnregister, address).atexit = False
    return True
