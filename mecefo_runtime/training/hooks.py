"""The runtime's hooks: it announces every (step, phase) before it enters it, and a hook may hold it there.

A job names its hooks as `module:function` (environment `MECEFO_HOOKS`, comma-separated); the function gets the rank's
identity and returns a `Hook`. Without hooks an announcement costs an empty loop. A node's snapshot process has them,
too: its `rank` is None, and it announces only that it encodes.
"""

from __future__ import annotations

import importlib
from typing import Protocol

from mecefo_runtime.snapshots.inspection import SnapshotInspection
from mecefo_runtime.training.inspection import Inspection


class Hook(Protocol):
    """Told before a rank enters a phase, on its training thread, which waits until `announce` returns."""

    def announce(self, step: int, phase: str) -> None:
        """The rank is about to enter `phase` of `step`.

        Outside of steps: `regroup`, before it forms the groups of a new epoch that will continue with `step`, and
        `transfer`, before it moves state for it. Of the snapshot of `step`: `snapshot`, when some of this rank's share
        is copied and some is not, and, in a snapshot process, `encode`, when its parity is begun and not complete.
        """
        ...

    def expose(self, subject: Inspection | SnapshotInspection) -> None:
        """A new epoch begins, in which the rank trains with what `subject` shows; or a process keeps what it shows."""
        ...


class Hooks:
    """All hooks of a rank, or, where that is None, of the node's snapshot process."""

    def __init__(self, names: str, *, rank: int | None, node: int, attempt: int) -> None:
        self._hooks: list[Hook] = []
        for name in filter(None, names.split(",")):
            module, _, function = name.partition(":")
            self._hooks.append(
                getattr(importlib.import_module(module), function)(rank=rank, node=node, attempt=attempt)
            )

    def announce(self, step: int, phase: str) -> None:
        """Announce a phase to every hook."""
        for hook in self._hooks:
            hook.announce(step, phase)

    def expose(self, subject: Inspection | SnapshotInspection) -> None:
        """Give every hook the view of what the rank trains with, or what the process keeps."""
        for hook in self._hooks:
            hook.expose(subject)
