"""State that moves during a step: under way while the step computes, checked before the optimizer touches it."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import Operation, wait_all
from mecefo_runtime.job.background import Background
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.transfer import STATE_TAG, StateCorrupt
from mecefo_runtime.state.units import UnitState

# Above the tags of what moves before an epoch.
_FETCH_TAG = 2 * STATE_TAG


class Fetching:
    """One rank's part of an epoch's background transfers. `received` are the units that have arrived whole."""

    def __init__(self, background: Background, groups: Groups, state: ModelState) -> None:
        self._background = background
        self._groups = groups
        self._state = state
        self._begun_step = 0
        self._sending: list[tuple[Operation, _Checksum, int, int]] = []
        self._receiving: list[tuple[UnitState, Tensor, int, tuple[Operation, Operation]]] = []
        # Replaced, never changed: another thread looks at it.
        self.received: frozenset[str] = frozenset()

    def begin(self, step: int) -> None:
        """Start what moves during `step`. A step that is computed again begins it only once."""
        if step <= self._begun_step or step > self._background.last_step:
            return
        self._begun_step = step
        for index, shadow in enumerate(self._background.transfers(step)):
            tag = _FETCH_TAG + 2 * index
            if shadow.source == self._groups.rank:
                unit = self._state.units[shadow.unit]
                work = self._groups.send(unit.storage, shadow.rank, tag)
                self._sending.append((work, _Checksum(unit), shadow.rank, tag + 1))
            elif shadow.rank == self._groups.rank:
                assert shadow.source is not None
                unit = self._state.units[shadow.unit]
                checksum = torch.empty(1, dtype=torch.int64)
                works = (
                    self._groups.start_receive(unit.storage, shadow.source, tag),
                    self._groups.start_receive(checksum, shadow.source, tag + 1),
                )
                self._receiving.append((unit, checksum, shadow.source, works))

    def finish(self) -> None:
        """Wait for what has begun; afterwards the optimizer may change what was sent and received.

        Raises:
            EpochBroken: a peer died meanwhile.
            StateCorrupt: a unit arrived damaged.
        """
        kept, sending = [], []
        for work, checksum, destination, tag in self._sending:
            kept.append(torch.tensor([checksum.result()], dtype=torch.int64))
            sending += [self._groups.send(kept[-1], destination, tag), work]
        wait_all(sending)
        self._sending.clear()
        for unit, expected, source, works in self._receiving:
            wait_all(works)
            if unit.checksum() != int(expected[0]):
                raise StateCorrupt(f"{unit.unit} arrived damaged from rank {source}")
            self.received |= {unit.unit}
        self._receiving.clear()


class _Checksum:
    """A unit's checksum, computed beside the training thread."""

    def __init__(self, unit: UnitState) -> None:
        self._value = 0

        def compute() -> None:
            self._value = unit.checksum()

        self._thread = threading.Thread(target=compute, name="checksum", daemon=True)
        self._thread.start()

    def result(self) -> int:
        self._thread.join()
        return self._value
