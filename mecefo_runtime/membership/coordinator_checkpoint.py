"""The state that a coordinator leaves for its successor."""

from __future__ import annotations

import mmap
import struct

_FORMAT = struct.Struct("<QQ")


class CoordinatorCheckpoint:
    """How far a job has come, in memory shared with all processes that are forked afterwards.

    A coordinator that finds nobody with state cannot tell from the ranks whether the job has not begun yet, or has
    lost everybody who held any. The process that starts coordinators cannot tell from their exits whether they made
    progress. This object ends with the process that made it, which is also the one that would start a successor.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _FORMAT.size)

    @property
    def epoch(self) -> int:
        """The newest that has begun; 0: none has."""
        return int(_FORMAT.unpack_from(self._memory)[0])

    @property
    def step(self) -> int:
        """The furthest that a coordinator knew to be committed; 0: none."""
        return int(_FORMAT.unpack_from(self._memory)[1])

    def note(self, epoch: int, step: int = 0) -> None:
        """`epoch` has begun, and `step` is committed."""
        _FORMAT.pack_into(self._memory, 0, max(epoch, self.epoch), max(step, self.step))
