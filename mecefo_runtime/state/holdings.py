"""The state that a rank keeps from one epoch to the next, and which part of it is valid.

Between two epochs memory is short: what only the old epoch needed goes before the new one is built. What is committed
stays until the new epoch has begun, for the regroup may fail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.share import WHOLE, Share
from mecefo_runtime.state.model_state import ModelState, shares_of
from mecefo_runtime.state.units import UnitState


class Holdings:
    """The units of one rank. Its properties may be read by any thread."""

    def __init__(self, job: JobConfig, rank: int, device: torch.device) -> None:
        self._job = job
        self._rank = rank
        self._device = device
        # These are replaced, never changed: another thread looks at them.
        self._units: Mapping[str, UnitState] = {}
        # What this rank gave away in the last regroup. Until a step is committed it is as good as what others hold, and
        # they may be lost before they are done.
        self._given_away: Mapping[tuple[str, Share], UnitState] = {}
        # Units that this rank has made room for and does not have yet.
        self._awaited: frozenset[str] = frozenset()
        self._state: ModelState | None = None

    @property
    def state(self) -> ModelState:
        """The state of the last epoch that this rank was in, with its gradients, until the next one is built."""
        assert self._state is not None
        return self._state

    def units(self, distrusted: Collection[str], received: Collection[str] = ()) -> dict[str, UnitState]:
        """The units that this rank holds and trusts (none of the `distrusted`).

        `received` are units that the present epoch has fetched by now.
        """
        awaited = self._awaited.difference(received)
        return {name: unit for name, unit in self._units.items() if name not in awaited and name not in distrusted}

    def report(self, distrusted: Collection[str], received: Collection[str]) -> dict[str, Any]:
        """What a `RankReport` says of it, by its fields."""
        units, given_away = self.units(distrusted, received), self.given_away(distrusted)
        holdings = tuple(name for name, unit in units.items() if unit.has_all_parameters)
        if not self._job.sharded_optimizer:
            return {"holdings": holdings, "given_away": tuple(name for name, _ in given_away)}
        shares: dict[str, tuple[Share, ...]] = {}
        for name, share in given_away:
            shares[name] = (*shares.get(name, ()), share)
        held = {name: unit.share for name, unit in units.items()}
        return {"holdings": holdings, "shares": held, "given_away_shares": shares}

    def given_away(self, distrusted: Collection[str]) -> dict[tuple[str, Share], UnitState]:
        """What it had before the last regroup, and has no gradients for."""
        given_away = self._given_away.items()
        return {key: unit for key, unit in given_away if key[0] not in self._awaited and key[0] not in distrusted}

    def trusted(self, distrusted: Collection[str]) -> dict[tuple[str, Share], UnitState]:
        """Both of these, by unit and share."""
        return self.given_away(distrusted) | {(n, unit.share): unit for n, unit in self.units(distrusted).items()}

    def build(
        self,
        layout: Layout,
        background: Background,
        distrusted: Collection[str],
        incoming: Collection[str],
        stats_size: int,
        *,
        restores: bool,
    ) -> tuple[ModelState, dict[tuple[str, Share], UnitState]]:
        """Build the state of an epoch; returns it and what others may be sent.

        Gradients and units that no longer count are freed before anything new is made. `incoming` are the units that
        this rank will be sent, `restores` says that all will be loaded instead. Received units go to new memory: if
        the transfer fails, the old state is intact. Loaded units may go anywhere: a restore only happens when state
        is lost.
        """
        self._release()
        held = self.trusted(distrusted)
        names = background.units(layout, self._rank)
        shares = shares_of(self._job, layout, self._rank)
        fitting = {key: unit for key, unit in held.items() if key[0] in names and key[1] == shares.get(key[0], WHOLE)}
        to_come: Collection[str] = names
        if restores:
            held = fitting
            self._units, self._given_away = {}, {}
        else:
            fitting = {key: unit for key, unit in fitting.items() if key[0] not in incoming}
            self._units = {name: unit for name, unit in self._units.items() if (name, unit.share) in held}
            to_come = {*incoming, *_fetched(background, self._rank)}
            if not self._job.sharded_optimizer:
                held = {key: unit for key, unit in held.items() if key[0] not in incoming}
        previous = {name: unit for (name, _), unit in fitting.items()}
        given = (self._job, layout, self._rank, previous, stats_size, background, self._device)
        return ModelState(*given, to_come=to_come), held

    def adopt(
        self,
        state: ModelState,
        background: Background,
        held: Mapping[tuple[str, Share], UnitState],
        *,
        restored: bool,
    ) -> None:
        """The epoch that `state` was built for has begun: it is complete, but for what comes in the background."""
        # First what is not there yet, for those who look meanwhile.
        self._awaited = frozenset(_fetched(background, self._rank))
        self._state, self._units = state, state.units
        # After a restore it would be of another step than what the others have.
        has_now = {(name, unit.share) for name, unit in state.units.items()}
        self._given_away = {} if restored else {key: unit for key, unit in held.items() if key not in has_now}

    def receive(self, received: Collection[str]) -> None:
        """These units have come in the background."""
        self._awaited = self._awaited.difference(received)

    def commit(self) -> None:
        """A step is committed: what was given away before it is out of date."""
        self._given_away = {}

    def clear(self) -> None:
        """Forget everything: this rank starts over."""
        self._release()
        self._units, self._given_away, self._awaited = {}, {}, frozenset()

    def _release(self) -> None:
        """Let go of what only an epoch needs; the last attempt to form one may have left something too."""
        if self._state is not None:
            self._state.release()
            self._state = None
        for unit in (*self._units.values(), *self._given_away.values()):
            unit.release_gradients()


def _fetched(background: Background, rank: int) -> set[str]:
    return {shadow.unit for shadow in background.of(rank) if shadow.source is not None}
