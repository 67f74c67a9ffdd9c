"""What one snapshot process holds: whose memory, which versions in it, and what of that can be given out."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.messages import Described, KeptPart, Part
from mecefo_runtime.snapshots.region import NUM_BUFFERS, Region, aligned, size_of

# A damaged chunk is found, and told, without reading the rest.
CHUNK_BYTES = 1 << 20


class ShelfFull(Exception):
    """There is no room for what was asked; the text says how much there is."""


class NotHeld(Exception):
    """It is not here, or not whole; the text says which."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one buffer holds, written as `sequence`; `checksums` are the CRC-32 of each part's chunks."""

    sequence: int
    version: Version
    parts: tuple[Part, ...]
    checksums: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Place:
    rank: int
    region: Region
    snapshots: list[Snapshot | None] = field(default_factory=lambda: [None] * NUM_BUFFERS)

    def whole(self) -> list[tuple[int, Snapshot]]:
        """What is in both buffers and has not been begun to be written over."""
        return [
            (number, snapshot)
            for number, snapshot in enumerate(self.snapshots)
            if snapshot is not None and self.region.sequence(number) == snapshot.sequence
        ]


class Shelf:
    """The snapshots of one node's ranks, in at most `limit_bytes` of memory. One thread at a time."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._places: dict[int, _Place] = {}
        self._next_region = 1
        self._kept: Version | None = None

    @property
    def num_bytes(self) -> int:
        """Memory that is taken."""
        return sum(size_of(place.region.num_bytes) for place in self._places.values())

    def reserve(self, rank: int, num_bytes: int, connected: Collection[int]) -> tuple[int, Region]:
        """Memory for two snapshots of `num_bytes` of `rank`, and its number. Ranks that are `connected` may write.

        What `rank` had before stays until all ranks have a newer version.

        Raises:
            ShelfFull: that would be more than the limit, or than the machine has.
        """
        self._drop_outdated(set(connected) - {rank})
        needed_bytes = size_of(num_bytes)
        if self.num_bytes + needed_bytes > self._limit_bytes:
            free_bytes = self._limit_bytes - self.num_bytes
            raise ShelfFull(f"{needed_bytes} bytes are needed, {free_bytes} of {self._limit_bytes} are free")
        try:
            region = Region.create(num_bytes)
        except OSError as error:
            raise ShelfFull(f"{needed_bytes} bytes of memory cannot be had: {error.strerror}") from error
        number, self._next_region = self._next_region, self._next_region + 1
        self._places[number] = _Place(rank, region)
        return number, region

    def store(self, number: int, buffer: int, sequence: int, version: Version, parts: Sequence[Part]) -> None:
        """What lies in a buffer now is a snapshot of `version`.

        Raises:
            NotHeld: there is no such memory, or it has been begun to be written over.
        """
        place = self._places.get(number)
        if place is None or not 0 <= buffer < NUM_BUFFERS:
            raise NotHeld(f"there is no buffer {buffer} of region {number}")
        memory = place.region.buffer(buffer)
        if any(part.first < 0 or part.num_bytes < 0 or part.first + part.num_bytes > len(memory) for part in parts):
            raise NotHeld(f"a part lies outside of buffer {buffer} of region {number}")
        checksums = tuple(checksums_of(memory[part.first : part.first + part.num_bytes]) for part in parts)
        snapshot = Snapshot(sequence, version, tuple(parts), checksums)
        if place.region.sequence(buffer) != sequence:
            raise NotHeld(f"buffer {buffer} of region {number} is being written again")
        place.snapshots[buffer] = snapshot

    def keep(self, version: Version, connected: Collection[int]) -> None:
        """All ranks have `version`: older ones, and those of another lineage, go."""
        self._kept = version
        for place in self._places.values():
            for buffer, snapshot in enumerate(place.snapshots):
                if snapshot is not None and is_outdated(snapshot.version, version):
                    place.snapshots[buffer] = None
        self._drop_outdated(connected)

    @property
    def kept(self) -> Version | None:
        """The newest version that all ranks have."""
        return self._kept

    def offers(self) -> dict[Version, dict[str, frozenset[Share]]]:
        """What can be had: for each version the shares of each unit."""
        found: dict[Version, dict[str, set[Share]]] = {}
        for place in self._places.values():
            for _, snapshot in place.whole():
                units = found.setdefault(snapshot.version, {})
                for part in snapshot.parts:
                    units.setdefault(part.unit, set()).add(part.share)
        return {version: {u: frozenset(shares) for u, shares in units.items()} for version, units in found.items()}

    def read(self, version: Version, unit: str, share: Share) -> memoryview:
        """The bytes of a part; they are what was stored.

        Raises:
            NotHeld: it is not here, or it was changed since.
        """
        for place in self._places.values():
            for buffer, snapshot in place.whole():
                if snapshot.version != version:
                    continue
                for part, checksums in zip(snapshot.parts, snapshot.checksums, strict=True):
                    if (part.unit, part.share) == (unit, share):
                        memory = place.region.buffer(buffer)[part.first : part.first + part.num_bytes]
                        check(memory, checksums, f"{unit} of step {version.step}, from rank {place.rank}")
                        return memory
        raise NotHeld(f"share {share.index + 1} of {share.of} of {unit} at step {version.step} is not here")

    def describe(self, version: Version, ranks: Collection[int]) -> Described:
        """All that `ranks` have stored of `version`, as if it were one sequence of bytes.

        Raises:
            NotHeld: one of them has not.
        """
        parts, first = [], 0
        for _, snapshot, memory in self._of(version, ranks):
            for part, checksums in zip(snapshot.parts, snapshot.checksums, strict=True):
                parts.append(KeptPart(part.unit, part.share, first + part.first, part.num_bytes, checksums))
            first += aligned(len(memory))
        return Described(first, tuple(parts))

    def read_bytes(self, version: Version, ranks: Collection[int], first: int, num_bytes: int) -> bytearray:
        """So many bytes of that sequence from `first` on; behind its end there are zeros.

        Raises:
            NotHeld: one of `ranks` has not stored that version.
        """
        found, begin = bytearray(num_bytes), 0
        for _, _, memory in self._of(version, ranks):
            low, high = max(first, begin), min(first + num_bytes, begin + len(memory))
            if low < high:
                found[low - first : high - first] = memory[low - begin : high - begin]
            begin += aligned(len(memory))
        return found

    def _of(self, version: Version, ranks: Collection[int]) -> list[tuple[_Place, Snapshot, memoryview]]:
        found = {
            place.rank: (place, snapshot, place.region.buffer(buffer)[: _used(snapshot)])
            for place in self._places.values()
            for buffer, snapshot in place.whole()
            if snapshot.version == version
        }
        missing = sorted(set(ranks) - set(found))
        if missing:
            raise NotHeld(f"of step {version.step} there is nothing from rank {missing[0]}")
        return [found[rank] for rank in sorted(ranks)]

    def _drop_outdated(self, writing: Collection[int]) -> None:
        """Free memory that nobody needs: it holds nothing whole, and no rank is `writing` to it."""
        newest = {place.rank: number for number, place in self._places.items()}
        for number, place in list(self._places.items()):
            is_in_use = place.rank in writing and newest[place.rank] == number
            if not is_in_use and not place.whole():
                place.region.close()
                del self._places[number]


def is_outdated(version: Version, newer: Version) -> bool:
    """Whether nobody needs `version` where `newer` is: it is older, or of another course of training."""
    return version.lineage != newer.lineage or version.step < newer.step


def _used(snapshot: Snapshot) -> int:
    return max((part.first + part.num_bytes for part in snapshot.parts), default=0)


def checksums_of(memory: memoryview) -> tuple[int, ...]:
    """The CRC-32 of each chunk."""
    return tuple(zlib.crc32(memory[first : first + CHUNK_BYTES]) for first in range(0, len(memory), CHUNK_BYTES))


def check(memory: memoryview, checksums: Sequence[int], what: str) -> None:
    """Compare each chunk with its checksum.

    Raises:
        NotHeld: one differs.
    """
    for index, (found, expected) in enumerate(zip(checksums_of(memory), checksums, strict=True)):
        if found != expected:
            raise NotHeld(f"{what} is damaged in chunk {index}: CRC-32 {expected:08x} is expected, not {found:08x}")
