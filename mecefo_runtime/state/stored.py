"""Stored state that cannot be used to start an epoch."""

from __future__ import annotations

from mecefo_runtime.comm.operations import EpochBroken
from mecefo_runtime.job.state_source import Source


class StoredStateRefused(EpochBroken):
    """What `source` has is damaged or gone, as the text says: it is not to be asked for this version again."""

    def __init__(self, source: Source, reason: str) -> None:
        super().__init__(reason)
        self.source = source
