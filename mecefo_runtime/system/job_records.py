"""The events that a job tells: its ranks, its coordinator, and whoever starts and ends their processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Record):
    """The job begins; of a command's job what is not known beforehand is None.

    `num_ranks` counts those of the `spares` too, the nodes that are there beside `nodes`.
    """

    KIND: ClassVar[str] = "job_started"

    num_ranks: int | None = None
    nodes: Any = None
    spares: int = 0
    steps: int | None = None
    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    dilation_ratio: float | None = None
    emulation: Mapping[str, Any] | None = None
    snapshots: str | None = None
    runtime: str = "mecefo"
    command: Any = None
    started_in: str | None = None
    launcher: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Record):
    """A command's ranks were started, for the `attempt_number`-th time: the first of them was heard of.

    Their launcher had restarted them `num_restarts` times by then, and may do so `max_restarts` times (torchrun).
    """

    KIND: ClassVar[str] = "attempt_started"

    attempt_number: int
    world_size: int | None = None
    num_restarts: int | None = None
    max_restarts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarted(Record):
    """A rank has started."""

    KIND: ClassVar[str] = "rank_started"

    device: str | None = None
    metrics: str | None = None
    world_size: int | None = None
    framework: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinished(Record):
    """A rank has finished; of an external job's rank only the skipped events are known."""

    KIND: ClassVar[str] = "rank_finished"

    checksums: Mapping[str, int] = field(default_factory=dict)
    compute_cpu_seconds: float | None = None
    compute_wall_seconds: float | None = None
    compute_slot_seconds: float | None = None
    num_segments: int | None = None
    num_overruns: int | None = None
    overrun_seconds: float | None = None
    worst_overrun_seconds: float | None = None
    link_seconds: float | None = None
    link_waited_seconds: float | None = None
    steps_left_out: int = 0
    spoilt_passes_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingsAgreed(Record):
    """By what all ranks pad their compute from the start to the end: `Costs`, with the dilation in them.

    Other jobs whose `rated_as` is the same can take them over, and those of messages and commits if `ranks` are; so
    they `were_given` to this one. A second of an emulated device, whose they are, lasts `time_scale` seconds.
    """

    KIND: ClassVar[str] = "ratings"

    costs: Mapping[str, Any] = field(default_factory=dict)
    rated_as: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    were_given: bool = False
    time_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTold(Record):
    """A membership is told what its ranks are to hold and to compute."""

    KIND: ClassVar[str] = "layout"

    epoch: int | None = None
    reason: str = "start"
    group_backend: str | None = None
    members: tuple[int, ...] | None = None
    layout: Mapping[str, Any] | None = None
    degraded_layers: int | None = None
    projected_layers: int | None = None
    projected_saved_ratio: float | None = None
    num_transfers: int | None = None
    num_fetched_in_background: int | None = None
    commit_step: int | None = None
    resume_step: int | None = None
    predicted_step_seconds: float | None = None
    failure_free_step_seconds: float | None = None
    stack_depth: int | None = None
    kept_microbatches: int | None = None
    shared_out_microbatches: int | None = None
    lost_work_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherQualityPlanned(Record):
    """The planner's choice for the ranks of `epoch` with another `quality`, by the costs of that epoch.

    The losses before it are those of the job, in the same order. Epochs with every rank have none.
    """

    KIND: ClassVar[str] = "other_quality_planned"

    epoch: int | None = None
    quality: str = ""
    degraded_layers: int | None = None
    projected_layers: int | None = None
    predicted_step_seconds: float | None = None
    failure_free_step_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped(Record):
    """The members of `epoch` are training."""

    KIND: ClassVar[str] = "regrouped"

    epoch: int | None = None
    reason: str = "start"
    members: tuple[int, ...] | None = None
    group_seconds: float = 0.0
    transfer_seconds: float = 0.0
    transfer_bytes: int | None = None
    rung: str | None = None
    sources: Mapping[str, Any] = field(default_factory=dict)
    passed_over: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(Record):
    """A rank's part of a checkpoint is on disk; `saved` by a script: path, device and inode of each file or folder."""

    KIND: ClassVar[str] = "checkpoint_written"

    units: tuple[Any, ...] = ()
    saved: tuple[tuple[Any, ...], ...] = ()
    num_bytes: int | None = None
    blocking_seconds: float = 0.0
    writing_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Record):
    """A rank's part of a checkpoint was not saved; `was_skipped`: the one before was still being written.

    Only events of a script have `errno`, that of the system call that failed, and `path`, the file or folder that was
    to be saved, each where it is known.
    """

    KIND: ClassVar[str] = "checkpoint_failed"

    reason: str = ""
    was_skipped: bool = False
    errno: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(Record):
    """All ranks continue from a checkpoint, after `step`."""

    KIND: ClassVar[str] = "checkpoint_restored"

    folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRestored(Record):
    """All ranks continue from snapshots, after `step`: in the memory of `nodes`, `rebuilt_nodes`' from their parity."""

    KIND: ClassVar[str] = "snapshot_restored"

    nodes: tuple[int, ...] = ()
    rebuilt_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsUnprotected(Record):
    """The snapshot processes of `nodes` are lost: of what all ranks have, of `step`, `losses_left` more may be lost."""

    KIND: ClassVar[str] = "snapshots_unprotected"

    nodes: tuple[int, ...]
    losses_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsProtected(Record):
    """What all ranks have, of `step`, is protected again, `seconds` later; by an encoding again if `is_reencoded`."""

    KIND: ClassVar[str] = "snapshots_protected"

    seconds: float
    is_reencoded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotIntervalChosen(Record):
    """From this step on all ranks take a snapshot after every `every_steps` steps.

    By what one takes those whom it takes longest, and the mean time between losses.
    """

    KIND: ClassVar[str] = "snapshot_interval"

    every_steps: int = 0
    stopped_seconds: float = 0.0
    complete_seconds: float = 0.0
    step_seconds: float = 0.0
    mtbf_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUnfit(Record):
    """An attempt at a step was found unfit to be committed."""

    KIND: ClassVar[str] = "step_unfit"

    epoch: int | None = None
    verdict: str = ""
    suspects: tuple[int, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDamaged(Record):
    """A unit of state reached a rank with another checksum than it was sent with."""

    KIND: ClassVar[str] = "transfer_damaged"

    epoch: int | None = None
    unit: str = ""
    source_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted(Record):
    """A step is committed; `committed_seconds` and `began_seconds` say when, also where the log does not."""

    KIND: ClassVar[str] = "step_committed"

    epoch: int = 0
    loss: float | None = None
    tokens: int | None = None
    samples: int | None = None
    samples_checksum: int | None = None
    began_monotonic: float | None = None
    committed_monotonic: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    skipped: bool = False
    repeated: bool = False
    optimizers: int | None = None
    replica: int | None = None

    @property
    def committed_seconds(self) -> float:
        """When it was committed (CLOCK_MONOTONIC)."""
        return self.monotonic_seconds if self.committed_monotonic is None else self.committed_monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected(Record):
    """The coordinator noticed that ranks are lost."""

    KIND: ClassVar[str] = "detected"

    epoch: int | None = None
    lost: tuple[int, ...] = ()
    how: str | None = None
    cut_links: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritNamed(Record):
    """The launcher of a command blames ranks."""

    KIND: ClassVar[str] = "culprit_named"

    ranks: tuple[int, ...] = ()
    how: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated(Record):
    """Every survivor has left the old epoch, or all old ranks are gone."""

    KIND: ClassVar[str] = "isolated"

    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting(Record):
    """After a loss all ranks were told to end."""

    KIND: ClassVar[str] = "restarting"

    epoch: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStarted(Record):
    """All ranks are started again."""

    KIND: ClassVar[str] = "restart_started"

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested(Record):
    """A node will be preempted: its ranks are to leave in an orderly way."""

    KIND: ClassVar[str] = "drain_requested"

    epoch: int | None = None
    leaving_node: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinRequested(Record):
    """Ranks are back and wait for the next boundary of a step."""

    KIND: ClassVar[str] = "rejoin_requested"

    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoined(Record):
    """Ranks are members again."""

    KIND: ClassVar[str] = "rejoined"

    epoch: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRestarted(Record):
    """The job has a coordinator again."""

    KIND: ClassVar[str] = "coordinator_restarted"

    epoch: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted(Record):
    """A process of the job was started: of a rank, a node's supervisor, the coordinator, a container, a launcher."""

    KIND: ClassVar[str] = "process_started"

    role: str = ""
    started_pid: int | None = None
    start_ticks: int | None = None
    started_rank: int | None = None
    rank_attempt: int | None = None
    parent_pid: int | None = None
    started_node: int | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited(Record):
    """A process of the job ended; `exit` is its code, negative for a signal, None where nobody tells."""

    KIND: ClassVar[str] = "process_exited"

    role: str = ""
    exited_pid: int | None = None
    exit: int | None = None
    exited_rank: int | None = None
    rank_attempt: int | None = None
    exited_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Record):
    """The job cannot continue; `stopped` are the processes of it that a signal had stopped then.

    `why` is the reason with its code; logs of earlier versions have the sentence alone. Of a command that ended: its
    `exit` code, and the `cause` as `harness.analysis.command.failure_cause` reads it.
    """

    KIND: ClassVar[str] = "job_failed"

    reason: str = "no reason given"
    stopped: tuple[Any, ...] = ()
    exit: int | None = None
    cause: Mapping[str, Any] | None = None
    why: Reason | None = None

    @property
    def because(self) -> Reason:
        """Why it failed; without a code its sentence, under `job_failed`."""
        return self.why or Reason(self.KIND, sentence=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Record):
    """The job is over."""

    KIND: ClassVar[str] = "job_ended"

    outcome: str | None = None
    steps_committed: int | None = None
