"""How fast the single parts of a snapshot are, on one core each: copying, checksums, parity."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch

from mecefo_runtime.snapshots.checksums import CHUNK_BYTES, checksums_of
from mecefo_runtime.snapshots.codes import BLOCK_BYTES, add_stripe
from mecefo_runtime.snapshots.region import Region
from mecefo_runtime.state.staging import SLICE_BYTES, Staging
from mecefo_runtime.system.devices import host_bytes

MEMCPY, STAGING = "memcpy", "staging into a process's memory"
ZLIB, CRC = "CRC-32, zlib", "CRC-32, as it is taken"
XOR, PQ_4, PQ_6 = "parity, XOR of 4", "parity, P+Q of 4+2", "parity, P+Q of 6+2"
NUM_STRIPES = 6


class Parts:
    """Each part by name, over `num_bytes` that are touched; `measure` takes all of them in turn."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._region = Region.create(num_bytes)
        self._source = torch.randn(num_bytes // 4)
        self._target = torch.zeros_like(self._source)
        self._staged = torch.frombuffer(self._region.buffer(0), dtype=torch.float32)
        generator = np.random.default_rng(0)
        length = num_bytes // NUM_STRIPES
        self._stripes = [generator.integers(0, 256, length, dtype=np.uint8) for _ in range(NUM_STRIPES)]
        self._parities = [np.zeros(length, dtype=np.uint8) for _ in range(2)]
        # Each takes the bytes and returns nothing; beside it how many it has worked on.
        self._all: Mapping[str, tuple[Callable[[], object], int]] = {
            MEMCPY: (lambda: self._target.copy_(self._source), num_bytes),
            STAGING: (self._stage, num_bytes),
            ZLIB: (self._zlib, num_bytes),
            CRC: (lambda: checksums_of(self._bytes()), num_bytes),
            XOR: (lambda: self._encode(4, 1), 4 * length),
            PQ_4: (lambda: self._encode(4, 2), 4 * length),
            PQ_6: (lambda: self._encode(6, 2), 6 * length),
        }

    def measure(self) -> dict[str, float]:
        """Bytes a second of every part, once."""
        found = {}
        for name, (work, num_bytes) in self._all.items():
            began = time.perf_counter()
            work()
            found[name] = num_bytes / (time.perf_counter() - began)
        return found

    def close(self) -> None:
        """Give the memory back."""
        self._region.close()

    def _bytes(self) -> memoryview:
        return host_bytes(self._source).cast("B")

    def _stage(self) -> None:
        staging = Staging([(self._source, self._staged)])
        while not staging.is_done:
            staging.advance(SLICE_BYTES)

    def _zlib(self) -> None:
        memory = self._bytes()
        for first in range(0, len(memory), CHUNK_BYTES):
            zlib.crc32(memory[first : first + CHUNK_BYTES])

    def _encode(self, num_data: int, num_parities: int) -> None:
        """As a snapshot process does it, with all stripes at hand: a block at a time, P and then Q."""
        for index, parity in enumerate(self._parities[:num_parities]):
            for first in range(0, len(parity), BLOCK_BYTES):
                block = parity[first : first + BLOCK_BYTES]
                last, *others = (s[first : first + BLOCK_BYTES] for s in reversed(self._stripes[:num_data]))
                np.copyto(block, last)
                for stripe in others:
                    add_stripe(block, stripe, doubles=index == 1)
