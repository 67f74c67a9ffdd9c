"""Starts following a process: at its first optimizer, or at the first step that it reports itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from chaos.external.identity import may_be_rank
from chaos.external.phase_tracker import PhaseTracker

_tracker: PhaseTracker | None = None


def begin(*, is_explicit: bool, loads: Sequence[object] | None = None) -> PhaseTracker | None:
    """Follow this process, unless it is followed or cannot be a rank; `is_explicit`: it says itself when steps end.

    `loads` grows with each state that the process loads; None: loads are not observed.
    """
    global _tracker
    if _tracker is None and may_be_rank(os.environ):
        _tracker = PhaseTracker(os.environ, is_explicit=is_explicit, loads=loads)
        _tracker.attach()
    return _tracker


def tracker() -> PhaseTracker | None:
    """What follows this process, if anything does."""
    return _tracker


def optimizer_created(optimizer: Optimizer) -> None:
    """The script made an optimizer."""
    if _tracker is not None:
        _tracker.created(optimizer)


def step_ended(figures: Mapping[str, float | int], step: int | None) -> None:
    """The script says that a step is over."""
    found = begin(is_explicit=True)
    if found is not None:
        found.step_ended(figures, step)
