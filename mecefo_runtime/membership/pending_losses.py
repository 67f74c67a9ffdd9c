"""Losses that happen together, gathered until no more are expected: one regroup for a node, not one for each rank."""

from __future__ import annotations

from collections.abc import Collection

from mecefo_runtime.job.layout import Cluster

# A node's ranks die within milliseconds of each other.
LOSS_GRACE_SECONDS = 0.02
NODE_LOSS_GRACE_SECONDS = 0.1


class PendingLosses:
    """The ranks lost since the last regroup, how each was detected, and which nodes are without supervisor."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._how: dict[int, str] = {}
        self._began_seconds = 0.0
        self._supervisors: set[int] = set()
        self._dead_supervisors: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._how)

    def add(self, rank: int, how: str, now_seconds: float) -> None:
        """`rank` is lost, as `supervisor`, `connection` or `heartbeat` says."""
        if not self._how:
            self._began_seconds = now_seconds
        self._how[rank] = how

    def clear(self) -> None:
        """Forget them: they have been handled."""
        self._how.clear()

    def supervisor_came(self, node: int) -> None:
        """The supervisor of `node` is there."""
        self._supervisors.add(node)
        self._dead_supervisors.discard(node)

    def supervisor_went(self, node: int) -> None:
        """The supervisor of `node` is lost, and most likely the node with it."""
        if node in self._supervisors:
            self._supervisors.discard(node)
            self._dead_supervisors.add(node)

    def deadline_seconds(self) -> float:
        """The latest time to act on them."""
        is_node_loss = any(self._cluster.node_of(rank) in self._dead_supervisors for rank in self._how)
        return self._began_seconds + (NODE_LOSS_GRACE_SECONDS if is_node_loss else LOSS_GRACE_SECONDS)

    def are_settled(self, connected: Collection[int]) -> bool:
        """Whether no further loss is to be expected with these; `connected` are the ranks that are still there."""
        return all(self._is_settled(rank, how, connected) for rank, how in self._how.items())

    def _is_settled(self, rank: int, how: str, connected: Collection[int]) -> bool:
        node = self._cluster.node_of(rank)
        if node in self._dead_supervisors:
            return not any(neighbour in connected for neighbour in self._cluster.ranks_of(node))
        # After a mere end of the connection the news of the supervisor's end may be right behind.
        return how != "connection"
