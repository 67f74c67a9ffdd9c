"""Each holder has its share of the optimizer state alone: what moves after a change, and what is lost with whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.job.share import Share, share_of
from mecefo_runtime.job.state_source import Offer, ParitySource, PeerSource, Piece, SnapshotSource, Version
from mecefo_runtime.job.step_report import LateCommit, StepStats, StepTotals
from mecefo_runtime.planners import find
from mecefo_runtime.recovery.commit import Decision
from mecefo_runtime.recovery.regroup import CannotGoOn, Rules, Survivors, plan_epoch
from mecefo_runtime.recovery.sharded import plan_shares
from tests.planning import COSTS, layout_of

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=16)
EVERYBODY = frozenset(range(CLUSTER.num_ranks))
BEFORE = layout_of("mecefo", CLUSTER, EVERYBODY)
LINEAGE = "a"
TEN, NINE = Version(10, LINEAGE), Version(9, LINEAGE)
LATE = LateCommit(10, StepTotals(1.0, StepStats()))


def shares_in(layout: Layout, rank: int) -> dict[str, Share]:
    return {unit: share_of(rank, ranks) for unit, ranks in layout.holders().items() if rank in ranks}


def report_of(rank: int, **more: object) -> RankReport:
    units = shares_in(BEFORE, rank)
    told = {"status": "parked", "committed_step": 10, "holdings": tuple(units), "shares": units, **more}
    return RankReport(layout=BEFORE, lineage=LINEAGE, **told)


def reports_of(alive: Collection[int], **more: object) -> dict[int, RankReport]:
    return {rank: report_of(rank, **more) for rank in sorted(alive)}


def snapshots_of(version: Version, ranks: Collection[int]) -> list[Offer]:
    """What the processes of the nodes of `ranks` have copied from these."""
    return [
        Offer(
            version,
            SnapshotSource(rank // 2, f"node{rank // 2}:{rank}"),
            {unit: frozenset({share}) for unit, share in shares_in(BEFORE, rank).items()},
        )
        for rank in ranks
    ]


def assert_whole(layout: Layout, pieces: Collection[Piece], reports: Mapping[int, RankReport]) -> None:
    """Every rank has, or gets, each unit that it holds: all shares of one size, once each."""
    for rank in layout.ranks():
        for unit, share in shares_in(layout, rank).items():
            got = [piece.share for piece in pieces if (piece.destination, piece.unit) == (rank, unit)]
            if got:
                assert sorted(got) == [Share(index, len(got)) for index in range(len(got))]
            else:
                assert unit in reports[rank].holdings and reports[rank].shares[unit] == share


def test_without_a_loss_nothing_moves() -> None:
    reports = reports_of(EVERYBODY)
    assert plan_shares(BEFORE, reports, Decision(10), ()) == (Decision(10), (), ())


@given(st.sets(st.sampled_from(sorted(EVERYBODY)), min_size=1, max_size=3))
def test_whoever_is_lost_takes_shares_along_that_only_a_snapshot_has(lost: set[int]) -> None:
    alive = EVERYBODY - lost
    target = layout_of("mecefo", CLUSTER, alive)
    reports = reports_of(alive)
    _, _, missing = plan_shares(target, reports, Decision(10), ())
    assert set(missing) == {unit for rank in lost for unit in shares_in(BEFORE, rank)} & set(target.holders())
    # Snapshots of another version are of no use to those who live.
    assert plan_shares(target, reports, Decision(10), snapshots_of(NINE, EVERYBODY))[2] == missing
    decided, pieces, missing = plan_shares(target, reports, Decision(10), snapshots_of(TEN, lost))
    assert (decided, missing) == (Decision(10), ())
    assert_whole(target, pieces, reports)
    # What the living have they give themselves.
    for piece in pieces:
        owner = BEFORE.holders()[piece.unit][piece.share.index]
        assert isinstance(piece.source, SnapshotSource) if owner in lost else piece.source == PeerSource(owner)


def test_who_comes_back_gets_a_share_of_all_and_no_step_is_lost() -> None:
    lost = {2, 3}
    alone = layout_of("mecefo", CLUSTER, EVERYBODY - lost)
    shares = {rank: shares_in(alone, rank) for rank in alone.ranks()}
    reports = {rank: report_of(rank, holdings=tuple(had), shares=had) for rank, had in shares.items()}
    decided, pieces, missing = plan_shares(BEFORE, reports, Decision(10), ())
    assert (decided, missing) == (Decision(10), ())
    assert_whole(BEFORE, pieces, reports)
    assert all(isinstance(piece.source, PeerSource) for piece in pieces)


def test_parameters_that_others_have_updated_and_nobody_sent_are_fetched() -> None:
    """The epoch broke between the optimizer's step and the gathering, and nobody is lost."""
    reports = reports_of(EVERYBODY) | {0: report_of(0, holdings=())}
    _, pieces, missing = plan_shares(BEFORE, reports, Decision(10), ())
    assert not missing and {piece.destination for piece in pieces} == {0}
    assert_whole(BEFORE, pieces, reports)
    # And whoever applies a step late needs what the others have updated, too.
    behind = reports_of(EVERYBODY, committed_step=9)
    decided, pieces, missing = plan_shares(BEFORE, behind, Decision(10, LATE), ())
    assert decided.commit == LATE and not missing
    assert {piece.destination for piece in pieces} == EVERYBODY
    assert_whole(BEFORE, pieces, behind)


