"""What a rank holds in an epoch, its position in the step-and-commit rule, and the interface of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.job.contribution import Completion
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.snapshot_interval import SnapshotCosts
from mecefo_runtime.job.step_report import NO_HISTORY, HealthHistory, ReadyStep, StepTotals
from mecefo_runtime.state.activity import StateActivity
from mecefo_runtime.state.fetch import Fetching
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.step.degraded_layers import DegradedLayers
from mecefo_runtime.step.health import Judgement
from mecefo_runtime.step.pipeline import Pipeline
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.system.job_records import StepCommitted


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Where a rank is in the step-and-commit rule; replaced as a whole, since another thread reports it.

    `committed_step`: the last one applied, with its `totals`. `record`: the event of the last one that was computed
    here, `record_step`, which is another one where state was restored since. `ready`: the step whose reduced gradients
    this rank holds and has not applied. `history` is what `ready` is judged by.
    """

    committed_step: int = 0
    totals: StepTotals | None = None
    record: StepCommitted | None = None
    ready: ReadyStep | None = None
    history: HealthHistory = NO_HISTORY
    record_step: int = 0


@dataclass(slots=True)
class Epoch:
    """What a rank has while it trains in one epoch. `keeping` is what else uses its state between two steps.

    `completion` is there until the first step: that one has been begun in the epoch before, and is completed.
    """

    number: int
    leader: int
    layout: Layout
    members: tuple[int, ...]
    groups: Groups
    state: ModelState
    degraded: DegradedLayers
    fetching: Fetching
    pipeline: Pipeline | None
    ratings: Ratings
    traffic: Traffic = FREE
    keeping: tuple[StateActivity, ...] = ()
    completion: Completion | None = None

    @property
    def activities(self) -> tuple[StateActivity, ...]:
        """All that uses the state between two optimizer steps."""
        return (self.fetching, *self.keeping)

    def advance(self) -> None:
        """A compute segment is over."""
        for activity in self.activities:
            activity.advance()


class StepHost(Protocol):
    """The rest of a rank, as its steps see it."""

    @property
    def wants_boundary(self) -> bool:
        """Whether the members are asked to park at the next step boundary."""

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is still being written."""

    @property
    def snapshots(self) -> tuple[int, SnapshotCosts]:
        """The step of this rank's newest complete snapshot, 0: it has none; and what one takes."""

    def announce(self, step: int, phase: str) -> None:
        """The rank is about to enter `phase` of `step`."""

    def on_judged(self, epoch_number: int, step: int, judgement: Judgement) -> None:
        """On the leader: its verdict on a step, before it is sent to the others."""

    def on_applied(self, step: int, record: StepCommitted) -> None:
        """A step is committed and applied here; `record` is its event, but for `repeated`."""
