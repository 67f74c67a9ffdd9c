"""Decides the next epoch from the survivors' reports, without I/O.

Takeover first, balance later: the planner's layout may need state that takes long to move. Then the first layout is
one that can run at once with the state in place, and the planner's layout follows at a later step boundary, after its
state was fetched in the background. The measured costs decide which of the two is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.background import Background, plan_background
from mecefo_runtime.job.config import MAX_FRUITLESS_RESTARTS, HealthConfig
from mecefo_runtime.job.contribution import Completion
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import EMBEDDING, HEAD, Cluster, Layout, Replica, Transfer, layer_unit, unit_order
from mecefo_runtime.job.state_source import (
    Offer,
    PeerSource,
    Piece,
    Source,
    Version,
    choose_version,
    plan_pieces,
    transfers,
)
from mecefo_runtime.planners import NoLayout, Planner, Situation, WipeOut
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.recovery.commit import Decision
from mecefo_runtime.recovery.completion import complete
from mecefo_runtime.recovery.rungs import Rung, lowest_rung, passed_over
from mecefo_runtime.recovery.sharded import plan_shares
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.state.damaged_transfers import DamagedTransfers
from mecefo_runtime.system.job_records import RatingsAgreed

BACKGROUND_SHARE = 0.5  # of a step's time, that a rank may spend on state in the background: more would delay the step
BALANCE = "balance"


class CannotGoOn(RuntimeError):
    """No layout is possible, or state is lost for good; the text says which and why."""


class NeedsAllRanks(CannotGoOn):
    """The survivors cannot continue; when all ranks are back, the job can, from stored state."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The job's rules for forming epochs.

    `takeover`: `direct` moves all state before training continues, `background` never waits for state where there is
    another way, `auto` does what costs less. `other_quality`: its layouts are predicted for the log, in addition to the
    job's own; None: the strategy has no quality. `health`: by what the step in flight is judged where no leader has.
    `newest_checkpoint` looks for one when state is lost, but for those that it is given; `rejected_checkpoints` says
    what is wrong with those of later steps than the one it is given that are not complete. `stops_on_loss`: after a
    loss nobody continues; all ranks end and are started again, from the newest checkpoint or, without one, from the
    first step; the job ends when `max_fruitless_restarts` of them in a row have come to no new step.
    `evicts_corrupt`: a rank that sends damaged state repeatedly is evicted. `rating_origin`: what the log says of the
    costs by which ranks pad their compute, on which they agreed at the start; None: they do not pad.
    `has_checkpoints`, `has_snapshots`: state is saved so; a job of which every rank is lost starts again from that.
    `protects_snapshots`: nodes protect each other's. `shards_optimizer`: each holder of a unit has its share of the
    optimizer state alone. `averages_rest`: what low-rank gradients lack is averaged over those that are not.
    """

    cluster: Cluster
    planner: Planner
    takeover: Literal["auto", "direct", "background"] = "auto"
    health: HealthConfig = field(default_factory=HealthConfig)
    degraded_share_limit: float = 1.0
    projected_share_limit: float = 0.0
    other_quality: str | None = None
    placement: Placement | None = None
    newest_checkpoint: Callable[[Collection[tuple[Version, Source]]], Durable | None] = lambda refused: None
    rejected_checkpoints: Callable[[int], Sequence[str]] = lambda after_step: ()
    stops_on_loss: bool = False
    max_fruitless_restarts: int = MAX_FRUITLESS_RESTARTS
    evicts_corrupt: bool = False
    rating_origin: RatingsAgreed | None = None
    has_checkpoints: bool = False
    has_snapshots: bool = False
    protects_snapshots: bool = False
    shards_optimizer: bool = False
    averages_rest: bool = False


@dataclass(frozen=True, slots=True)
class Survivors:
    """Who is there: `reports` of the members that are left, by rank, and the ranks of `newcomers`, who have nothing.

    `layout` is what ran last, None before the job began; `regroup_seconds` is how long the last regroup took, 0 where
    there was none. `restore_reason`: stored state is what the epoch begins with, for that reason, from a checkpoint or
    from `snapshots`; not from one of the sources `refused`, which were found to be damaged, as the values say. On the
    versions of `newer_snapshots` ranks have not agreed. What has been sent in vain is `damaged`. Why `agreed`, which
    all ranks had, cannot be loaded or rebuilt: `no_snapshot`, `no_parity`. The `leaving` can send, and hold no layers.
    """

    reports: Mapping[int, RankReport]
    newcomers: tuple[int, ...]
    costs: Costs
    layout: Layout | None
    regroup_seconds: float = 0.0
    restore_reason: str | None = None
    refused: Mapping[tuple[Version, Source], str] = field(default_factory=dict)
    snapshots: tuple[Offer, ...] = ()
    newer_snapshots: tuple[Offer, ...] = ()
    damaged: DamagedTransfers = field(default_factory=DamagedTransfers)
    agreed: Version | None = None
    no_snapshot: str | None = None
    no_parity: str | None = None
    leaving: frozenset[int] = frozenset()

    @property
    def stateful(self) -> dict[int, RankReport]:
        """The reports of those who have trained."""
        return {rank: report for rank, report in self.reports.items() if not report.is_stateless}


@dataclass(frozen=True, slots=True)
class RegroupPlan:
    """An epoch to be formed.

    `pieces` move before it begins, `background` while it trains. `returns_to`: everybody begins with this older version
    and gets all of it; None: with that of the last committed step. `starts_anew`: with none at all. `passed_over` says
    by rung why no better one serves. `completion`: the first step was begun before, and is completed.
    """

    members: tuple[int, ...]
    layout: Layout
    decision: Decision
    pieces: tuple[Piece, ...] = ()
    background: Background = field(default_factory=Background)
    returns_to: Version | None = None
    starts_anew: bool = False
    passed_over: Mapping[str, str] = field(default_factory=dict)
    completion: Completion | None = None

    @property
    def rung(self) -> Rung:
        """The lowest rung from which state comes."""
        return "start" if self.starts_anew else lowest_rung(piece.source for piece in self.pieces)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The pieces that one rank sends another."""
        return transfers(self.pieces)

    @property
    def stored_sources(self) -> tuple[Source, ...]:
        """Where what does not come from living ranks comes from, each source once."""
        sources = dict.fromkeys(piece.source for piece in self.pieces)
        return tuple(source for source in sources if not isinstance(source, PeerSource))