def test_a_step_that_nobody_has_applied_is_given_up_for_a_snapshot_of_the_one_before() -> None:
    alive = EVERYBODY - {2}
    target = layout_of("mecefo", CLUSTER, alive)
    behind = reports_of(alive, committed_step=9)
    decided, pieces, missing = plan_shares(target, behind, Decision(10, LATE), snapshots_of(NINE, {2}))
    assert (decided.committed_step, decided.commit, missing) == (9, None, ())
    assert_whole(target, pieces, behind)
    # Not if one has: it cannot take the step back.
    applied = behind | {0: report_of(0)}
    assert plan_shares(target, applied, Decision(10, LATE), snapshots_of(NINE, {2}))[2]


def test_what_was_held_before_a_regroup_that_failed_still_counts() -> None:
    """Some have their new shares already, and others have not."""
    mixed = reports_of(EVERYBODY)
    for rank in sorted(EVERYBODY)[::2]:
        halves = {unit: Share(index % 2, 2) for index, unit in enumerate(mixed[rank].holdings)}
        given_away = {unit: (share,) for unit, share in mixed[rank].shares.items()}
        mixed[rank] = replace(mixed[rank], shares=halves, given_away_shares=given_away)
    _, pieces, missing = plan_shares(BEFORE, mixed, Decision(10), ())
    assert not missing
    assert_whole(BEFORE, pieces, mixed)


def test_a_newer_snapshot_serves_beside_the_living_and_an_agreed_one_without() -> None:
    rules = Rules(CLUSTER, find("mecefo"), has_snapshots=True, shards_optimizer=True)
    lost = {2, 3}

    def plan(**snapshots: object):
        survivors = Survivors(reports_of(EVERYBODY - lost), (), COSTS, BEFORE, **snapshots)
        return plan_epoch(rules, survivors, Decision(10), "loss")

    agreed = tuple(snapshots_of(NINE, EVERYBODY))
    rebuilt = tuple(replace(offer, source=ParitySource(0, "node0:1", lost_node=1)) for offer in snapshots_of(TEN, lost))
    beside = plan(snapshots=agreed, newer_snapshots=rebuilt)
    assert beside.returns_to is None and beside.decision.committed_step == 10
    assert beside.rung == "parity" and "share" in beside.passed_over["peer"]
    without = plan(snapshots=agreed)
    assert without.returns_to == NINE and without.rung == "snapshot"
    with pytest.raises(CannotGoOn, match="nobody living holds all shares"):
        plan()
