"""What a node keeps of each version: its ranks' copies, what it took over from lost nodes, and its parities."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mecefo_runtime.job.protection import ParityHeld
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.checksums import CHUNK_BYTES
from mecefo_runtime.snapshots.codes import Stripe
from mecefo_runtime.snapshots.messages import Described, KeptPart, ReadParity
from mecefo_runtime.snapshots.parity import Parity
from mecefo_runtime.snapshots.region import aligned
from mecefo_runtime.snapshots.shelf import Found, NotHeld, Shelf, ShelfFull, is_outdated, pieces_of


@dataclass(frozen=True, slots=True)
class TakenOver:
    """`part` of what the lost `node` kept, with its bytes."""

    node: int
    part: KeptPart
    memory: memoryview


class Contents:
    """All of it, in at most `limit_bytes` of memory. One thread at a time.

    When nodes are lost, a version is protected again, as another `generation`: the others take over what is rebuilt of
    theirs, and compute their parities of all they keep then. Generation 0 is what ranks have copied. What an older one
    consists of stays until the newer one is settled.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.shelf = Shelf(limit_bytes)
        # The ranks of this node that write a version.
        self.ranks: dict[Version, tuple[int, ...]] = {}
        self._taken: dict[tuple[Version, int], tuple[TakenOver, ...]] = {}
        self._parities: dict[tuple[Version, int], Parity] = {}
        # Memory of parities that are not needed any more: to touch new one takes longer than to encode.
        self._spare: list[Stripe] = []

    # ---- what there is ----

    def is_complete(self, version: Version, generation: int = 0) -> bool:
        """Whether this node has everything that it is to keep."""
        try:
            self.describe(version, generation)
        except NotHeld:
            return False
        return True

    def describe(self, version: Version, generation: int = 0) -> Described:
        """All that the node keeps of `version`, as if it were one sequence of bytes.

        Raises:
            NotHeld: it is not complete.
        """
        # Whoever came later has no snapshots of it, and keeps parity, or what it took over.
        own = Described(0, ()) if generation and version not in self.ranks else self._own(version)
        parts, first = list(own.parts), own.num_bytes
        for taken in self._taken_over(version, generation):
            parts.append(replace(taken.part, first=first))
            first += aligned(len(taken.memory))
        return Described(first, tuple(parts))

    def pieces(self, version: Version, generation: int, first: int, num_bytes: int) -> list[memoryview]:
        """So many bytes of that sequence from `first` on, as they lie in memory; behind its end there are zeros.

        Raises:
            NotHeld: it is not complete.
        """
        taken = self._taken_over(version, generation)
        ranks = self.ranks.get(version, ()) if generation else self._ranks_of(version)
        memories = [*self.shelf.memories(version, ranks), *(one.memory for one in taken)]
        return pieces_of(memories, first, num_bytes)

    def chunks(self, version: Version, generation: int, first: int, num_bytes: int) -> list[Found]:
        """Of every part that has a byte among these, the chunks in which they are.

        Raises:
            NotHeld: it is not complete.
        """
        found = []
        for part in self.describe(version, generation).parts:
            low = max(0, first - part.first) // CHUNK_BYTES
            high = -(-min(part.num_bytes, first + num_bytes - part.first) // CHUNK_BYTES)
            begin, end = low * CHUNK_BYTES, min(high * CHUNK_BYTES, part.num_bytes)
            if begin < end:
                (memory,) = self.pieces(version, generation, part.first + begin, end - begin)
                what = f"{part.unit} of step {version.step}, from chunk {low} on,"
                found.append(Found(memory, part.checksums[low:high], what))
        return found

    def _own(self, version: Version) -> Described:
        return self.shelf.describe(version, self._ranks_of(version))

    def _ranks_of(self, version: Version) -> tuple[int, ...]:
        if version not in self.ranks:
            raise NotHeld(f"of step {version.step} there is nothing here")
        return self.ranks[version]

    def _taken_over(self, version: Version, generation: int) -> tuple[TakenOver, ...]:
        if not generation:
            return ()
        if (version, generation) not in self._taken:
            raise NotHeld(f"generation {generation} of step {version.step} is not here")
        return self._taken[version, generation]

    def find(self, version: Version, unit: str, share: Share) -> Found:
        """Where a part is.

        Raises:
            NotHeld: it is not here.
        """
        for (of, _), all_taken in self._taken.items():
            for taken in all_taken:
                if of == version and (taken.part.unit, taken.part.share) == (unit, share):
                    what = f"{unit} of step {version.step}, taken over from node {taken.node}"
                    return Found(taken.memory, taken.part.checksums, what)
        return self.shelf.find(version, unit, share)

    def offers(self) -> dict[Version, dict[str, frozenset[Share]]]:
        """What can be had: for each version the shares of each unit."""
        found = self.shelf.offers()
        for (version, _), all_taken in self._taken.items():
            units = found.setdefault(version, {})
            for taken in all_taken:
                units[taken.part.unit] = units.get(taken.part.unit, frozenset()) | {taken.part.share}
        return found

    def parities(self, version: Version) -> list[Parity]:
        """Those of `version`, the newest that is settled first; then those that others may have settled on already."""
        found = [parity for (of, _), parity in self._parities.items() if of == version]
        return sorted(found, key=lambda one: (one.is_settled or not one.generation, one.generation), reverse=True)

    def parity(self, version: Version, generation: int) -> Parity | None:
        """That of a generation."""
        return self._parities.get((version, generation))

    def stripe(self, wanted: ReadParity) -> Stripe:
        """One that another node asks for.

        Raises:
            NotHeld: it is not here.
        """
        parity = self.parity(wanted.version, wanted.generation)
        place = (wanted.row, wanted.index)
        if parity is None or parity.group.nodes != wanted.nodes or place not in parity.stripes:
            raise NotHeld(f"a parity of step {wanted.version.step} is not here")
        return parity.stripes[place]

    def held(self) -> tuple[ParityHeld, ...]:
        """The parities, as they are told."""
        return tuple(parity.held() for parity in self._parities.values())

    # ---- what is added ----

    def take_over(self, version: Version, generation: int, taken: Sequence[TakenOver]) -> None:
        """These parts of lost nodes belong to what this node keeps."""
        self._taken[version, generation] = tuple(taken)

    def taken_over(self, version: Version, generation: int) -> tuple[TakenOver, ...]:
        """What belongs to it already."""
        return self._taken.get((version, generation), ())

    def protect(self, parity: Parity) -> None:
        """Keep the parities that this node has computed."""
        self._parities[parity.version, parity.generation] = parity

    def room_for_parity(self, num_stripes: int, length: int) -> list[Stripe]:
        """Memory for so many stripes.

        Raises:
            ShelfFull: that would be more than this process may take.
        """
        spare, self._spare = [stripe for stripe in self._spare if len(stripe) == length][:num_stripes], []
        self.check_room(num_stripes * length, "parity")
        return spare + [np.empty(length, dtype=np.uint8) for _ in range(num_stripes - len(spare))]

    def check_room(self, needed_bytes: int, what: str) -> None:
        """Check that `num_bytes` more fit into the limit.

        Raises:
            ShelfFull: they may not.
        """
        taken_bytes = self.shelf.num_bytes + self.parity_bytes
        if taken_bytes + needed_bytes > self._limit_bytes:
            limit_bytes = self._limit_bytes
            raise ShelfFull(f"{needed_bytes} bytes are needed for {what}, of {limit_bytes} {taken_bytes} are taken")

    @property
    def parity_bytes(self) -> int:
        """Memory beside what ranks have: parities, and what was taken over."""
        # A generation has what the one before has, and more.
        memories = {id(one.memory): len(one.memory) for all_taken in self._taken.values() for one in all_taken}
        return sum(parity.num_bytes for parity in self._parities.values()) + sum(memories.values())

    # ---- what goes ----

    def keep(self, version: Version, writing: Collection[int]) -> None:
        """All ranks have `version`: older ones, and those of another lineage, go; not the memory of ranks `writing`."""
        self.shelf.keep(version, writing)
        # What a rank has begun since is not outdated by what all have.
        kept = set(self.shelf.offers())
        for known in [one for one in self.ranks if one not in kept and is_outdated(one, version)]:
            del self.ranks[known]
        for known, generation in {*self._taken, *self._parities}:
            if known not in kept and is_outdated(known, version):
                self._drop(known, generation)

    def settle(self, version: Version, generation: int) -> None:
        """Every node has its parities of this `generation`: the others are not needed any more."""
        settled = self.parity(version, generation)
        if settled is not None:
            self._parities[version, generation] = replace(settled, is_settled=True)
            self.drop_all_but(version, {generation})

    def drop_all_but(self, version: Version, generations: Collection[int]) -> None:
        """Drop all other versions."""
        for known, generation in {*self._taken, *self._parities}:
            if known == version and generation not in generations:
                self._drop(known, generation)

    def forget_spare(self) -> None:
        """Release memory that was kept for reuse."""
        self._spare.clear()

    def _drop(self, version: Version, generation: int) -> None:
        self._taken.pop((version, generation), None)
        parity = self._parities.pop((version, generation), None)
        if parity is not None:
            self._spare = list(parity.stripes.values())
