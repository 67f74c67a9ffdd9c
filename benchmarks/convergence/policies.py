"""What every policy makes of a failure: which replica computes how much of a step, approximated where, in what time.

Layouts are the planners' own, for the paper's 7B model on 32 ranks; their step time is the planners' model of it, with
costs from operation counts. Communication, state transfer and regroups are left out, for all policies alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.planners import NoLayout, Situation, find
from mecefo_runtime.prediction.predicted_costs import predict_costs
from mecefo_runtime.prediction.step_time import step_seconds

# 1,024 sequences a step, as the paper's 7B run has, in microbatches of two.
CLUSTER = Cluster(
    nodes=4,
    gpus_per_node=8,
    data_parallel=8,
    pipeline=4,
    num_layers=PRESETS["7b"].num_layers,
    num_microbatches=512,
)
# Of the order of an A100 with bf16: only ratios between times matter, and they hardly depend on these.
COSTS = predict_costs(
    PRESETS["7b"],
    sequence_length=256,
    microbatch_size=2,
    approximation=ApproximationConfig(rank=64),
    flops_per_second=1.5e14,
    accesses_bytes_per_second=1.5e12,
    transfer_bytes_per_second=25e9,
    bytes_per_value=2,
)
NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Policy:
    """Who decides the layouts: the planner of that name, with limits as in `Situation`.

    Without a planner a replica that lost a rank computes nothing until that is back; its microbatches go to nobody.
    """

    planner: str | None
    degraded_share_limit: float = 1.0
    projected_share_limit: float = 0.0

    @property
    def approximates(self) -> bool:
        """Whether some of its layouts have degraded or projected layers."""
        return self.planner not in (None, "exact") and (self.degraded_share_limit > 0 or self.projected_share_limit > 0)


POLICIES: Mapping[str, Policy] = {
    "mecefo": Policy("mecefo"),
    "ndb": Policy("ndb"),
    "exact": Policy("exact"),
    "drop": Policy(None),
}


@dataclass(frozen=True, slots=True)
class Share:
    """What `replica` computes of a step: `ratio` of its samples, with these layers (of 7B) `degraded` and `projected`.

    `is_lost`: these samples are computed by nobody.
    """

    replica: int
    ratio: float
    degraded: frozenset[int] = NOBODY
    projected: frozenset[int] = NOBODY
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step under some layout. The ratios of `shares` add up to 1."""

    shares: tuple[Share, ...]
    seconds: float

    @property
    def degraded_ratio(self) -> float:
        """The share of the step's samples times layers that runs approximated."""
        return sum(share.ratio * len(share.degraded) for share in self.shares) / CLUSTER.num_layers

    @property
    def projected_ratio(self) -> float:
        """The share of the step's samples times layers that runs with low-rank weight gradients alone."""
        return sum(share.ratio * len(share.projected) for share in self.shares) / CLUSTER.num_layers

    @property
    def lost_ratio(self) -> float:
        """The share of the step's samples that nobody computes."""
        return sum(share.ratio for share in self.shares if share.is_lost)


def plan_steps(policy: Policy, alive_by_step: Sequence[frozenset[int]]) -> list[StepPlan]:
    """The plans of all steps, in order; the planner sees the layout that ran last.

    Raises:
        NoLayout: too many ranks are down for any layout.
    """
    plans: list[StepPlan] = []
    layout: Layout | None = None
    last: frozenset[int] | None = None
    for alive in alive_by_step:
        if alive == last:
            plans.append(plans[-1])
            continue
        last = alive
        if policy.planner is None:
            plans.append(_plan_without(alive))
            continue
        layout = find(policy.planner)(
            Situation(
                CLUSTER,
                alive,
                COSTS,
                current=layout,
                degraded_share_limit=policy.degraded_share_limit,
                projected_share_limit=policy.projected_share_limit,
            )
        )
        plans.append(_plan_of(layout))
    return plans


def _plan_of(layout: Layout) -> StepPlan:
    shares = tuple(
        Share(
            replica.replica,
            replica.num_microbatches / layout.num_microbatches,
            frozenset(layer for span in replica.spans for layer in span.degraded),
            frozenset(layer for span in replica.spans for layer in span.projected),
        )
        for replica in layout.replicas
    )
    return StepPlan(shares, step_seconds(layout, COSTS))


def _plan_without(alive: frozenset[int]) -> StepPlan:
    """The configured layout, of which replicas with a lost rank compute nothing."""
    hit = {CLUSTER.cell_of(rank)[0] for rank in range(CLUSTER.num_ranks) if rank not in alive}
    if len(hit) == CLUSTER.data_parallel:
        raise NoLayout("every replica has lost a rank")
    ratio = 1 / CLUSTER.data_parallel
    shares = tuple(Share(replica, ratio, is_lost=replica in hit) for replica in range(CLUSTER.data_parallel))
    return StepPlan(shares, step_seconds(configured_layout(), COSTS))


def configured_layout() -> Layout:
    """The layout of a step without failures."""
    return find("exact")(Situation(CLUSTER, frozenset(range(CLUSTER.num_ranks)), COSTS))
