"""A rank's identity, and its observers."""

from __future__ import annotations

from dataclasses import dataclass

from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.wire import LOOPBACK
from mecefo_runtime.training.hooks import Hooks


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """Which rank of its job this process is; `attempt` counts the starts of that rank from 1.

    `host` is this rank's own address. `local_rank` counts through the ranks that see the same GPUs; None: `rank` does.
    `snapshots` is where the node's snapshot process is; empty: there is none.
    """

    rank: int
    node: int
    attempt: int
    host: str = LOOPBACK
    local_rank: int | None = None
    snapshots: str = ""

    @property
    def device_place(self) -> int:
        """The index that selects this rank's device, modulo the number of devices."""
        return self.rank if self.local_rank is None else self.local_rank


@dataclass(frozen=True, slots=True)
class Observers:
    """The observers of a rank: its log, its hooks, and its metrics.

    `metrics` says where to serve them, see `mecefo_runtime.training.exporter`; empty: nowhere.
    """

    emitter: Emitter
    hooks: Hooks
    metrics: str = ""
