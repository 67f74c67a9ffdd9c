"""The effect of each set of lost ranks on the job: the real planners' layouts, and the real choice of transfers.

**When the same layout serves for many.** Replicas are alike, so only matters which stages of how many replicas are
lost: replicas are relabelled, those that were hit first, and a plan is made once for every such pattern. That is exact
but for one thing: where a step's microbatches cannot be shared evenly, the planners give what is left over to the
first replicas, and which these are depends on the labels. For `mecefo`, which splits a replica again over its
survivors, only their number matters, not which stages they had; a tie between layouts of equal speed aside.

What has to move goes with the number of stages that each replica lost. It is planned for the first change of that kind
that is seen, from layouts as the planner makes them for ranks that hold their configured layers.

**Large jobs.** Above `MAX_REPLICAS` replicas the planner is asked about a job of so many, with the same share of them
hit in each way, rounded up; so each way in which a replica is hit is there. A step is as long as its slowest replica's:
where all replicas take the same share (`ndb`, `exact`, and `mecefo` as long as it keeps the pace by degrading) that is
exact while no replica is lost whole. Where whole replicas take over work of others it is an approximation, wrong by
the work of less than one replica in `MAX_REPLICAS` for each way, on the safe side. Degraded work is counted by the
replicas that were really hit. What moves is planned with the replicas that a loss or a return changes, and whole ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mecefo_chaos.studies.forecast.model import JobModel, Policy, Rating
from mecefo_chaos.studies.forecast.pipeline import rate
from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.planners import NoLayout, Planner, Situation, find, fixed_settings
from mecefo_runtime.recovery.commit import Decision
from mecefo_runtime.recovery.regroup import (
    CannotGoOn,
    Rules,
    Survivors,
    plan_epoch,
    transfer_seconds,
    unit_bytes,
)

MAX_REPLICAS = 128
# Planners for which it does not matter which stages of a replica are lost.
_ONLY_NUMBERS = frozenset({"mecefo"})

Stages = tuple[int, ...]
"""The stages that a replica lacks, ascending."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a job gets to the layout that it wants.

    Training stands still for `transfer_seconds`; then `first` runs for `num_first_steps`, while the rest is fetched,
    and one more regroup follows. Without such steps what is wanted runs at once. `is_lost`: some state is nowhere.

    Of what the layout before had computed of the step in flight, `kept_ratio` need not be computed any more; but
    `owed_seconds` of the next layout's computing are left in any case.
    """

    transfer_seconds: float = 0.0
    first: Rating | None = None
    num_first_steps: int = 0
    is_lost: bool = False
    kept_ratio: float = 0.0
    owed_seconds: float = 0.0


class Layouts:
    """The ratings of a job's layouts under a planner, each found once."""

    def __init__(self, job: JobModel, policy: Policy) -> None:
        self._job = job
        settings = fixed_settings(policy.name)
        self._name = policy.name
        self._limit: float = settings.get("degraded_share_limit", policy.degraded_share_limit)
        self._projected: float = settings.get("projected_share_limit", policy.projected_share_limit)
        self._takeover: Literal["auto", "direct", "background"] = settings.get("takeover", policy.takeover)
        self._planner = find(policy.name)
        self._cluster = _reduced(job.cluster)
        self._num_alike = job.cluster.data_parallel / self._cluster.data_parallel
        self._ratings: dict[tuple[tuple[Stages, int], ...], Rating | None] = {}
        self._changes: dict[tuple[tuple[int, int], ...], Change] = {}
        self._layouts: dict[frozenset[int], Layout | None] = {}
        self.num_plans = 0

    @property
    def free(self) -> Rating:
        """Without failures."""
        rating = self.rating(frozenset())
        assert rating is not None, "with all ranks alive there is a layout"
        return rating

    def rating(self, dead: frozenset[int]) -> Rating | None:
        """That of the layout for all ranks but the `dead` ones; None: there is no layout."""
        lost = Counter(map(self._standing_for, lost_stages(self._job.cluster, dead).values()))
        key = tuple(sorted((stages, self._scaled(num)) for stages, num in lost.items()))
        if key not in self._ratings:
            pattern = [stages for stages, num in key for _ in range(num)]
            layout = self._plan(_ranks(self._cluster, pattern))
            self._ratings[key] = None if layout is None else rate(layout, self._job, self._num_alike)
        rating = self._ratings[key]
        if rating is None or self._cluster is self._job.cluster or not lost:
            return rating
        # Of the work that is degraded here, as much as there are replicas that were hit.
        shown = sum(num for _, num in key) / self._cluster.data_parallel
        scale = lost.total() / self._job.cluster.data_parallel / shown
        return replace(rating, degraded_ratio=rating.degraded_ratio * scale)

    def change(self, before: frozenset[int], after: frozenset[int]) -> Change:
        """From the layout without `before` to the one without `after`."""
        were, are = (lost_stages(self._job.cluster, dead) for dead in (before, after))
        pairs = [(are.get(replica, ()), were.get(replica, ())) for replica in {*were, *are}]
        kept_ratio = self._kept_ratio(pairs)
        if self._cluster is not self._job.cluster:
            pairs = [(now, was) for now, was in pairs if now != was][: self._cluster.data_parallel // 2]
        key = tuple(sorted((len(now), len(was)) for now, was in pairs))
        if key not in self._changes:
            self._changes[key] = self._plan_change(pairs)
        change = self._changes[key]
        # As long as the others fetch state, those that lost nobody train alone.
        return replace(change, kept_ratio=kept_ratio if change.first is None else 1.0)

    def _kept_ratio(self, pairs: Sequence[tuple[Stages, Stages]]) -> float:
        """What replicas that lost nobody have computed counts, and saves all that train the same (`completion`)."""
        num_replicas, num_stages = self._job.cluster.data_parallel, self._job.cluster.pipeline
        num_gone = sum(len(now) == num_stages for now, _ in pairs)
        num_hurt = sum(now != was or len(now) == num_stages for now, was in pairs)
        return (num_replicas - num_hurt) / max(1, num_replicas - num_gone)

    def _plan_change(self, pairs: list[tuple[Stages, Stages]]) -> Change:
        # Those that are hit first, in the order in which they are rated.
        ordered = sorted((not now, self._standing_for(now), self._standing_for(was)) for now, was in pairs)
        cluster = self._cluster
        is_dead = _ranks(cluster, [now for _, now, _ in ordered])
        was_dead = _ranks(cluster, [was for _, _, was in ordered])
        old, new = self._plan(was_dead), self._plan(is_dead)
        if old is None or new is None:
            return Change(is_lost=True)
        costs = self._job.planning_costs
        everybody = frozenset(range(cluster.num_ranks))
        report = RankReport(committed_step=1, layout=old)
        held = _units_by_rank(old)
        reports = {
            rank: replace(report, holdings=held.get(rank, ())) for rank in sorted(everybody - was_dead - is_dead)
        }
        survivors = Survivors(reports, tuple(sorted(was_dead - is_dead)), costs, old)
        try:
            plan = plan_epoch(Rules(cluster, lambda _: new, self._takeover), survivors, Decision(1), "loss")
        except CannotGoOn:
            return Change(is_lost=True)
        stall_seconds = transfer_seconds(plan.transfers, unit_bytes(plan.layout, costs), costs)
        if not plan.background:
            return Change(stall_seconds)
        return Change(stall_seconds, rate(plan.layout, self._job, self._num_alike), plan.background.last_step - 1)

    def _plan(self, dead: frozenset[int]) -> Layout | None:
        if dead not in self._layouts:
            self.num_plans += 1
            alive = frozenset(range(self._cluster.num_ranks)) - dead
            situation = Situation(
                self._cluster,
                alive,
                self._job.planning_costs,
                degraded_share_limit=self._limit,
                projected_share_limit=self._projected,
            )
            self._layouts[dead] = _planned(self._planner, situation)
        return self._layouts[dead]

    def _standing_for(self, stages: Stages) -> Stages:
        """Those that stand for `stages`: where only their number matters, the innermost ones."""
        if self._name not in _ONLY_NUMBERS:
            return stages
        last = self._cluster.pipeline - 1
        return tuple(sorted(sorted(range(last + 1), key=lambda stage: abs(2 * stage - last))[: len(stages)]))

    def _scaled(self, num_replicas: int) -> int:
        """As many of the planned job's replicas, at least."""
        return -(-num_replicas * self._cluster.data_parallel // self._job.cluster.data_parallel)


def _units_by_rank(layout: Layout) -> dict[int, tuple[str, ...]]:
    """`Layout.units` of every rank that holds some, at one go."""
    return {
        span.rank: replace(layout, replicas=(replica,)).units(span.rank)
        for replica in layout.replicas
        for span in replica.spans
    }


def _planned(planner: Planner, situation: Situation) -> Layout | None:
    """As the coordinator does: a limit on quality must not end a job that could go on without it."""
    try:
        return planner(situation)
    except NoLayout:
        if situation.degraded_share_limit == 1:
            return None
    return _planned(planner, replace(situation, degraded_share_limit=1.0))


def lost_stages(cluster: Cluster, dead: Iterable[int]) -> dict[int, Stages]:
    """For each replica that was hit the stages that it lacks, ascending."""
    lost: dict[int, list[int]] = {}
    for rank in dead:
        replica, stage = cluster.cell_of(rank)
        lost.setdefault(replica, []).append(stage)
    return {replica: tuple(sorted(stages)) for replica, stages in lost.items()}


def _reduced(cluster: Cluster) -> Cluster:
    """`cluster`, or one with fewer of its replicas, each with the same share of the microbatches."""
    if cluster.data_parallel <= MAX_REPLICAS:
        return cluster
    return replace(
        cluster,
        nodes=MAX_REPLICAS * cluster.pipeline,
        gpus_per_node=1,
        data_parallel=MAX_REPLICAS,
        num_microbatches=round(cluster.num_microbatches * MAX_REPLICAS / cluster.data_parallel),
    )


def _ranks(cluster: Cluster, pattern: Sequence[Stages]) -> frozenset[int]:
    """The ranks of the first replicas, each without the stages that `pattern` names."""
    return frozenset(cluster.rank_at(replica, stage) for replica, stages in enumerate(pattern) for stage in stages)
