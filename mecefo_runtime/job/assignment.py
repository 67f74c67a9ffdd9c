"""Who computes which shards of a step, where each replica holds some of them alone (SPARe, arXiv 2603.00357)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """Shard type t is what replica t computes when nothing has failed.

    `orders[g]` is the stack of shard types that replica g holds, of which it computes at most the first `depth`. Of
    type t the copy of replica `counted[t]` counts; no other one is computed.
    """

    orders: tuple[tuple[int, ...], ...]
    depth: int
    counted: tuple[int, ...]

    def types_of(self, replica: int) -> tuple[int, ...]:
        """The types that `replica` computes, in the order of its stack."""
        return tuple(held for held in self.orders[replica][: self.depth] if self.counted[held] == replica)

    def holders(self, shard_type: int) -> frozenset[int]:
        """The replicas that hold it."""
        return frozenset(replica for replica, stack in enumerate(self.orders) if shard_type in stack)
