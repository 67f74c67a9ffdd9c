"""What the file of `chaos forecast` may say, section by section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from chaos.errors import UsageError
from chaos.experiment.fields import Said
from chaos.language.quantities import SecondsFromZeroText, SecondsText, parse_seconds
from chaos.language.validation_errors import said
from mecefo_chaos.studies.forecast.model import Policy, SampleWorth, Saving, SnapshotSaving
from mecefo_chaos.studies.forecast.strategies import number, share, strategy
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.planners.mecefo import PROJECTED_LOSS_RATIO

BEST = "best"
# What a sample that went through degraded layers alone is worth: 1 - steps lost / share degraded, of `mecefo` without a
# budget in docs/explanation/convergence.md under high, mid and low: 0.25, 0.5 and 0.35.
DEGRADED_SAMPLE_WORTH = 0.35
DEGRADED_SAMPLE_WORTH_SOURCE = (
    "docs/explanation/convergence.md: the median of low, mid and high, measured with a tiny model"
)
MOST_RANKS = 1_000_000

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MOST_RANKS)]


def _interval(value: object) -> float | str:
    return BEST if value == BEST else parse_seconds(value)


def _shape(value: object) -> float:
    found = number(value)
    if not 0.1 <= found <= 20:
        raise UsageError(f"a Weibull distribution of shape {found:g} is no failure process: write 0.1 to 20")
    return found


ShareText = Annotated[float, PlainValidator(said(share))]


class ClusterShape(Said):
    """The ranks, and how a model lies on them; of groups that are units only how many there are."""

    data_parallel: Count
    nodes: Count | None = None
    gpus_per_node: Count | None = None
    pipeline: Count | None = None


class Group(Said):
    """A data-parallel group as a unit, instead of a device: what its GPUs together take for their share of a step.

    All groups wait for each other in `reduction`; one that is back fetches its state in `fetch`.
    """

    gpus: Count
    compute: SecondsText
    reduction: SecondsFromZeroText
    tokens: Annotated[int, Field(ge=1, le=10**12)]
    fetch: SecondsFromZeroText = 0.0


class Training(Said):
    """What is trained; sequences and tokens where they are not those of the device."""

    microbatches_per_replica: Annotated[int, Field(ge=1, le=100_000)]
    steps: Annotated[int, Field(ge=1, le=10**9)]
    sequence_length: Annotated[int, Field(ge=1, le=10**6)] | None = None
    microbatch_size: Annotated[int, Field(ge=1, le=10**5)] | None = None


class Burst(Said):
    """A `share` of the failures is followed by another one `within` so long."""

    share: ShareText
    within: SecondsText = 60.0


class FailureSpec(Said):
    """A process (`every`, `shape`, `of` the cluster or each unit), or a `trace`; what one `takes`, how long."""

    every: SecondsText | None = None
    of: Literal["cluster", "unit"] = "cluster"
    shape: Annotated[float, PlainValidator(said(_shape))] = 1.0
    takes: Literal["rank", "node"] = "rank"
    repair: SecondsFromZeroText
    burst: Burst | None = None
    trace: str | None = None


class RecoverySpec(Said):
    """What a loss costs beside slower steps. Without a `replacement` a job that starts again waits for the repair."""

    detection: SecondsFromZeroText = 2.0
    regroup: SecondsFromZeroText = 1.0
    first_step: SecondsFromZeroText = 0.0
    restart: SecondsFromZeroText = 300.0
    replacement: SecondsFromZeroText | None = None


class SavingSpec(Said):
    """Checkpoints: training waits `save` for one, every `interval`, and `restore` reads it."""

    save: SecondsFromZeroText
    restore: SecondsFromZeroText = 0.0
    interval: Annotated[float | str, PlainValidator(said(_interval))] = BEST


class SnapshotSpec(Said):
    """Snapshots in memory; with `protection` as the runtime takes them, else a loss leaves one with chance `survives`.

    With `protection` one counts `complete` after it was begun, and what lost nodes had takes `rebuild` more to restore.
    """

    save: SecondsFromZeroText
    interval: SecondsText
    restore: SecondsFromZeroText = 0.0
    survives: ShareText = 1.0
    protection: Protection | None = None
    group: Annotated[int, Field(ge=2, le=MOST_RANKS)] = 4
    nodes_per_rack: Count | None = None
    complete: SecondsFromZeroText = 0.0
    rebuild: SecondsFromZeroText = 0.0

    def of_runtime(self) -> SnapshotSaving | None:
        """As the runtime takes them; None: by chance."""
        if self.protection is None:
            return None
        times = (self.interval, self.save, self.complete, self.restore, self.rebuild)
        return SnapshotSaving(*times, self.protection, self.group, self.nodes_per_rack)

    def by_chance(self) -> Saving | None:
        """Without protection: usable by chance."""
        return None if self.protection else Saving(self.interval, self.save, self.restore, self.survives)


class ClusterFile(Said):
    """A whole file."""

    name: str = "cluster"
    device: str | None = None
    group: Group | None = None
    cluster: ClusterShape
    training: Training
    failures: FailureSpec
    recovery: RecoverySpec = RecoverySpec()
    checkpoint: SavingSpec | None = None
    snapshot: SnapshotSpec | None = None
    strategies: list[Annotated[Policy, PlainValidator(said(strategy))]] | None = Field(
        default=None, min_length=1, max_length=40
    )
    degraded_sample_worth: ShareText = DEGRADED_SAMPLE_WORTH
    projected_sample_worth: ShareText = 1 - PROJECTED_LOSS_RATIO

    @property
    def worth(self) -> SampleWorth:
        """What samples that are not exact are worth."""
        return SampleWorth(self.degraded_sample_worth, self.projected_sample_worth)
