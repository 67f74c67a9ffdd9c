"""What the next epoch looks like: when state moves first, when it is fetched meanwhile, and when there is no way on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span
from mecefo_runtime.job.state_source import CheckpointSource, Version, plan_pieces
from mecefo_runtime.planners import find
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.recovery.commit import Decision
from mecefo_runtime.recovery.regroup import (
    BALANCE,
    CannotGoOn,
    RegroupPlan,
    Rules,
    Survivors,
    _without_lacking,
    plan_epoch,
    transfer_seconds,
    unit_bytes,
)
from mecefo_runtime.state.damaged_transfers import DamagedTransfers
from tests.planning import COSTS, layout_of

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=8, gpus_per_node=2, data_parallel=4, pipeline=4, num_layers=8, num_microbatches=32)
EVERYBODY = frozenset(range(CLUSTER.num_ranks))
WHOLE = layout_of("exact", CLUSTER, EVERYBODY)
SLOW, FAST = (replace(COSTS, transfer_bytes_per_second=speed) for speed in (1e4, 1e12))
AT_TEN = Decision(10)


def rules(takeover: str = "auto", strategy: str = "mecefo", **more: object) -> Rules:
    return Rules(CLUSTER, find(strategy), takeover=takeover, **more)


def report_of(holdings: Iterable[str]) -> RankReport:
    return RankReport(status="parked", holdings=tuple(holdings), layout=WHOLE)


def survivors_of(layout: Layout, alive: frozenset[int], costs=COSTS, newcomers=(), **more: object) -> Survivors:
    reports = {rank: report_of(layout.units(rank)) for rank in sorted(alive - set(newcomers))}
    return Survivors(reports, tuple(newcomers), costs, layout, **more)


def after_loss(lost: set[int], takeover: str = "auto", costs=COSTS, **more: object) -> RegroupPlan:
    return plan_epoch(rules(takeover), survivors_of(WHOLE, EVERYBODY - lost, costs, **more), AT_TEN, "loss")


def test_state_that_moves_fast_moves_first() -> None:
    plan = after_loss({5}, costs=FAST, regroup_seconds=0.05)
    assert plan.transfers and not plan.background
    assert len(plan.layout.replicas) == 4


def test_state_that_moves_slowly_is_fetched_while_the_whole_replicas_go_on() -> None:
    plan = after_loss({5}, costs=SLOW, regroup_seconds=0.05)
    assert plan.background and not plan.transfers
    hit = CLUSTER.cell_of(5)[0]
    assert {replica.replica for replica in plan.layout.replicas} == {0, 1, 2, 3} - {hit}
    assert plan.layout.num_microbatches == CLUSTER.num_microbatches
    # The balance afterwards is one more regroup.
    assert after_loss({5}, costs=SLOW, regroup_seconds=1e6).transfers


@pytest.mark.parametrize(
    ("had", "get"), [((3, 3, 2), (4, 4, 2)), ((5, 2, 1), (6, 3, 1)), ((2, 0, 0), (10, 0, 0)), ((0, 0, 0), (4, 3, 3))]
)
def test_who_goes_on_alone_takes_all_of_a_step_in_the_same_proportions(had: tuple[int, ...], get: tuple[int, ...]):
    cluster = Cluster(4, 1, data_parallel=4, pipeline=1, num_layers=2, num_microbatches=10)
    # Of the last replica the rank is gone.
    replicas = tuple(Replica(rank, (Span(rank, 0, 2),), share) for rank, share in enumerate((*had, 10 - sum(had))))
    layout = Layout(2, replicas)
    holdings = {rank: frozenset(layout.units(rank)) for rank in range(3)}
    left = _without_lacking(cluster, layout, frozenset(range(3)), holdings)
    assert left is not None
    assert tuple(replica.num_microbatches for replica in left.replicas) == get


def test_what_is_forced_is_done_whatever_it_costs() -> None:
    assert after_loss({5}, "direct", SLOW).transfers
    assert after_loss({5}, "background", FAST, regroup_seconds=9.0).background


def test_without_a_whole_replica_state_has_to_move_first() -> None:
    one_of_each = {CLUSTER.rank_at(replica, replica) for replica in range(4)}
    plan = after_loss(one_of_each, "background", SLOW)
    assert plan.transfers and not plan.background


def test_who_comes_back_is_fed_while_the_others_go_on_as_they_are() -> None:
    running = after_loss({5}, costs=FAST).layout
    plan = plan_epoch(rules("background"), survivors_of(running, EVERYBODY, SLOW, newcomers=(5,)), AT_TEN, "rejoin")
    assert plan.layout == running
    assert {shadow.rank for shadow in plan.background.shadows} >= {5}
    assert plan.members == tuple(sorted(EVERYBODY))


def test_balancing_never_waits_for_another_balance() -> None:
    survivors = survivors_of(WHOLE, EVERYBODY - {5}, SLOW)
    assert plan_epoch(rules("background"), survivors, AT_TEN, BALANCE).transfers


@given(
    lost=st.sets(st.sampled_from(sorted(EVERYBODY)), min_size=1, max_size=6),
    takeover=st.sampled_from(["auto", "direct", "background"]),
    strategy=st.sampled_from(["mecefo", "mecefo-paper", "ndb", "exact", "oobleck-like"]),
    speed=st.sampled_from([1e3, 1e6, 1e9, 1e12]),
)
def test_every_plan_can_run_at_once_or_after_its_transfers(lost, takeover, strategy, speed):
    costs = replace(COSTS, transfer_bytes_per_second=speed)
    alive = EVERYBODY - lost
    survivors = survivors_of(WHOLE, alive, costs, regroup_seconds=0.05)
    try:
        plan = plan_epoch(rules(takeover, strategy), survivors, AT_TEN, "loss")
    except CannotGoOn as error:
        held = {unit for rank in alive for unit in WHOLE.units(rank)}
        assert held < set(WHOLE.holders()) and "no living rank holds" in str(error)
        return
    plan.layout.check(CLUSTER, alive)
    holdings = {rank: set(WHOLE.units(rank)) for rank in alive}
    for transfer in plan.transfers:
        assert transfer.unit in holdings[transfer.source]
    for transfer in plan.transfers:
        holdings[transfer.destination].add(transfer.unit)
    assert plan_pieces(plan.layout, (), holdings) == ((), ())
    assert not (plan.transfers and plan.background)
    if plan.background:
        assert takeover != "direct"
        # What is there in the end is enough for the layout that is wanted then.
        for shadow in plan.background.shadows:
            holdings[shadow.rank].add(shadow.unit)
        balanced = plan_epoch(
            rules(takeover, strategy),
            replace(
                survivors,
                layout=plan.layout,
                reports={rank: report_of(units) for rank, units in holdings.items()},
            ),
            AT_TEN,
            BALANCE,
        )
        assert not balanced.background
        if takeover == "auto":
            assert step_seconds(balanced.layout, costs) <= step_seconds(plan.layout, costs) * 1.02


def test_transfers_take_as_long_as_the_busiest_rank() -> None:
    sizes = unit_bytes(WHOLE, COSTS)
    assert sizes["layer.0"] == COSTS.layer_state_bytes * 3 // 4
    plan = after_loss({5}, "direct")
    seconds = transfer_seconds(plan.transfers, sizes, COSTS)
    received: dict[int, int] = {}
    for transfer in plan.transfers:
        received[transfer.destination] = received.get(transfer.destination, 0) + sizes[transfer.unit]
    assert seconds >= max(received.values()) / COSTS.transfer_bytes_per_second
    assert transfer_seconds((), sizes, COSTS) == 0


def test_lost_state_comes_from_the_newest_checkpoint_or_there_is_no_way_on() -> None:
    lost = set(WHOLE.holders()["layer.3"])
    with pytest.raises(CannotGoOn, match=r"no living rank holds layer.2, layer.3: .*there is no checkpoint"):
        after_loss(lost)
    with pytest.raises(CannotGoOn, match=r"layer.3: .*no checkpoint can be used: step-9 is cut short"):
        damaged = rules(rejected_checkpoints=lambda after_step: ["step-9 is cut short"])
        plan_epoch(damaged, survivors_of(WHOLE, EVERYBODY - lost), AT_TEN, "loss")
    newest = Durable(7, "step-7")
    survivors = survivors_of(WHOLE, EVERYBODY - lost)
    plan = plan_epoch(rules(newest_checkpoint=lambda refused: newest), survivors, AT_TEN, "loss")
    assert (plan.stored_sources, plan.returns_to, plan.decision) == ((newest.source,), Version(7), Decision(7))
    assert not plan.transfers and not plan.background
    # What the living hold is of a later step: all of them read all of it.
    assert {piece.source for piece in plan.pieces} == {CheckpointSource("step-7")}
    assert {(piece.unit, piece.destination) for piece in plan.pieces} == {
        (unit, rank) for unit, ranks in plan.layout.holders().items() for rank in ranks
    }


def test_state_of_which_every_holder_is_corrupted_is_not_called_lost() -> None:
    survivors = survivors_of(WHOLE, EVERYBODY)
    reports = {
        rank: replace(report_of(set(report.holdings) - {"layer.3"}), distrusted=("layer.3",))
        if "layer.3" in report.holdings
        else report
        for rank, report in survivors.reports.items()
    }
    survivors = replace(survivors, reports=reports)
    with pytest.raises(CannotGoOn, match=r"no living rank holds layer\.3: the state of all holders is corrupted"):
        plan_epoch(rules(), survivors, AT_TEN, "heal")
    whole = Durable(8, "/checkpoints/step-8")
    plan = plan_epoch(rules(newest_checkpoint=lambda refused: whole), survivors, AT_TEN, "heal")
    assert plan.returns_to == whole.version


def without(plan: RegroupPlan, *deliveries: tuple[str, int]) -> DamagedTransfers:
    """What was sent in vain when `plan` was carried out."""
    return DamagedTransfers().and_also([*((t.unit, t.source) for t in plan.transfers[:1]), *deliveries])


def test_what_arrived_damaged_is_asked_of_another_holder() -> None:
    first = after_loss({5}, "direct")
    again = after_loss({5}, "direct", damaged=without(first))
    failed = first.transfers[0]
    assert again.layout == first.layout
    assert {(t.unit, t.destination) for t in again.transfers} == {(t.unit, t.destination) for t in first.transfers}
    assert (failed.unit, failed.source) not in {(t.unit, t.source) for t in again.transfers}


def test_who_sends_damaged_state_twice_is_asked_for_nothing() -> None:
    first = after_loss({5}, "direct")
    damaged = without(first, ("head", first.transfers[0].source))
    assert damaged.repeated_sources == {first.transfers[0].source: 2}
    again = after_loss({5}, "direct", damaged=damaged)
    assert again.transfers and first.transfers[0].source not in {t.source for t in again.transfers}


def test_after_a_damaged_delivery_nothing_is_left_to_the_background() -> None:
    first = after_loss({5}, "background", SLOW)
    shadow = next(shadow for shadow in first.background.shadows if shadow.source is not None)
    again = after_loss({5}, "background", SLOW, damaged=DamagedTransfers(((shadow.unit, shadow.source),)))
    assert again.transfers and not again.background
    assert (shadow.unit, shadow.source) not in {(t.unit, t.source) for t in again.transfers}


def test_who_comes_back_does_without_what_nobody_can_send_it_whole() -> None:
    """The others had a layout that ran: a job does not end, or go back, over a rank that it can do without."""
    running = after_loss({5}, "direct").layout
    holders = [("layer.3", rank) for rank in WHOLE.holders()["layer.3"]] + [("layer.2", rank) for rank in EVERYBODY]
    survivors = survivors_of(running, EVERYBODY, newcomers=(5,), damaged=DamagedTransfers(tuple(holders)))
    newest = Durable(7, "step-7")
    plan = plan_epoch(rules("direct", newest_checkpoint=lambda refused: newest), survivors, AT_TEN, "rejoin")
    assert plan.layout == running and not plan.transfers and plan.returns_to is None
    assert plan.members == tuple(sorted(EVERYBODY))


def test_when_no_holder_can_send_it_whole_there_is_the_checkpoint_or_a_clear_stop() -> None:
    # Of every replica a rank is lost: nothing runs before state has moved.
    lost = {CLUSTER.rank_at(replica, replica) for replica in range(4)}
    first = after_loss(lost, "direct")
    unit = first.transfers[0].unit
    damaged = DamagedTransfers(tuple((unit, rank) for rank in WHOLE.holders()[unit]))
    with pytest.raises(CannotGoOn, match=rf"no holder of {unit} could send it undamaged, and there is no checkpoint"):
        after_loss(lost, "direct", damaged=damaged)
    newest = Durable(7, "step-7")
    survivors = survivors_of(WHOLE, EVERYBODY - lost, damaged=damaged)
    plan = plan_epoch(rules(newest_checkpoint=lambda refused: newest), survivors, AT_TEN, "loss")
    assert plan.returns_to == newest.version


def test_a_quality_limit_does_not_end_a_job() -> None:
    tight = replace(COSTS, memory_bytes=1)
    limited = rules(degraded_share_limit=0.0)
    lost = {CLUSTER.rank_at(replica, 0) for replica in range(3)}
    plan = plan_epoch(limited, survivors_of(WHOLE, EVERYBODY - lost, tight), AT_TEN, "loss")
    plan.layout.check(CLUSTER, EVERYBODY - lost)
