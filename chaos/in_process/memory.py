"""A rank that loses memory: it holds more and more, and gives nothing back."""

from __future__ import annotations

import mmap
import time
from typing import Any

from chaos.in_process.base import InProcessFault

PAUSE_SECONDS = 0.01


class LeakMemory(InProcessFault):
    """Allocates and touches block after block of `block_bytes`, `most_bytes` in all, from its release on.

    `most_bytes` is a little above the limit that is to end the process: should the limit fail, the machine is safe.
    """

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Nothing yet."""
        self._blocks: list[mmap.mmap] = []
        return {"block_bytes": int(self.arguments["block_bytes"]), "most_bytes": int(self.arguments["most_bytes"])}

    def released(self) -> None:
        """All of it, or as much as there is until the process is ended or an allocation fails."""
        block_bytes, left_bytes = int(self.arguments["block_bytes"]), int(self.arguments["most_bytes"])
        while left_bytes > 0:
            block_bytes = min(block_bytes, left_bytes)
            try:
                block = mmap.mmap(-1, block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, ValueError) as error:
                # As any other allocation of this size would end.
                raise MemoryError(f"cannot allocate {block_bytes} bytes more") from error
            # One write makes a page resident.
            for offset in range(0, block_bytes, mmap.PAGESIZE):
                block[offset] = 1
            self._blocks.append(block)
            left_bytes -= block_bytes
            # Who looks from outside is to see it grow.
            time.sleep(PAUSE_SECONDS)

    def lift(self) -> dict[str, Any]:
        """Give all of it back."""
        freed_bytes = sum(len(block) for block in self._blocks)
        for block in self._blocks:
            block.close()
        self._blocks.clear()
        return {"freed_bytes": freed_bytes}
