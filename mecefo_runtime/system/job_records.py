"""The events that a job tells: its ranks, its coordinator, and whoever starts and ends their processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record, omitted_if


class JobStarted(Record, kind="job_started"):
    """The job begins; of a command's job what is not known beforehand is None.

    `num_ranks` counts those of the `spares` too, the nodes that are there beside `nodes`. `traits` says what kind of
    job it is, see `mecefo_runtime.job.traits`; None: the log is of a version that recorded the `runtime` alone.
    """

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
    traits: Mapping[str, Any] | None = None
    command: Any = None
    started_in: str | None = None
    launcher: str | None = None


class AttemptStarted(Record, kind="attempt_started"):
    """A command's ranks were started, for the `attempt_number`-th time: the first of them was heard of.

    Their launcher had restarted them `num_restarts` times by then, and may do so `max_restarts` times (torchrun).
    """

    attempt_number: int
    world_size: int | None = None
    num_restarts: int | None = None
    max_restarts: int | None = None


class RankStarted(Record, kind="rank_started"):
    """A rank has started."""

    device: str | None = None
    metrics: str | None = None
    world_size: int | None = None
    framework: str | None = None


class RankFinished(Record, kind="rank_finished"):
    """A rank has finished; of an external job's rank only the skipped events are known."""

    checksums: Mapping[str, int] = {}
    compute_cpu_seconds: float | None = None
    compute_wall_seconds: float | None = None
    compute_slot_seconds: float | None = None
    num_segments: int | None = None
    num_overruns: int | None = None
    overrun_seconds: float | None = None
    worst_overrun_seconds: float | None = None
    link_seconds: float | None = omitted_if(None)
    link_waited_seconds: float | None = omitted_if(None)
    steps_left_out: int = 0
    spoilt_passes_left_out: int = omitted_if(0)


class RatingsAgreed(Record, kind="ratings"):
    """By what all ranks pad their compute from the start to the end: `Costs`, with the dilation in them.

    Other jobs whose `rated_as` is the same can take them over, and those of messages and commits if `ranks` are; so
    they `were_given` to this one. A second of an emulated device, whose they are, lasts `time_scale` seconds.
    """

    costs: Mapping[str, Any] = {}
    rated_as: Mapping[str, Any] = {}
    ranks: tuple[int, ...] = ()
    were_given: bool = False
    time_scale: float | None = None


class LayoutTold(Record, kind="layout"):
    """A membership is told what its ranks are to hold and to compute."""

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
    stack_depth: int | None = omitted_if(None)
    kept_microbatches: int | None = omitted_if(None)
    shared_out_microbatches: int | None = omitted_if(None)
    lost_work_ratio: float | None = omitted_if(None)


class OtherQualityPlanned(Record, kind="other_quality_planned"):
    """The planner's choice for the ranks of `epoch` with another `quality`, by the costs of that epoch.

    The losses before it are those of the job, in the same order. Epochs with every rank have none.
    """

    epoch: int | None = None
    quality: str = ""
    degraded_layers: int | None = None
    projected_layers: int | None = None
    predicted_step_seconds: float | None = None
    failure_free_step_seconds: float | None = None


class Regrouped(Record, kind="regrouped"):
    """The members of `epoch` are training."""

    epoch: int | None = None
    reason: str = "start"
    members: tuple[int, ...] | None = None
    group_seconds: float = 0.0
    transfer_seconds: float = 0.0
    transfer_bytes: int | None = None
    rung: str | None = None
    sources: Mapping[str, Any] = {}
    passed_over: Mapping[str, Any] = {}


class CheckpointWritten(Record, kind="checkpoint_written"):
    """A rank's part of a checkpoint is on disk; `saved` by a script: path, device and inode of each file or folder."""

    units: tuple[Any, ...] = ()
    saved: tuple[tuple[Any, ...], ...] = ()
    num_bytes: int | None = None
    blocking_seconds: float = 0.0
    writing_seconds: float | None = None


class CheckpointFailed(Record, kind="checkpoint_failed"):
    """A rank's part of a checkpoint was not saved; `was_skipped`: the one before was still being written.

    Only events of a script have `errno`, that of the system call that failed, and `path`, the file or folder that was
    to be saved, each where it is known.
    """

    reason: str = ""
    was_skipped: bool = False
    errno: int | None = None
    path: str | None = omitted_if(None)


class CheckpointRestored(Record, kind="checkpoint_restored"):
    """All ranks continue from a checkpoint, after `step`."""

    folder: str | None = None


class SnapshotRestored(Record, kind="snapshot_restored"):
    """All ranks continue from snapshots, after `step`: in the memory of `nodes`, `rebuilt_nodes`' from their parity."""

    nodes: tuple[int, ...] = ()
    rebuilt_nodes: tuple[int, ...] = ()


