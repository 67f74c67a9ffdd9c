"""Which shard types each data-parallel group holds: g + o mod N for every offset o of a ruler."""

from __future__ import annotations

from dataclasses import dataclass

from mecefo_runtime.stacks.rulers import OffsetKind, best_redundancy, largest_redundancy, offsets


class DoesNotFit(ValueError):
    """The redundancy is too large for the number of groups; the text says how many copies fit."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`num_groups` groups hold as many shard types, each of them one for every offset."""

    num_groups: int
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, num_groups: int, redundancy: int | None = None, kind: OffsetKind = "golomb") -> Placement:
        """`redundancy` copies of every type; None: as many as takes the least time, by the paper's closed form.

        Raises:
            DoesNotFit: there are not enough groups for so many.
        """
        if redundancy is None:
            redundancy = best_redundancy(num_groups, kind)
        largest = largest_redundancy(num_groups, kind)
        if not 1 <= redundancy <= largest:
            raise DoesNotFit(
                f"a redundancy of {redundancy} does not fit {num_groups} replicas: the largest is {largest} "
                f"({kind} offsets)"
            )
        return cls(num_groups, offsets(redundancy, kind))

    @property
    def redundancy(self) -> int:
        """How many groups hold each type."""
        return len(self.offsets)

    def held_by(self, group: int) -> tuple[int, ...]:
        """The types that `group` holds, in the order in which it computes them when nothing has failed."""
        return tuple((group + offset) % self.num_groups for offset in self.offsets)
