"""Where state comes from: the newest version that can be put together, from the cheapest sources, and nothing twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.layout import Cluster, Transfer, configured_layout
from mecefo_runtime.job.state_source import (
    CheckpointSource,
    Offer,
    PeerSource,
    Share,
    Version,
    choose_version,
    plan_pieces,
    transfers,
)

pytestmark = pytest.mark.unit

CLUSTER = Cluster(4, 2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=8)
LAYOUT = configured_layout(CLUSTER)
UNITS = tuple(LAYOUT.holders())
HELD = {rank: LAYOUT.units(rank) for rank in LAYOUT.ranks()}
DISK = CheckpointSource("/checkpoints/step-9")
NOW, SAVED = Version(12, "new"), Version(9, "old")


def of_peers(held, version=NOW) -> list[Offer]:
    return [Offer.whole(version, PeerSource(rank), units) for rank, units in held.items()]


@given(st.integers(1, 40), st.integers(0, 1000))
def test_the_shares_of_a_unit_cover_every_element_once(size: int, num_elements: int) -> None:
    extents = [Share(index, size).extent(num_elements) for index in range(size)]
    assert [element for first, end in extents for element in range(first, end)] == list(range(num_elements))


@given(st.dictionaries(st.sampled_from(sorted(HELD)), st.frozensets(st.sampled_from(UNITS)), min_size=1))
def test_exactly_what_is_missing_moves_from_who_has_it(held) -> None:
    pieces, missing = plan_pieces(LAYOUT, of_peers(held), held)
    needed = {(unit, rank) for rank, units in HELD.items() for unit in units if unit not in held.get(rank, ())}
    moved = [(piece.unit, piece.destination) for piece in pieces]
    assert len(moved) == len(set(moved))
    assert set(moved) == {(unit, rank) for unit, rank in needed if unit not in missing}
    assert all(transfer.unit in held[transfer.source] for transfer in transfers(pieces))
    assert missing == tuple(sorted({unit for unit, _ in needed} - frozenset().union(*held.values())))


def test_nothing_moves_when_all_is_in_place() -> None:
    assert plan_pieces(LAYOUT, (), HELD) == ((), ())
    choice = choose_version(LAYOUT, [], NOW, HELD)
    assert choice is not None and (choice.version, choice.pieces) == (NOW, ())


def test_several_peers_share_the_sending() -> None:
    layout = configured_layout(Cluster(3, 1, data_parallel=3, pipeline=1, num_layers=4, num_microbatches=3))
    held = {rank: layout.units(rank) for rank in (0, 1)}
    pieces, missing = plan_pieces(layout, of_peers(held), held)
    assert missing == ()
    assert Counter(transfer.source for transfer in transfers(pieces)) == {0: 3, 1: 3}


def test_the_newest_version_that_is_whole_is_taken() -> None:
    lost = set(LAYOUT.holders()["layer.3"])
    held = {rank: units for rank, units in HELD.items() if rank not in lost}
    saved = Offer.whole(SAVED, DISK, UNITS)
    incomplete = Offer.whole(Version(11, "old"), CheckpointSource("/checkpoints/step-11"), UNITS[1:])
    choice = choose_version(LAYOUT, [*of_peers(held), incomplete, saved], NOW, held)
    assert choice is not None and choice.version == SAVED
    # Who goes back has nothing of the older version: everybody gets all of it, and nobody asks the living.
    assert {(piece.unit, piece.destination) for piece in choice.pieces} == {
        (unit, rank) for rank, units in HELD.items() for unit in units
    }
    assert {piece.source for piece in choice.pieces} == {DISK}
    assert choose_version(LAYOUT, of_peers(held), NOW, held) is None


def test_what_one_version_has_in_several_places_comes_from_the_cheapest() -> None:
    lost = LAYOUT.holders()["layer.3"][0]
    held = {rank: units for rank, units in HELD.items() if rank != lost}
    everywhere = [Offer.whole(NOW, DISK, UNITS), *of_peers(held)]
    pieces, missing = plan_pieces(LAYOUT, everywhere, held)
    assert not missing and all(isinstance(piece.source, PeerSource) for piece in pieces)
    # What no peer has comes from the disk, beside what they send, as long as it is of the same version.
    without_head = [Offer.whole(NOW, PeerSource(rank), set(units) - {"head"}) for rank, units in held.items()]
    pieces, missing = plan_pieces(LAYOUT, [Offer.whole(NOW, DISK, UNITS), *without_head], held)
    assert not missing
    assert {piece.unit for piece in pieces if piece.source == DISK} == {"head"}
    assert Transfer("head", 0, lost) not in transfers(pieces)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12))
def test_a_unit_in_shares_is_put_together_only_from_all_shares_of_one_size(drawn) -> None:
    layout = configured_layout(Cluster(1, 1, data_parallel=1, pipeline=1, num_layers=1, num_microbatches=1))
    shares = {Share(index, size) for index, size in drawn if index < size}
    offers = [
        Offer(
            SAVED,
            CheckpointSource(f"/part-{share.index}-{share.of}"),
            {u: frozenset({share}) for u in layout.holders()},
        )
        for share in sorted(shares)
    ]
    pieces, missing = plan_pieces(layout, offers, {})
    whole_sizes = {size for size in range(1, 5) if {Share(index, size) for index in range(size)} <= shares}
    assert bool(missing) is not bool(whole_sizes)
    for unit in () if missing else layout.holders():
        of_unit = [piece for piece in pieces if piece.unit == unit]
        assert [piece.share for piece in of_unit] == [
            Share(index, min(whole_sizes)) for index in range(min(whole_sizes))
        ]


def test_what_a_rank_has_itself_nobody_sends_it() -> None:
    """Of a unit that it lacks a share of it keeps the one that it has."""
    layout = configured_layout(Cluster(2, 1, data_parallel=2, pipeline=1, num_layers=1, num_microbatches=2))
    halves = {rank: dict.fromkeys(layout.holders(), frozenset({Share(rank, 2)})) for rank in (0, 1)}
    offers = [Offer(NOW, PeerSource(rank), shares) for rank, shares in halves.items()]
    pieces, missing = plan_pieces(layout, offers, {})
    assert not missing and len(pieces) == 4 * len(layout.holders())
    assert {piece.source for piece in pieces if piece.share.index == piece.destination} == {
        PeerSource(0),
        PeerSource(1),
    }
    assert all(
        (piece.source == PeerSource(piece.destination)) == (piece.share.index == piece.destination) for piece in pieces
    )
    assert {(transfer.source, transfer.destination) for transfer in transfers(pieces)} == {(0, 1), (1, 0)}
