"""Attempts that brought a command's job no further: none of their steps was new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.command.attempts import Attempt


@dataclass(frozen=True, slots=True)
class Fruitless:
    """How many attempts committed no step that no earlier attempt had committed, and the seconds in them.

    `steps` are the steps that they committed last, by attempt; None: that one committed none.
    """

    attempts: int
    seconds: float
    steps: tuple[int | None, ...]


def read_fruitless(
    attempts: Sequence[Attempt], ended_seconds: float, *, is_running: bool, is_through: bool = False
) -> Fruitless:
    """Those of a job that ended then. Of one that still goes on, its newest attempt may yet come to a new step.

    With `is_through` the job has completed, and its last step was saved: a last attempt had nothing left to do.
    An attempt lasts from the first that is heard of its ranks until the first of them ends.
    """
    found: list[tuple[float, int | None]] = []
    for index, attempt in enumerate(attempts):
        is_last = index + 1 == len(attempts)
        if attempt.has_new_step or (is_last and is_running and attempt.ended_seconds is None):
            continue
        if is_last and is_through and attempt.last_step is None:
            continue
        until = attempt.ended_seconds
        if until is None:
            until = ended_seconds if is_last else attempts[index + 1].started_seconds
        found.append((max(0.0, until - attempt.started_seconds), attempt.last_step))
    return Fruitless(len(found), sum((seconds for seconds, _ in found), 0.0), tuple(step for _, step in found))
