"""Attempts that brought a command's job no further: none of their steps was new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.command.attempt_list import ListedAttempt


@dataclass(frozen=True, slots=True)
class Fruitless:
    """How many attempts committed no step that no earlier attempt had committed, and the seconds in them.

    Not those that a fault ended, or that ended under one. `steps` are the steps that they committed last, by attempt;
    None: that one committed none.
    """

    attempts: int
    seconds: float
    steps: tuple[int | None, ...]


def read_fruitless(attempts: Sequence[ListedAttempt]) -> Fruitless:
    """Those of a job's attempts."""
    found = [one for one in attempts if one.is_fruitless]
    return Fruitless(len(found), sum((one.seconds for one in found), 0.0), tuple(one.last_step for one in found))