class SnapshotsUnprotected(Record, kind="snapshots_unprotected"):
    """The snapshot processes of `nodes` are lost: of what all ranks have, of `step`, `losses_left` more may be lost."""

    nodes: tuple[int, ...]
    losses_left: int = 0


class SnapshotsProtected(Record, kind="snapshots_protected"):
    """What all ranks have, of `step`, is protected again, `seconds` later; by an encoding again if `is_reencoded`."""

    seconds: float
    is_reencoded: bool


class SnapshotIntervalChosen(Record, kind="snapshot_interval"):
    """From this step on all ranks take a snapshot after every `every_steps` steps.

    By what one takes those whom it takes longest, and the mean time between losses.
    """

    every_steps: int = 0
    stopped_seconds: float = 0.0
    complete_seconds: float = 0.0
    step_seconds: float = 0.0
    mtbf_seconds: float = 0.0


class StepUnfit(Record, kind="step_unfit"):
    """An attempt at a step was found unfit to be committed."""

    epoch: int | None = None
    verdict: str = ""
    suspects: tuple[int, ...] = ()
    reason: str | None = None


class TransferDamaged(Record, kind="transfer_damaged"):
    """A unit of state reached a rank with another checksum than it was sent with."""

    epoch: int | None = None
    unit: str = ""
    source_rank: int | None = None


class StepCommitted(Record, kind="step_committed"):
    """A step is committed; `committed_seconds` and `began_seconds` say when, also where the log does not."""

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


class Detected(Record, kind="detected"):
    """The coordinator noticed that ranks are lost."""

    epoch: int | None = None
    lost: tuple[int, ...] = ()
    how: str | None = None
    cut_links: tuple[tuple[int, ...], ...] = omitted_if(())


class CulpritNamed(Record, kind="culprit_named"):
    """The launcher of a command blames ranks."""

    ranks: tuple[int, ...] = ()
    how: str | None = None


class Isolated(Record, kind="isolated"):
    """Every survivor has left the old epoch, or all old ranks are gone."""

    epoch: int | None = None


class Restarting(Record, kind="restarting"):
    """After a loss all ranks were told to end."""

    epoch: int | None = None
    ranks: tuple[int, ...] = ()


class RestartStarted(Record, kind="restart_started"):
    """All ranks are started again."""

    ranks: tuple[int, ...] = ()


class DrainRequested(Record, kind="drain_requested"):
    """A node will be preempted: its ranks are to leave in an orderly way."""

    epoch: int | None = None
    leaving_node: int | None = None
    ranks: tuple[int, ...] = ()


class RejoinRequested(Record, kind="rejoin_requested"):
    """Ranks are back and wait for the next boundary of a step."""

    ranks: tuple[int, ...] = ()


class Rejoined(Record, kind="rejoined"):
    """Ranks are members again."""

    epoch: int | None = None
    ranks: tuple[int, ...] = ()


class CoordinatorRestarted(Record, kind="coordinator_restarted"):
    """The job has a coordinator again."""

    epoch: int | None = None
    members: tuple[int, ...] = ()


class ProcessStarted(Record, kind="process_started"):
    """A process of the job was started: of a rank, a node's supervisor, the coordinator, a container, a launcher."""

    role: str = ""
    started_pid: int | None = None
    start_ticks: int | None = None
    started_rank: int | None = None
    rank_attempt: int | None = None
    parent_pid: int | None = None
    started_node: int | None = omitted_if(None)
    container: str | None = None


class ProcessExited(Record, kind="process_exited"):
    """A process of the job ended; `exit` is its code, negative for a signal, None where nobody tells."""

    role: str = ""
    exited_pid: int | None = None
    exit: int | None = None
    exited_rank: int | None = None
    rank_attempt: int | None = None
    exited_node: int | None = omitted_if(None)


class JobFailed(Record, kind="job_failed"):
    """The job cannot continue; `stopped` are the processes of it that a signal had stopped then.

    `why` is the reason with its code; logs of earlier versions have the sentence alone. Of a command that ended: its
    `exit` code, and the `cause` as `harness.analysis.command.failure_cause` reads it.
    """

    reason: str = "no reason given"
    stopped: tuple[Any, ...] = ()
    exit: int | None = None
    cause: Mapping[str, Any] | None = None
    why: Reason | None = None

    @property
    def because(self) -> Reason:
        """Why it failed; without a code its sentence, under `job_failed`."""
        return self.why or Reason(self.KIND, sentence=self.reason)


class JobEnded(Record, kind="job_ended"):
    """The job is over."""

    outcome: str | None = None
    steps_committed: int | None = None
