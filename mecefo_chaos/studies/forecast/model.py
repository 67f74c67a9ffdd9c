"""The input and output of a forecast: frozen values.

    from mecefo_chaos.studies.forecast.forecast import forecast
    from mecefo_chaos.studies.forecast.model import Failures, JobModel, Policy, Recovery

    job = JobModel(cluster, costs, tokens_per_step=1024 * 256)
    failures = Failures(interval_seconds=1800, repair_seconds=7200)
    found = forecast(job, Policy("mecefo"), failures, Recovery(), hours=40, seed=0, num_replications=5)
    found.settled_drop_ratio.median   # layouts' speed alone, before regroups and transfers
    found.drop_ratio.median           # with them

A policy is the name of a planner (`mecefo_runtime.planners.names()`), `bamboo` or `replication`. All seconds
are those of the job's own wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from statistics import median
from typing import ClassVar, Literal

from mecefo_runtime.job.config import QUALITIES, Quality
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.link import Link
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.planners import stops_on_loss
from mecefo_runtime.planners.mecefo import PROJECTED_LOSS_RATIO
from mecefo_runtime.prediction.step_time import reducing_over
from mecefo_runtime.system.json_values import called

BAMBOO, REPLICATION, SPARE = "bamboo", "replication", "spare"
# Every second of a forecast is productive or has one of these causes.
CAUSES = (
    *("degraded_speed", "redundancy", "detection", "regroup", "transfer"),
    *("repeated_work", "restart", "checkpoint", "snapshot"),
)


@dataclass(frozen=True, slots=True)
class JobModel:
    """A job: its configured shape, its ranks' device, and what a step takes beside computing.

    `link` None: communication takes what `costs` say of messages, reductions and commits, nothing where they do not.
    Over a link `activation_bytes` go for each microbatch and stage. `overhead_seconds` is what every step takes beside
    all that. `tokens_per_step` may be any measure of work.
    """

    cluster: Cluster
    costs: Costs
    tokens_per_step: int
    link: Link | None = None
    activation_bytes: int = 0
    overhead_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_positive(tokens_per_step=self.tokens_per_step)
        _check_not_negative(
            activation_bytes=self.activation_bytes,
            overhead_seconds=self.overhead_seconds,
        )

    @property
    def planning_costs(self) -> Costs:
        """What planners know: over a link also how long a layer's gradients take to reduce."""
        if self.link is None or self.costs.layer_reduction_seconds is not None:
            return self.costs
        return reducing_over(self.costs, self.link, self.cluster.data_parallel)

    @property
    def message_seconds(self) -> float:
        """How long an activation takes from one stage to the next."""
        if self.link is None:
            return self.costs.message_seconds or 0.0
        return self.link.message_seconds(self.activation_bytes)


@dataclass(frozen=True, slots=True)
class Loss:
    """`ranks` are lost `at_seconds` and back after `repair_seconds` (inf: never).

    `nodes` are those that are lost with what is in their memory.
    """

    at_seconds: float
    ranks: tuple[int, ...]
    repair_seconds: float
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failures:
    """How ranks fail: a process, or a `trace` of what happened, which then is all there is.

    A failure takes one `unit`, drawn from the living ones, for `repair_seconds`. The times between failures are
    Weibull of mean `interval_seconds` and `shape` (1: exponential, a Poisson process), of the whole cluster or, with
    `per_unit`, of each unit by itself, from its repair on. A share `burst_ratio` of the failures is followed by another
    one within `burst_seconds`.
    """

    interval_seconds: float = inf
    repair_seconds: float = 0.0
    shape: float = 1.0
    unit: Literal["rank", "node"] = "rank"
    per_unit: bool = False
    burst_ratio: float = 0.0
    burst_seconds: float = 60.0
    trace: tuple[Loss, ...] | None = None

    def __post_init__(self) -> None:
        if not self.interval_seconds > 0:
            raise ValueError(f"interval_seconds must be positive, not {self.interval_seconds}")
        if not self.repair_seconds >= 0:
            raise ValueError(f"repair_seconds must not be negative, but is {self.repair_seconds}")
        _check_positive(shape=self.shape, burst_seconds=self.burst_seconds)
        if not 0 <= self.burst_ratio < 1:
            raise ValueError(f"burst_ratio must be at least 0 and less than 1, not {self.burst_ratio}")


