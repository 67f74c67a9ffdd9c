"""The contents of one snapshot process: each rank's memory, the versions in it, and which of them can be served."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.checksums import checksums_of
from mecefo_runtime.snapshots.messages import Described, KeptPart, Part
from mecefo_runtime.snapshots.refusal import DAMAGED, NOT_HELD, Code
from mecefo_runtime.snapshots.region import NUM_BUFFERS, Region, aligned, size_of

_ZEROS = memoryview(bytes(1 << 16))


class ShelfFull(Exception):
    """There is no room for what was asked; the text says how much there is."""


class NotHeld(Exception):
    """It is not here; the text says what."""

    code: ClassVar[Code] = NOT_HELD


class Damaged(NotHeld):
    """It is here, and not whole."""

    code: ClassVar[Code] = DAMAGED


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one buffer holds, written as `sequence`; `checksums` are the CRC-32 of each part's chunks."""

    sequence: int
    version: Version
    parts: tuple[Part, ...]
    checksums: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Where `part`, which `rank` has copied, lies in this process's file `descriptor`: from byte `offset` on.

    It is that as long as the number at byte `sequence_offset` of the file is `sequence`.
    """

    rank: int
    part: Part
    descriptor: int
    offset: int
    sequence: int
    sequence_offset: int


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


@dataclass(frozen=True, slots=True)
class Found:
    """A part: its bytes, the CRC-32 that each chunk of them had, and what it is."""

    memory: memoryview
    checksums: tuple[int, ...]
    what: str

    def checked(self) -> memoryview:
        """Its bytes, which are what was stored.

        Raises:
            NotHeld: they were changed since.
        """
        check(self.memory, self.checksums, self.what)
        return self.memory


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

    def reserve(
        self, rank: int, num_bytes: int, connected: Collection[int], parity_bytes: int = 0
    ) -> tuple[int, Region]:
        """Memory for two snapshots of `num_bytes` of `rank`, and its number. Ranks that are `connected` may write.

        What `rank` had before stays until all ranks have a newer version. `parity_bytes` of the limit are taken, too.

        Raises:
            ShelfFull: that would be more than the limit, or than the machine has.
        """
        self._drop_outdated(set(connected) - {rank})
        needed_bytes = size_of(num_bytes)
        free_bytes = self._limit_bytes - self.num_bytes - parity_bytes
        if needed_bytes > free_bytes:
            raise ShelfFull(f"{needed_bytes} bytes are needed, {free_bytes} of {self._limit_bytes} are free")
        try:
            region = Region.create(num_bytes)
        except OSError as error:
            raise ShelfFull(f"{needed_bytes} bytes of memory cannot be had: {error.strerror}") from error
        number, self._next_region = self._next_region, self._next_region + 1
        self._places[number] = _Place(rank, region)
        return number, region

    def written(self, number: int, buffer: int, parts: Sequence[Part]) -> list[memoryview]:
        """The bytes of `parts` of a buffer, whoever writes to it.

        Raises:
            NotHeld: there is no such memory.
        """
        memory = self._place(number, buffer).region.buffer(buffer)
        if any(part.first < 0 or part.num_bytes < 0 or part.first + part.num_bytes > len(memory) for part in parts):
            raise NotHeld(f"a part lies outside of buffer {buffer} of region {number}")
        return [memory[part.first : part.first + part.num_bytes] for part in parts]

    def store(self, number: int, buffer: int, snapshot: Snapshot) -> None:
        """What was `written` to a buffer is `snapshot`.

        Raises:
            NotHeld: there is no such memory, or it has been begun to be written over.
        """
        place = self._place(number, buffer)
        if place.region.sequence(buffer) != snapshot.sequence:
            raise NotHeld(f"buffer {buffer} of region {number} is being written again")
        place.snapshots[buffer] = snapshot

    def _place(self, number: int, buffer: int) -> _Place:
        place = self._places.get(number)
        if place is None or not 0 <= buffer < NUM_BUFFERS:
            raise NotHeld(f"there is no buffer {buffer} of region {number}")
        return place

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
        """What can be served: for each version the shares of each unit."""
        found: dict[Version, dict[str, set[Share]]] = {}
        for place in self._places.values():
            for _, snapshot in place.whole():
                units = found.setdefault(snapshot.version, {})
                for part in snapshot.parts:
                    units.setdefault(part.unit, set()).add(part.share)
        return {version: {u: frozenset(shares) for u, shares in units.items()} for version, units in found.items()}

    def stored_parts(self) -> dict[Version, tuple[StoredPart, ...]]:
        """Where all that can be had lies."""
        found: dict[Version, list[StoredPart]] = {}
        for place in self._places.values():
            for buffer, snapshot in place.whole():
                first, sequence_offset = place.region.offsets(buffer)
                found.setdefault(snapshot.version, []).extend(
                    StoredPart(
                        rank=place.rank,
                        part=part,
                        descriptor=place.region.descriptor,
                        offset=first + part.first,
                        sequence=snapshot.sequence,
                        sequence_offset=sequence_offset,
                    )
                    for part in snapshot.parts
                )
        return {version: tuple(parts) for version, parts in found.items()}

    def find(self, version: Version, unit: str, share: Share) -> Found:
        """Where a part is.

        Raises:
            NotHeld: it is not here.
        """
        for place in self._places.values():
            for buffer, snapshot in place.whole():
                if snapshot.version != version:
                    continue
                for part, checksums in zip(snapshot.parts, snapshot.checksums, strict=True):
                    if (part.unit, part.share) == (unit, share):
                        memory = place.region.buffer(buffer)[part.first : part.first + part.num_bytes]
                        return Found(memory, checksums, f"{unit} of step {version.step}, from rank {place.rank}")
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

    def memories(self, version: Version, ranks: Collection[int]) -> list[memoryview]:
        """The bytes of that sequence, as each of `ranks` has stored them (see `pieces_of`).

        Raises:
            NotHeld: one of `ranks` has not stored that version.
        """
        return [memory for _, _, memory in self._of(version, ranks)]

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
    """Whether `newer` makes `version` unnecessary: it is older, or of another lineage."""
    return version.lineage != newer.lineage or version.step < newer.step


def pieces_of(memories: Iterable[memoryview], first: int, num_bytes: int) -> list[memoryview]:
    """So many bytes from `first` on of `memories`, one behind the other, each beginning where a part may.

    Behind the end there are zeros.
    """
    found, begin, end = [], 0, first + num_bytes
    for memory in memories:
        low, high = max(first, begin), min(end, begin + len(memory))
        if low < high:
            found.append(memory[low - begin : high - begin])
        behind, begin = begin + len(memory), begin + aligned(len(memory))
        found += _zeros(min(end, begin) - max(first, behind))
    return [*found, *_zeros(end - max(first, begin))]


def _zeros(num_bytes: int) -> list[memoryview]:
    """So many, if it is more than none, in pieces."""
    return [_ZEROS[: min(len(_ZEROS), num_bytes - first)] for first in range(0, num_bytes, len(_ZEROS))]


def _used(snapshot: Snapshot) -> int:
    return max((part.first + part.num_bytes for part in snapshot.parts), default=0)


def check(memory: memoryview, checksums: Sequence[int], what: str) -> None:
    """Compare each chunk with its checksum.

    Raises:
        Damaged: one differs.
    """
    for index, (found, expected) in enumerate(zip(checksums_of(memory), checksums, strict=True)):
        if found != expected:
            raise Damaged(f"{what} is damaged in chunk {index}: CRC-32 {expected:08x} is expected, not {found:08x}")
