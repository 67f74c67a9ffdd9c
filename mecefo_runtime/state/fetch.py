"""State that moves during a step: under way while the step computes, checked before the optimizer touches it."""

from __future__ import annotations

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.layout import Transfer
from mecefo_runtime.state.activity import StateActivity
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.state.transfer import STATE_TAG, StateCorrupt, UnitTransfers

# Above the tags of what moves before an epoch.
_FETCH_TAG = 2 * STATE_TAG


class Fetching(StateActivity):
    """One rank's part of an epoch's background transfers. `received` are the units that have arrived whole."""

    def __init__(self, background: Background, groups: Groups, state: ModelState, traffic: Traffic = FREE) -> None:
        self._background = background
        self._rank = groups.rank
        self._state = state
        self._begun_step = 0
        self._moving = UnitTransfers(groups, _FETCH_TAG, traffic)
        # Replaced, never changed: another thread looks at it.
        self.received: frozenset[str] = frozenset()

    def begin(self, step: int) -> None:
        """Start what moves during `step`. A step that is computed again begins it only once."""
        if step <= self._begun_step or step > self._background.last_step:
            return
        self._begun_step = step
        for number, shadow in enumerate(self._background.transfers(step)):
            assert shadow.source is not None
            transfer = Transfer(shadow.unit, shadow.source, shadow.rank)
            if shadow.source == self._rank:
                self._moving.send(number, transfer, self._state.units[shadow.unit])
            elif shadow.rank == self._rank:
                self._moving.receive(number, transfer, self._state.units[shadow.unit])

    def finish(self) -> None:
        """Wait for what has begun; afterwards the optimizer may change what was sent and received.

        Raises:
            EpochBroken: a peer died meanwhile.
            StateCorrupt: units arrived damaged.
        """
        whole, damaged = self._moving.finish()
        self.received |= set(whole)
        if damaged:
            raise StateCorrupt(damaged)
