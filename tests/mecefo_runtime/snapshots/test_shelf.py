"""What a snapshot process holds: only what is whole, never more than it may, and nothing longer than it is needed."""

from __future__ import annotations

import pytest

from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.checksums import checksums_of
from mecefo_runtime.snapshots.messages import Part
from mecefo_runtime.snapshots.region import Region, size_of
from mecefo_runtime.snapshots.shelf import NotHeld, Shelf, ShelfFull, Snapshot, pieces_of

pytestmark = pytest.mark.unit

SIZE = 3 << 20
HALF = Share(0, 2)
PARTS = (Part("layer.0", HALF, 0, 1 << 20), Part("layer.1", HALF, 1 << 20, (2 << 20) - 7))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(4 * size_of(SIZE))


def write(region: Region, buffer: int, value: int) -> int:
    sequence = region.begin(buffer)
    region.buffer(buffer)[:] = bytes([value]) * SIZE
    return sequence


def snapshot(
    shelf: Shelf, number: int, region: Region, buffer: int, step: int, lineage: str = "a", value: int | None = None
) -> None:
    sequence = write(region, buffer, step if value is None else value)
    checksums = tuple(map(checksums_of, shelf.written(number, buffer, PARTS)))
    shelf.store(number, buffer, Snapshot(sequence, Version(step, lineage), PARTS, checksums))


def steps(shelf: Shelf) -> list[int]:
    return sorted(version.step for version in shelf.offers())


def test_what_is_stored_is_offered_and_read_back(shelf: Shelf) -> None:
    number, region = shelf.reserve(0, SIZE, ())
    snapshot(shelf, number, region, 1, 7)
    assert shelf.offers() == {Version(7, "a"): {"layer.0": frozenset({HALF}), "layer.1": frozenset({HALF})}}
    memory = shelf.find(Version(7, "a"), "layer.1", HALF).checked()
    assert bytes(memory) == bytes([7]) * PARTS[1].num_bytes
    for version, unit, share in (
        (Version(8, "a"), "layer.1", HALF),
        (Version(7, "b"), "layer.1", HALF),
        (Version(7, "a"), "layer.2", HALF),
        (Version(7, "a"), "layer.1", Share(1, 2)),
    ):
        with pytest.raises(NotHeld, match="is not here"):
            shelf.find(version, unit, share)


@pytest.mark.parametrize(("first", "num_bytes"), [(0, 1), (0, 7 << 20), (SIZE - 9, 12), ((2 * SIZE) - 70, 200000)])
def test_what_a_node_keeps_is_one_sequence_with_zeros_behind_every_rank(
    shelf: Shelf, first: int, num_bytes: int
) -> None:
    for rank in (0, 1):
        number, region = shelf.reserve(rank, SIZE, ())
        snapshot(shelf, number, region, 0, 7, value=rank + 1)
    ranks = [bytes([rank + 1]) * (SIZE - 7) + bytes(7) for rank in (0, 1)]
    expected = (b"".join(ranks) + bytes(num_bytes))[first : first + num_bytes]
    assert b"".join(pieces_of(shelf.memories(Version(7, "a"), (0, 1)), first, num_bytes)) == expected


def test_a_snapshot_that_is_begun_to_be_written_over_counts_no_more(shelf: Shelf) -> None:
    """Its writer may die the next moment: half of the new one would be in it."""
    number, region = shelf.reserve(0, SIZE, ())
    snapshot(shelf, number, region, 0, 7)
    snapshot(shelf, number, region, 1, 8)
    stale = region.begin(0)
    assert steps(shelf) == [8]
    with pytest.raises(NotHeld, match="is not here"):
        shelf.find(Version(7, "a"), "layer.0", HALF)
    region.begin(0)
    with pytest.raises(NotHeld, match="is being written again"):
        shelf.store(number, 0, Snapshot(stale, Version(9, "a"), PARTS, ()))
    assert steps(shelf) == [8]


def test_a_flipped_bit_is_found_by_its_chunk(shelf: Shelf) -> None:
    number, region = shelf.reserve(0, SIZE, ())
    snapshot(shelf, number, region, 0, 7)
    region.buffer(0)[(2 << 20) + 11] ^= 4
    with pytest.raises(
        NotHeld, match=r"layer\.1 of step 7, from rank 0 is damaged in chunk 1: CRC-32 \w{8} is expected"
    ):
        shelf.find(Version(7, "a"), "layer.1", HALF).checked()
    shelf.find(Version(7, "a"), "layer.0", HALF).checked()


def test_there_is_never_more_than_the_limit(shelf: Shelf) -> None:
    for rank in range(4):
        shelf.reserve(rank, SIZE, range(4))
    assert shelf.num_bytes == 4 * size_of(SIZE)
    with pytest.raises(ShelfFull, match=r"bytes are needed, 0 of \d+ are free"):
        shelf.reserve(4, SIZE, range(4))
    # A rank that is gone has left nothing whole.
    shelf.reserve(4, SIZE, range(1, 4))
    assert shelf.num_bytes == 4 * size_of(SIZE)


def test_the_memory_before_stays_until_all_ranks_have_what_is_newer(shelf: Shelf) -> None:
    old_number, old = shelf.reserve(0, SIZE, {0})
    snapshot(shelf, old_number, old, 0, 7)
    shelf.keep(Version(7, "a"), {0})
    number, region = shelf.reserve(0, SIZE, {0})
    snapshot(shelf, number, region, 0, 8)
    assert steps(shelf) == [7, 8]
    shelf.keep(Version(8, "a"), {0})
    assert steps(shelf) == [8] and shelf.num_bytes == size_of(SIZE)


def test_what_a_lost_rank_had_stays_as_long_as_it_is_the_newest_that_all_have(shelf: Shelf) -> None:
    number, region = shelf.reserve(0, SIZE, {0})
    snapshot(shelf, number, region, 0, 7)
    shelf.keep(Version(7, "a"), ())
    assert steps(shelf) == [7]
    shelf.keep(Version(9, "a"), ())
    assert steps(shelf) == [] and shelf.num_bytes == 0


def test_after_a_return_to_an_older_version_newer_ones_of_before_go(shelf: Shelf) -> None:
    """They are of a course of training that is over, and would be the newest for as long as it takes to come there."""
    number, region = shelf.reserve(0, SIZE, {0})
    snapshot(shelf, number, region, 0, 12, "before")
    snapshot(shelf, number, region, 1, 9, "after")
    shelf.keep(Version(9, "after"), {0})
    assert list(shelf.offers()) == [Version(9, "after")]


@pytest.mark.parametrize(
    ("buffer", "first", "num_bytes"), [(2, 0, 1), (-1, 0, 1), (0, SIZE, 1), (0, -1, 1), (0, 0, -1)]
)
def test_what_lies_outside_of_a_buffer_is_refused(shelf: Shelf, buffer: int, first: int, num_bytes: int) -> None:
    number, _ = shelf.reserve(0, SIZE, ())
    with pytest.raises(NotHeld):
        shelf.written(number, buffer, (Part("head", HALF, first, num_bytes),))
    with pytest.raises(NotHeld):
        shelf.written(number + 1, 0, ())