def plan_epoch(rules: Rules, survivors: Survivors, decision: Decision, reason: str) -> RegroupPlan:
    """Plan the layout, the transfers and their time, and which part of the step in flight counts.

    Raises:
        CannotGoOn: there is no way to continue.
    """
    plan = _plan_epoch(rules, survivors, decision, reason)
    # Of another version's step, or of one that was given up after all, nothing is to be had.
    if plan.returns_to is not None or plan.starts_anew or plan.decision is not decision:
        return plan
    step, given = decision.committed_step + 1, (plan.layout, decision.contributions, survivors.costs)
    limits: dict[str, Any] = {"averages_rest": rules.averages_rest, "placement": rules.placement}
    completion = complete(step, *given, survivors.layout, **limits)
    return replace(plan, completion=completion)


def _plan_epoch(rules: Rules, survivors: Survivors, decision: Decision, reason: str) -> RegroupPlan:
    members = tuple(sorted({*survivors.reports, *survivors.newcomers}))
    if not members:
        above = passed_over(None, "", survivors.no_snapshot, survivors.no_parity, survivors.refused, ())
        gone = "".join(f"; no {kind}: {reason}" for kind, reason in above.items() if reason)
        raise CannotGoOn(f"every rank that held state is lost{gone}{newest_said(rules, survivors.refused)}")
    # A unit that a rank gave away has no gradients there: once the step in flight is committed, it is a step behind.
    holdings = {
        rank: frozenset(report.holdings if decision.commit else (*report.holdings, *report.given_away))
        for rank, report in survivors.reports.items()
    }
    situation = Situation(
        cluster=rules.cluster,
        alive=frozenset(members) - survivors.leaving,
        costs=survivors.costs,
        current=survivors.layout,
        holdings=holdings,
        degraded_share_limit=rules.degraded_share_limit,
        projected_share_limit=rules.projected_share_limit,
        placement=rules.placement,
    )
    try:
        target = plan_layout(rules, situation)
    except WipeOut as error:
        raise NeedsAllRanks(str(error)) from error
    except NoLayout as error:
        raise CannotGoOn(f"{error}{newest_said(rules, survivors.refused)}") from error
    target.check(rules.cluster, members)
    if survivors.restore_reason is not None:
        return _go_back(rules, survivors, decision, members, target, survivors.restore_reason)
    if survivors.layout is not None and not survivors.stateful:
        return _go_back(rules, survivors, decision, members, target, "every rank that held state is lost")
    if not decision.committed_step:
        return RegroupPlan(members, target, decision)
    if rules.shards_optimizer:
        return _with_shares(rules, survivors, decision, members, target)
    lineage = next((report.lineage for report in survivors.stateful.values()), "")
    version = Version(decision.committed_step, lineage)
    offers = [Offer.whole(version, PeerSource(r), units) for r, units in survivors.damaged.offers(holdings).items()]
    pieces, missing = plan_pieces(target, offers, holdings)
    if missing and all(any(unit in units for units in holdings.values()) for unit in missing):
        # It cannot be moved, but whoever holds it may continue with it, unless it must not compute what others did.
        ready = _fastest(_ready_layouts(rules.cluster, survivors.layout, target, members, holdings), survivors.costs)
        if ready is not None and rules.placement is None:
            return RegroupPlan(members, ready, decision)
        what = f"no holder of {', '.join(missing)} could send it undamaged"
        return _go_back(rules, survivors, decision, members, target, what)
    if missing:
        distrusted = {unit for report in survivors.reports.values() for unit in report.distrusted}
        lost = "the state of all holders is corrupted" if distrusted & set(missing) else "every holder was lost at once"
        what = f"no living rank holds {', '.join(missing)}: {lost}"
        return _go_back(rules, survivors, decision, members, target, what)
    direct = RegroupPlan(members, target, decision, pieces)
    # In the background a unit comes from a rank that computes with it; after a damaged transfer there may be none left.
    if not pieces or reason == BALANCE or rules.takeover == "direct" or survivors.damaged:
        return direct
    return _cheaper(rules, survivors, direct, holdings)


