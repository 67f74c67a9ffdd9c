"""What a coordinator leaves to the one that is started in its place."""

from __future__ import annotations

import mmap
import struct

_FORMAT = struct.Struct("<Q")


class Succession:
    """The newest epoch of a job that has begun, in memory shared with all processes that are forked afterwards.

    A coordinator that finds nobody with state cannot tell from the ranks whether the job has not begun yet, or has lost
    everybody who held any. It is gone with the process that made it, and so is whoever would start a successor.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _FORMAT.size)

    @property
    def epoch(self) -> int:
        """0: none has begun."""
        return int(_FORMAT.unpack_from(self._memory)[0])

    def note(self, epoch: int) -> None:
        """`epoch` has begun."""
        if epoch > self.epoch:
            _FORMAT.pack_into(self._memory, 0, epoch)
