"""Who computes which shards of a step, where each replica holds some of them alone (SPARe, arXiv 2603.00357)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"orders": [list(stack) for stack in self.orders], "depth": self.depth, "counted": list(self.counted)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Assignment:
        """Read what `to_dict` wrote."""
        return cls(tuple(tuple(stack) for stack in raw["orders"]), raw["depth"], tuple(raw["counted"]))