def _with_shares(
    rules: Rules, survivors: Survivors, decision: Decision, members: tuple[int, ...], target: Layout
) -> RegroupPlan:
    # Of the version that the living have, a snapshot is as good as they are: it was copied from such state.
    snapshots = (*survivors.snapshots, *survivors.newer_snapshots)
    withheld = survivors.damaged.deliveries
    decided, pieces, missing = plan_shares(target, survivors.stateful, decision, snapshots, withheld)
    if missing:
        what = f"of {', '.join(missing)} nobody living holds all shares"
        return _go_back(rules, survivors, decision, members, target, what)
    plan = RegroupPlan(members, target, decided, pieces)
    if not plan.stored_sources:
        return plan
    lost = sorted({piece.unit for piece in pieces if piece.source in plan.stored_sources}, key=unit_order)
    what = f"of {', '.join(lost)} a lost rank had a share of the optimizer state"
    reasons = survivors.no_snapshot, survivors.no_parity, survivors.refused
    return replace(plan, passed_over=passed_over(plan.rung, what, *reasons, ()))


def plan_layout(rules: Rules, situation: Situation) -> Layout:
    """The planner's layout; where the limit on degraded samples leaves none, that without the limit.

    Raises:
        NoLayout: there is none.
    """
    try:
        return rules.planner(situation)
    except NoLayout:
        if situation.degraded_share_limit == 1:
            raise
    # A limit on quality must not end a job that could go on without it.
    return rules.planner(replace(situation, degraded_share_limit=1.0))


def unit_bytes(layout: Layout, costs: Costs) -> dict[str, int]:
    """What moving each unit moves: parameters and both moments, but not the gradients that its state has room for."""
    state = {layer_unit(layer): costs.layer_state_bytes for layer in range(layout.num_layers)}
    state |= {EMBEDDING: costs.embedding_state_bytes, HEAD: costs.head_state_bytes}
    return {unit: num_bytes * 3 // 4 for unit, num_bytes in state.items()}


def transfer_seconds(transfers: Sequence[Transfer], sizes: Mapping[str, int], costs: Costs) -> float:
    """How long training is stopped for `transfers`: until the rank with the most to send or receive is done."""
    load: dict[tuple[str, int], int] = {}
    for transfer in transfers:
        for end in (("from", transfer.source), ("to", transfer.destination)):
            load[end] = load.get(end, 0) + sizes[transfer.unit]
    return max(load.values(), default=0) / costs.transfer_bytes_per_second


def _cheaper(
    rules: Rules, survivors: Survivors, direct: RegroupPlan, holdings: Mapping[int, frozenset[str]]
) -> RegroupPlan:
    """`direct`, or the best layout that runs with what everybody has while the rest is fetched."""
    costs, target = survivors.costs, direct.layout
    ready = _ready_layouts(rules.cluster, survivors.layout, target, direct.members, holdings)
    first = _fastest(ready, costs)
    if first is None:
        return direct
    sizes = unit_bytes(target, costs)
    first_seconds = step_seconds(first, costs)
    background = plan_background(
        first,
        target,
        holdings,
        sizes,
        max(1.0, costs.transfer_bytes_per_second * first_seconds * BACKGROUND_SHARE),
        direct.decision.committed_step + 1,
    )
    num_steps = background.last_step - direct.decision.committed_step
    slower_seconds = first_seconds - step_seconds(target, costs)
    background_seconds = num_steps * slower_seconds + survivors.regroup_seconds
    # A strategy whose layout is slower than what could run at once is not after speed: it gets what it wants.
    is_dearer = slower_seconds < 0 or background_seconds >= transfer_seconds(direct.transfers, sizes, costs)
    if rules.takeover == "auto" and is_dearer:
        return direct
    # Who is to have a place is settled: a rank that comes back meanwhile must not make what is fetched useless.
    first = replace(first, stand_ins=target.stand_ins)
    return replace(direct, layout=first, pieces=(), background=background)


def _fastest(layouts: Sequence[Layout], costs: Costs) -> Layout | None:
    return min(layouts, key=lambda layout: step_seconds(layout, costs), default=None)


def _ready_layouts(
    cluster: Cluster,
    current: Layout | None,
    target: Layout,
    members: Sequence[int],
    holdings: Mapping[int, frozenset[str]],
) -> list[Layout]:
    """Layouts that need nothing to move: what ran last, and each of both without the replicas that lack something."""
    candidates = [target] if current is None else [target, current]
    whole = (_without_lacking(cluster, layout, frozenset(members), holdings) for layout in candidates)
    return [layout for layout in whole if layout is not None]


def _without_lacking(
    cluster: Cluster, layout: Layout, members: frozenset[int], holdings: Mapping[int, frozenset[str]]
) -> Layout | None:
    """`layout` without the replicas of which a rank is gone or lacks a unit; None when none is left."""
    whole = [
        replica
        for replica in layout.replicas
        if all(
            span.rank in members and set(layout.units(span.rank)) <= holdings.get(span.rank, frozenset())
            for span in replica.spans
        )
    ]
    if not whole:
        return None
    if len(whole) == len(layout.replicas):
        return layout
    return replace(layout, replicas=_shared(whole, cluster.num_microbatches))


def _shared(replicas: Sequence[Replica], num_microbatches: int) -> tuple[Replica, ...]:
    """`replicas` with the whole step's microbatches, in proportion to what they have now; if that is none, evenly."""
    weights = [replica.num_microbatches for replica in replicas]
    if not any(weights):
        weights = [1] * len(weights)
    exact = [num_microbatches * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(replicas)), key=lambda index: (shares[index] - exact[index], index))
    for index in by_remainder[: num_microbatches - sum(shares)]:
        shares[index] += 1
    return tuple(replace(r, num_microbatches=share) for r, share in zip(replicas, shares, strict=True))


