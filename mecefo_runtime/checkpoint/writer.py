"""Saves checkpoints while training continues: copies on the caller's thread, writes on a background thread."""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from mecefo_runtime.checkpoint.checkpoint import named_tensors, step_folder
from mecefo_runtime.checkpoint.manifest import Identity, Stamp
from mecefo_runtime.checkpoint.unit import write_unit
from mecefo_runtime.state.staging import Staging
from mecefo_runtime.state.units import UnitState

NO_STORAGES: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SaveResult:
    """The result of one `save`.

    `error` says why not all units are on disk, None: they are. `was_skipped`: the save before was still being
    written, and nothing was done. `blocking_seconds` is how long training was blocked, `writing_seconds` how long the
    write took in the background.
    """

    step: int
    units: tuple[str, ...]
    num_bytes: int = 0
    blocking_seconds: float = 0.0
    writing_seconds: float = 0.0
    was_skipped: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Order:
    stamp: Stamp
    # Names and shapes; the values are views into the staging buffers.
    units: Mapping[str, tuple[Mapping[str, Tensor], Tensor]]
    blocking_seconds: float


class CheckpointWriter:
    """Writes one rank's part of checkpoints into `root`; see `checkpoint` for what lies there.

    One save is under way at a time. A newer one is skipped until it is done: waiting would stop training, queueing
    would need a second copy of the state. Ranks that skip different steps complete none of them, so let all ranks
    skip together (`is_busy`). Nothing that goes wrong is raised: each save has one `SaveResult`.
    """

    def __init__(self, root: Path, identity: Identity) -> None:
        self._root = root
        self._identity = identity
        self._buffers: dict[str, Tensor] = {}
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[SaveResult] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        # A daemon: a disk that hangs must not keep the rank from ending.
        self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a save is still being written."""
        return not self._idle.is_set()

    def save(
        self, step: int, units: Mapping[str, UnitState], lineage: str, storages: Mapping[str, Tensor] = NO_STORAGES
    ) -> bool:
        """Copy `units` as they are after `step` and start writing them; returns False when the save was skipped.

        `storages` are those of units of which the holder has a share only, put together. `lineage` must be the same
        on all ranks and another one after every resume (see `Stamp`). On return the caller may change the units. The
        copy is complete on return: later corruption of the state does not reach the checkpoint.
        """
        if self.is_busy:
            self._results.put(SaveResult(step, tuple(units), was_skipped=True))
            return False
        began = time.monotonic()
        # Buffers are kept: new memory costs about as much time again when it is first touched.
        sources = {name: storages.get(name, unit.storage) for name, unit in units.items()}
        self._buffers = {
            name: buffer
            for name, source in sources.items()
            if (buffer := self._buffers.get(name)) is not None and buffer.shape == source.shape
        }
        staged: dict[str, tuple[Mapping[str, Tensor], Tensor]] = {}
        for name, unit in units.items():
            if name not in self._buffers:
                # Page-locked, so that the copy from a GPU takes no detour.
                self._buffers[name] = torch.empty_like(sources[name], device="cpu", pin_memory=sources[name].is_cuda)
            staged[name] = named_tensors(unit, self._buffers[name]), self._buffers[name]
        Staging([(source, self._buffers[name]) for name, source in sources.items()]).finish()
        self._idle.clear()
        self._orders.put(_Order(Stamp(step, lineage, self._identity), staged, time.monotonic() - began))
        return True

    def results(self) -> list[SaveResult]:
        """The results of the saves that ended or were skipped since the last call."""
        found = []
        while True:
            try:
                found.append(self._results.get_nowait())
            except queue.Empty:
                return found

    def wait(self, deadline_seconds: float) -> bool:
        """Wait for the save in progress; returns False when it has not finished in time."""
        return self._idle.wait(deadline_seconds)

    def close(self, deadline_seconds: float) -> bool:
        """Finish the save in progress and stop; returns False when it did not finish and ends with the process."""
        self._orders.put(None)
        self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            result = self._write(order)
            # In this order, so that who waited finds the result.
            self._results.put(result)
            self._idle.set()

    def _write(self, order: _Order) -> SaveResult:
        began = time.monotonic()
        folder = step_folder(self._root, order.stamp.step)
        num_bytes, error = 0, None
        for unit, (tensors, buffer) in order.units.items():
            try:
                crc32 = zlib.crc32(buffer.numpy().data)
                num_bytes += write_unit(folder, unit, order.stamp, tensors, crc32).num_bytes
            except Exception as reason:
                # Training is worth more than its record. The other units would most likely fail alike, and without
                # this one they are of no use.
                error = f"{unit}: {type(reason).__name__}: {reason}"
                break
        seconds = time.monotonic() - began
        return SaveResult(order.stamp.step, tuple(order.units), num_bytes, order.blocking_seconds, seconds, error=error)