@dataclass(frozen=True, slots=True)
class Saving:
    """State is saved every `interval_seconds` of training, which waits `save_seconds` for it.

    `survival_ratio`: with this probability a loss leaves it usable. A snapshot in memory may go with its node.
    """

    interval_seconds: float
    save_seconds: float
    restore_seconds: float = 0.0
    survival_ratio: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(interval_seconds=self.interval_seconds)
        _check_not_negative(save_seconds=self.save_seconds, restore_seconds=self.restore_seconds)
        if not 0 <= self.survival_ratio <= 1:
            raise ValueError(f"survival_ratio must be between 0 and 1, not {self.survival_ratio}")


@dataclass(frozen=True, slots=True)
class SnapshotSaving:
    """Snapshots in the nodes' memory, one every `interval_seconds` of training, as the runtime takes them.

    Training waits `save_seconds` for one; it counts `complete_seconds` after it was begun: when it is copied, protected
    and agreed on, beside training. New processes read one in `restore_seconds`, and need `rebuild_seconds` more where
    what lost nodes had is rebuilt from parity. `protection`, `group_size` and `nodes_per_rack` are as in
    `mecefo_runtime.job.config.SnapshotConfig`.
    """

    interval_seconds: float
    save_seconds: float = 0.0
    complete_seconds: float = 0.0
    restore_seconds: float = 0.0
    rebuild_seconds: float = 0.0
    protection: Protection = "xor"
    group_size: int = 4
    nodes_per_rack: int | None = None

    def __post_init__(self) -> None:
        _check_positive(interval_seconds=self.interval_seconds)
        _check_not_negative(
            save_seconds=self.save_seconds,
            complete_seconds=self.complete_seconds,
            restore_seconds=self.restore_seconds,
            rebuild_seconds=self.rebuild_seconds,
        )


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a loss costs beside the slower layouts.

    `detection_seconds`: until the job knows. `regroup_seconds`: until a new membership works, without the transfer of
    state. `first_step_seconds`: by how much the first step after it is longer. `restart_seconds`: all ranks end and
    start again, without reading the checkpoint. `replacement_seconds`: a job that starts again gets a spare for what it
    lost after so long; None: it waits for the repair. Without a `checkpoint` a job that has to go back to one begins
    from the start. Of snapshots there is `snapshot`, which outlive a loss by chance, or `memory`, which outlive what
    their protection bears; or neither.
    """

    detection_seconds: float = 0.0
    regroup_seconds: float = 0.0
    first_step_seconds: float = 0.0
    restart_seconds: float = 0.0
    replacement_seconds: float | None = None
    checkpoint: Saving | None = None
    snapshot: Saving | None = None
    memory: SnapshotSaving | None = None

    def __post_init__(self) -> None:
        _check_not_negative(
            detection_seconds=self.detection_seconds,
            regroup_seconds=self.regroup_seconds,
            first_step_seconds=self.first_step_seconds,
            restart_seconds=self.restart_seconds,
            replacement_seconds=self.replacement_seconds or 0.0,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """A strategy: a planner's `name`, `bamboo` or `replication`; with its settings as in `JobConfig`.

    `redundancy` is how many groups hold each shard of a step, of `spare` and `replication`; None: see `masking`.
    """

    name: str
    degraded_share_limit: float = 1.0
    projected_share_limit: float = 0.0
    takeover: Literal["auto", "direct", "background"] = "auto"
    redundancy: int | None = None

    @property
    def stops_on_loss(self) -> bool:
        """Whether all ranks end after a loss, and start again."""
        return stops_on_loss(self.name)

    def __str__(self) -> str:
        """Its name, its redundancy and, of `mecefo`, its quality: nothing is named where it is the default one."""
        if self.redundancy is not None:
            return f"{self.name}, r={self.redundancy}"
        if self.name != "mecefo":
            return self.name
        quality = Quality(self.degraded_share_limit, self.projected_share_limit)
        named = next((name for name, limits in QUALITIES.items() if limits == quality), None)
        return self.name if named == "auto" else f"{self.name}, {named or f'{quality.degraded_share_limit:.3g}'}"


@dataclass(frozen=True, slots=True)
class Rating:
    """A layout as a forecast sees it.

    `degraded_ratio` and `projected_ratio` are the shares of samples x layers that are computed so. A step begins with
    `compute_seconds` of forward and backward passes; inf: all of it.
    """

    step_seconds: float
    degraded_ratio: float = 0.0
    projected_ratio: float = 0.0
    compute_seconds: float = inf


@dataclass(frozen=True, slots=True)
class SampleWorth:
    """What a sample is worth to the training if all layers compute it so; an exact one is worth 1."""

    degraded: float
    projected: float = 1 - PROJECTED_LOSS_RATIO


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated job. `productive_seconds` and `lost_seconds` add up to `wall_clock_seconds`.

    Productive is what the committed steps would have taken without failures, redundancy and saving. `settled_seconds`
    is what they took. `degraded_ratio` and `projected_ratio` are means over the committed steps; `recovery_seconds` are
    those of all losses, from the loss to the end of the next committed step. `rungs` counts from where the state came
    after them: a `peer`, a `snapshot`, its `parity`, a `checkpoint`, or the `start`.
    """

    wall_clock_seconds: float
    productive_seconds: float
    settled_seconds: float
    lost_seconds: Mapping[str, float]
    num_steps: float
    num_losses: int
    num_regroups: int
    degraded_ratio: float
    down_ratio: float
    recovery_seconds: tuple[float, ...] = ()
    projected_ratio: float = 0.0
    rungs: Mapping[str, int] = field(default_factory=dict)

    @property
    def goodput_ratio(self) -> float:
        """Productive over wall clock."""
        return self.productive_seconds / self.wall_clock_seconds

    def steps_that_count_ratio(self, worth: SampleWorth) -> float:
        """What the committed steps are worth."""
        return 1 - self.degraded_ratio * (1 - worth.degraded) - self.projected_ratio * (1 - worth.projected)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a figure over all replications."""

    FINITE_ONLY: ClassVar[bool] = True

    median: float
    least: float = field(metadata=called("min"))
    greatest: float = field(metadata=called("max"))
    num: int = field(metadata=called("n"))

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        ordered = sorted(values)
        return cls(median(ordered), ordered[0], ordered[-1], len(ordered))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a policy makes of the failures, over all replications.

    `free_step_seconds` is a step of the configured job without failures, of which `policy_step_seconds` is the length
    under the policy (redundant computation makes it longer). Drops are relative to the latter: `settled_drop_ratio`
    counts the steps' own time alone, `drop_ratio` everything. `goodput_ratio` is relative to the former.
    `lost_seconds`, of `wall_clock_seconds`, and `rungs` are means over the replications. `down_ratio` is the mean share
    of ranks that are down, `recovery_seconds` the spread over all losses (None: none was recovered from).
    """

    policy: Policy
    wall_clock_seconds: float
    tokens_per_step: int
    free_step_seconds: float
    policy_step_seconds: float
    settled_drop_ratio: Spread
    drop_ratio: Spread
    goodput_ratio: Spread
    degraded_ratio: Spread
    projected_ratio: Spread
    recovery_seconds: Spread | None
    productive_seconds: float
    lost_seconds: Mapping[str, float]
    num_losses: float
    num_regroups: float
    down_ratio: float
    checkpoint_interval_seconds: float | None = None
    rungs: Mapping[str, float] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = field(default=(), repr=False)

    @property
    def free_tokens_per_second(self) -> float:
        """Of the configured job without failures."""
        return self.tokens_per_step / self.free_step_seconds

    @property
    def tokens_per_second(self) -> Spread:
        """Committed tokens over the wall clock."""
        return _scaled(self.goodput_ratio, self.free_tokens_per_second)

    def hours_to_train(self, num_steps: float) -> Spread:
        """Hours for so many steps, however good they are."""
        hours = num_steps * self.free_step_seconds / 3600
        return Spread.of(hours / one.goodput_ratio if one.goodput_ratio else inf for one in self.outcomes)

    def steps_that_count_ratio(self, worth: SampleWorth | float) -> Spread:
        """The share of the steps that count; a number is what a degraded sample is worth."""
        return Spread.of(one.steps_that_count_ratio(_worth(worth)) for one in self.outcomes)

    def time_to_loss_ratio(self, worth: SampleWorth | float) -> Spread:
        """How much longer than without failures until the failure-free job's loss; 1 is no longer."""
        return Spread.of(self.outcome_time_to_loss(number, worth) for number in range(len(self.outcomes)))

    def outcome_time_to_loss(self, number: int, worth: SampleWorth | float) -> float:
        """The same of one replication."""
        one = self.outcomes[number]
        speed = one.goodput_ratio * one.steps_that_count_ratio(_worth(worth))
        return 1 / speed if speed > 0 else inf


def _worth(worth: SampleWorth | float) -> SampleWorth:
    return worth if isinstance(worth, SampleWorth) else SampleWorth(worth)


def with_costs(job: JobModel, compute_ratio: float) -> JobModel:
    """`job` on ranks that take `compute_ratio` times as long to compute."""
    return replace(job, costs=job.costs.scaled(compute_ratio))


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.least * factor, spread.greatest * factor, spread.num)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, not {value}")


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and not negative, not {value}")
