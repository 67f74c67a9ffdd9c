"""A command that is preempted and started again, as a scheduler that requeues a job does; decided without I/O."""

from __future__ import annotations

from mecefo_runtime.system.events import Event

_ENDS = frozenset({"undone", "undo_failed"})


class Requeues:
    """The preemptions of one command, from its events.

    While one is under way, what still runs has its grace, even where the command's own process has ended. Two at a time
    take away the same start of the command: it is started again once.
    """

    def __init__(self) -> None:
        # How often it was started again.
        self.number = 0
        self._under_way: set[object] = set()
        self._is_wanted = False

    def note(self, event: Event) -> None:
        """Learn that a preemption begins or is over."""
        incident = event.fields.get("incident")
        if event.kind == "injected" and (wanted := event.fields.get("requeue")) is not None:
            self._under_way.add(incident)
            self._is_wanted = self._is_wanted or bool(wanted)
        elif event.kind in _ENDS:
            self._under_way.discard(incident)

    @property
    def is_under_way(self) -> bool:
        """Whether processes of the command may still use their grace, or are about to be killed."""
        return bool(self._under_way)

    def take(self) -> bool:
        """The command has ended: whether it must be started again now."""
        is_wanted, self._is_wanted = self._is_wanted, False
        self.number += is_wanted
        return is_wanted
