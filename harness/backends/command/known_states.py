"""What ranks of a command's job have held, and after which steps: a later start finds out by it where it continues."""

from __future__ import annotations

from collections.abc import Mapping

from mecefo_runtime.system.command_records import CheckpointBegun, TrainingEntered
from mecefo_runtime.system.events import Event

MAX_STATES = 4096
"""So many are kept, the newest, and those from which the training began: an answer to a rank is bounded by it."""


class KnownStates:
    """Digests of parameters over all ranks and starts. One that was seen after several steps says nothing alone."""

    def __init__(self) -> None:
        # In the order in which they were last seen.
        self._steps_of: dict[str, set[int]] = {}
        self._first: dict[str, set[int]] = {}

    def note(self, event: Event) -> None:
        """Take in an event of a rank, of whatever kind."""
        digest, step = event.fields.get("parameters"), event.step
        if step is None or not isinstance(digest, str) or not digest:
            return
        if event.kind == TrainingEntered.KIND and len(self._first) < MAX_STATES:
            self._first.setdefault(digest, set()).add(step)
        elif event.kind == CheckpointBegun.KIND:
            steps = self._steps_of.pop(digest, set())
            self._steps_of[digest] = steps | {step}
            if len(self._steps_of) > MAX_STATES:
                del self._steps_of[next(iter(self._steps_of))]

    def steps_by_digest(self) -> Mapping[str, tuple[int, ...]]:
        """After which steps each was seen."""
        found = {digest: set(steps) for digest, steps in self._first.items()}
        for digest, steps in self._steps_of.items():
            found.setdefault(digest, set()).update(steps)
        return {digest: tuple(sorted(steps)) for digest, steps in found.items()}