def _go_back(
    rules: Rules, survivors: Survivors, decision: Decision, members: tuple[int, ...], target: Layout, what: str
) -> RegroupPlan:
    """State is lost: everybody goes back to the newest version that is whole somewhere."""
    durable = rules.newest_checkpoint(survivors.refused)
    rejected = rules.rejected_checkpoints(0 if durable is None else durable.step)

    def above(rung: Rung | None) -> dict[str, str]:
        agreed, no_snapshot = survivors.agreed, survivors.no_snapshot
        if no_snapshot is None and agreed is not None and durable is not None and durable.step >= agreed.step:
            no_snapshot = f"that of step {agreed.step} is older"
        no_checkpoint = [] if rung is None else rejected or ["there is none"]
        return passed_over(rung, what, no_snapshot, survivors.no_parity, survivors.refused, no_checkpoint)

    has_lost_snapshots = survivors.agreed is not None or survivors.snapshots
    if durable is None and rules.stops_on_loss and not survivors.refused and not has_lost_snapshots:
        # All of them are fresh: as when the job began. What a save left half written counts for nothing.
        begin = replace(decision, committed_step=0, commit=None)
        return RegroupPlan(members, target, begin, starts_anew=True, passed_over=above("start"))
    offers = list(survivors.snapshots)
    if durable is not None:
        offers.append(Offer.whole(durable.version, durable.source, target.holders()))
    choice = choose_version(target, offers)
    if choice is not None:
        at_version = replace(decision, committed_step=choice.version.step, commit=None)
        plan = RegroupPlan(members, target, at_version, choice.pieces, returns_to=choice.version)
        return replace(plan, passed_over=above(plan.rung))
    reasons = above(None)
    unusable = "; ".join([*filter(None, [reasons.get("checkpoint")]), *rejected])
    more = "Checkpoints" if rules.stops_on_loss else "More replicas (--data-parallel) or checkpoints"
    advice = "" if unusable else f". {more} would have kept a copy"
    if "snapshot" in reasons or "parity" in reasons:
        reasons["checkpoint"] = unusable or "there is none"
        said = "; ".join(f"no {rung}: {reason}" for rung, reason in reasons.items())
        raise CannotGoOn(f"no state is left to go on with: {said}{advice}")
    if unusable:
        raise CannotGoOn(f"{what}, and no checkpoint can be used: {unusable}")
    raise CannotGoOn(f"{what}, and there is no checkpoint{advice}")


def newest_said(rules: Rules, refused: Collection[tuple[Version, Source]]) -> str:
    """The newest checkpoint as the end of a sentence; empty when there is none."""
    durable = rules.newest_checkpoint(refused)
    return "" if durable is None else f". The newest checkpoint is of step {durable.step}: {durable.folder}"
