"""The events that a job tells: its ranks, its coordinator, and whoever starts and ends their processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record, omitted_if


class JobStarted(Record, kind="job_started", emitted_by="conductor"):
    """A job starts; what is not known of a command is null."""

    num_ranks: int | None = None
    """Ranks of the job, those of spare nodes too."""
    nodes: Any = None
    """Nodes of the job, without the spare ones."""
    spares: int = 0
    """Spare nodes."""
    steps: int | None = None
    """Steps that the job is to commit."""
    tokens_per_step: int | None = None
    """Tokens of each step; of an emulated device, those of the emulated model."""
    samples_per_step: int | None = None
    """Samples of each step."""
    dilation_ratio: float | None = None
    """Time dilation: how many times as long each compute segment lasts."""
    emulation: Mapping[str, Any] | None = None
    """Of an emulated device: `device_model`, `provenance`, `device`, `model`, `sequence_length`, `message_bytes`,
    `time_scale`, `is_scale_chosen`."""
    snapshots: str | None = None
    """How often snapshots are taken, and what protects them, in words; null: none are."""
    runtime: str = "mecefo"
    """`mecefo` for the built-in job, `command` for a training script of the user."""
    traits: Mapping[str, Any] | None = None
    """The kind of job, as yes or no: `has_layout`, `restarts_by_launcher`, `has_planned_steps`, `is_user_script`,
    `keeps_own_checkpoints`, `has_baseline_beside`; null in a log of a version that recorded the `runtime` alone."""
    command: Any = None
    """The command of a training script."""
    started_in: str | None = None
    """The folder in which the command is started."""
    launcher: str | None = None
    """`torchrun`, `accelerate`, `deepspeed`, `mpirun`, `srun` or `python`."""


class AttemptStarted(Record, kind="attempt_started", emitted_by="conductor"):
    """The launcher of a command started the ranks.

    Emitted at the greeting of the first of them, or else at its first step.
    """

    attempt_number: int
    """The number of the attempt, from 1."""
    world_size: int | None = None
    """Ranks of this attempt."""
    num_restarts: int | None = None
    """How often the launcher had restarted the ranks; null where it does not say (torchrun and `accelerate launch` do).
    """
    max_restarts: int | None = None
    """How often the launcher may restart the ranks; null where it does not say."""


class CommandRequeued(Record, kind="command_requeued", emitted_by="conductor"):
    """A command that was preempted has ended, and `chaos` starts it again, as a scheduler that requeues does."""

    number: int = 1
    """How often it has been started again by now."""
    exit: int | None = None
    """What it had ended with, negative for a signal; null: not known."""


class RankStarted(Record, kind="rank_started", emitted_by="rank"):
    """A rank has started."""

    device: str | None = None
    """The device that it computes on."""
    metrics: str | None = None
    """`host:port` of its metrics; null where it serves none."""
    world_size: int | None = None
    """Ranks of the job; of an external rank."""
    framework: str | None = None
    """The framework of an external rank."""


class RankFinished(Record, kind="rank_finished", emitted_by="rank"):
    """A rank has finished the last step; an external rank gives the steps left out alone."""

    checksums: Mapping[str, int] = {}
    """By unit that the rank holds: the checksum of its parameters and optimizer state."""
    compute_cpu_seconds: float | None = None
    """CPU time of all its compute segments."""
    compute_wall_seconds: float | None = None
    """Wall time of all its compute segments, padding included."""
    compute_slot_seconds: float | None = None
    """What its compute segments were to take."""
    num_segments: int | None = None
    """Its compute segments."""
    num_overruns: int | None = None
    """Compute segments that took longer than they were to."""
    overrun_seconds: float | None = None
    """By how much they did, all together."""
    worst_overrun_seconds: float | None = None
    """By how much one did at most."""
    link_seconds: float | None = omitted_if(None)
    """With links of known speed: what all that it received and reduced takes on them."""
    link_waited_seconds: float | None = omitted_if(None)
    """With links of known speed: how long it waited when the bytes were there already."""
    steps_left_out: int = 0
    """Of an external rank: steps that its GradScaler skipped after the last committed one."""
    spoilt_passes_left_out: int = omitted_if(0)
    """Where the script itself skips them: passes after a fault that were not finite and led to no step."""


class RatingsAgreed(Record, kind="ratings", emitted_by="coordinator"):
    """With `pacing: rated`: the costs by which all ranks pad their compute to the end of the job."""

    costs: Mapping[str, Any] = {}
    """Seconds of each kind of layer, time dilation included, and bytes."""
    rated_as: Mapping[str, Any] = {}
    """Shapes, approximation and dilation: jobs with the same ones can use these costs."""
    ranks: tuple[int, ...] = ()
    """Replicas and stages: jobs with the same ones can also use the costs of messages, reductions and commits."""
    were_given: bool = False
    """Whether the costs are those of an earlier run."""
    time_scale: float | None = None
    """How long a second of the emulated device lasts, which the costs include."""


class LayoutTold(Record, kind="layout", emitted_by="coordinator"):
    """A membership is formed: which layers each of its ranks holds and computes."""

    epoch: int | None = None
    """The number of the membership."""
    reason: str = "start"
    """`start`, `loss`, `rejoin`, `retry`, `balance` (state that was fetched in the background has arrived) or `heal` (a
    rank gets the state of its peers)."""
    group_backend: str | None = None
    """What carries tensors between GPUs in this epoch: `nccl` or `gloo`; `gloo` carries all others in any case."""
    members: tuple[int, ...] | None = None
    """Ranks of the membership."""
    layout: Mapping[str, Any] | None = None
    """The layers of each rank, and how it computes them."""
    degraded_layers: int | None = None
    """Layers that run degraded, over all replicas."""
    projected_layers: int | None = None
    """Layers with low-rank weight gradients alone."""
    projected_saved_ratio: float | None = None
    """The share of a layer's time that low-rank weight gradients save, by the measured costs; `mecefo` uses them above
    a tenth."""
    num_transfers: int | None = None
    """Units of state that move before training continues."""
    num_fetched_in_background: int | None = None
    """Units of state that move while training continues."""
    commit_step: int | None = None
    """A step that the regroup commits."""
    resume_step: int | None = None
    """The step with which training continues."""
    predicted_step_seconds: float | None = None
    """Duration of a step with this layout, from the measured costs."""
    failure_free_step_seconds: float | None = None
    """Duration of a step with every rank, from the same costs."""
    stack_depth: int | None = omitted_if(None)
    """Strategy `spare`: how many shards of a step one replica computes at most (S)."""
    kept_microbatches: int | None = omitted_if(None)
    """Where the step in flight is completed: microbatches computed before, and not again."""
    shared_out_microbatches: int | None = omitted_if(None)
    """Where the step in flight is completed: its other microbatches, which the members compute now."""
    lost_work_ratio: float | None = omitted_if(None)
    """Where the step in flight is completed: the share of the work on it of which nothing is kept."""


class OtherQualityPlanned(Record, kind="other_quality_planned", emitted_by="coordinator"):
    """An epoch of `mecefo` or `mecefo+spare` began without some ranks: its layout with another quality.

    After the same losses in the same order, and by the same costs.
    """

    epoch: int | None = None
    """The number of the membership."""
    quality: str = ""
    """The other quality: `speed`; `auto` for a job with `speed`."""
    degraded_layers: int | None = None
    """Layers that would run degraded."""
    projected_layers: int | None = None
    """Layers that would have low-rank weight gradients alone."""
    predicted_step_seconds: float | None = None
    """Duration of a step with that layout."""
    failure_free_step_seconds: float | None = None
    """Duration of a step with every rank."""


class Regrouped(Record, kind="regrouped", emitted_by="coordinator"):
    """The process groups of an epoch are built, and its members train."""

    epoch: int | None = None
    """The number of the membership."""
    reason: str = "start"
    """As in `layout`."""
    members: tuple[int, ...] | None = None
    """Ranks of the membership."""
    group_seconds: float = 0.0
    """How long the slowest rank took to build its process groups."""
    transfer_seconds: float = 0.0
    """How long the slowest rank took to transfer state."""
    transfer_bytes: int | None = None
    """State that the slowest rank transferred."""
    rung: str | None = None
    """The lowest source from which state came: `peer`, `snapshot`, `parity`, `checkpoint`; `start`: all ranks begin
    with the first step again. Missing at the start of the job."""
    sources: Mapping[str, Any] = {}
    """By source: `pieces` and `num_bytes` of all ranks and `seconds` of the slowest; empty where every rank had its
    state."""
    passed_over: Mapping[str, Any] = {}
    """By source that could not serve: the reason."""


class CheckpointWritten(Record, kind="checkpoint_written", emitted_by="rank"):
    """A rank's part of the checkpoint of `step` is on disk."""

    units: tuple[Any, ...] = ()
    """The units of its part."""
    saved: tuple[tuple[Any, ...], ...] = ()
    """Of an external rank: path, device, inode and size of each file or folder whose saving was seen, when the call
    that saved it had returned. Null is the size
    of a folder; earlier versions wrote no size."""
    num_bytes: int | None = None
    """Size of its part."""
    blocking_seconds: float = 0.0
    """How long training waited."""
    writing_seconds: float | None = None
    """How long it wrote while training continued."""


class CheckpointFailed(Record, kind="checkpoint_failed", emitted_by="rank"):
    """A rank's part of the checkpoint of `step` was not saved.

    Of a command: a save (or its future) raised, caught or not, and no later call after the same step saved the same
    file.
    """

    reason: str = ""
    """Why it was not saved; of a command what the save raised."""
    was_skipped: bool = False
    """Whether it was skipped because the checkpoint before was still being written."""
    errno: int | None = None
    """Of a command: the error number of the system call that failed."""
    path: str | None = omitted_if(None)
    """Of a command: the file or folder that was to be saved."""


class CheckpointRestored(Record, kind="checkpoint_restored", emitted_by="coordinator"):
    """All ranks continue from a checkpoint, after `step`."""

    folder: str | None = None
    """The folder of the checkpoint."""


class SnapshotRestored(Record, kind="snapshot_restored", emitted_by="coordinator"):
    """All ranks continue from snapshots in the memory of nodes, after `step`."""

    nodes: tuple[int, ...] = ()
    """The nodes whose memory held the snapshots."""
    rebuilt_nodes: tuple[int, ...] = ()
    """Lost nodes whose snapshots were rebuilt from the parity of their group."""


class SnapshotsUnprotected(Record, kind="snapshots_unprotected", emitted_by="coordinator"):
    """Snapshot processes are lost with all that they kept.

    `step` is that of the newest snapshots that all ranks have.
    """

    nodes: tuple[int, ...]
    """The nodes of the lost snapshot processes."""
    losses_left: int = 0
    """How many more processes of a group may be lost before these snapshots cannot be put together."""


class SnapshotsProtected(Record, kind="snapshots_protected", emitted_by="coordinator"):
    """The snapshots of `step` are protected again."""

    seconds: float
    """Time since `snapshots_unprotected`."""
    is_reencoded: bool
    """Whether the lost parts were rebuilt and the snapshots encoded again; otherwise those of a newer step were
    protected meanwhile."""


class SnapshotIntervalChosen(Record, kind="snapshot_interval", emitted_by="rank (the leader)"):
    """With `snapshots.every: auto`: the interval of snapshots on all ranks from `step` on."""

    every_steps: int = 0
    """The interval, in steps."""
    stopped_seconds: float = 0.0
    """How long a snapshot stops training, at most over the ranks."""
    complete_seconds: float = 0.0
    """How long until a snapshot is complete on the node and protected, at most over the ranks."""
    step_seconds: float = 0.0
    """Duration of a step, at most over the ranks."""
    mtbf_seconds: float = 0.0
    """The mean time between losses that the interval is computed from."""


class StepUnfit(Record, kind="step_unfit", emitted_by="rank (the leader)"):
    """An attempt at `step` was rejected because of its values."""

    epoch: int | None = None
    """The number of the membership."""
    verdict: str = ""
    """What is done: `repeat`, `skip`, `evict` or `heal`."""
    suspects: tuple[int, ...] = ()
    """Ranks that caused it, as far as known."""
    reason: str | None = None
    """What was wrong with the values."""


class TransferDamaged(Record, kind="transfer_damaged", emitted_by="rank"):
    """A unit of state arrived with another checksum than it was sent with.

    It is fetched from another holder.
    """

    epoch: int | None = None
    """The number of the membership."""
    unit: str = ""
    """The unit, such as `layer.3`."""
    source_rank: int | None = None
    """The rank that sent it."""


class StepCommitted(Record, kind="step_committed", emitted_by="rank (the leader)"):
    """A step is committed."""

    epoch: int = 0
    """The number of the membership; of a command the attempt."""
    loss: float | None = None
    """Mean cross-entropy in nats per token over all samples of the step; of a command, the sum over the step's backward
    passes in rank 0."""
    tokens: int | None = None
    """Tokens of the step."""
    samples: int | None = None
    """Samples of the step."""
    samples_checksum: int | None = None
    """Sum of the checksums of the step's samples (below)."""
    began_monotonic: float | None = None
    """When the attempt at the step began."""
    committed_monotonic: float | None = None
    """When it was committed, if that is not the time of the event."""
    grad_norm: float | None = None
    """Norm of the gradient."""
    learning_rate: float | None = None
    """Learning rate of the step."""
    skipped: bool = False
    """Whether the step was skipped as unfit: nothing was updated."""
    repeated: bool = False
    """Whether a new leader reports a step again that the old one may have reported."""
    optimizers: int | None = None
    """Of a command: how many optimizers took a step."""
    replica: int | None = None
    """Of a command that consists of replica groups (torchft): the group whose rank reports the step, once for each
    group."""

    @property
    def committed_seconds(self) -> float:
        """When it was committed (CLOCK_MONOTONIC)."""
        return self.monotonic_seconds if self.committed_monotonic is None else self.committed_monotonic


class Detected(Record, kind="detected", emitted_by="coordinator"):
    """The coordinator noticed that ranks are lost."""

    epoch: int | None = None
    """The number of the membership."""
    lost: tuple[int, ...] = ()
    """The lost ranks."""
    how: str | None = None
    """`supervisor`, `connection`, `heartbeat`, `peers`, `health` or `drain`."""
    cut_links: tuple[tuple[int, ...], ...] = omitted_if(())
    """With `how: peers`: pairs of ranks that cannot reach each other."""


class CulpritNamed(Record, kind="culprit_named", emitted_by="conductor"):
    """The launcher of a command names ranks as the first to fail.

    In a line of its log, which is read every 50 ms.
    """

    ranks: tuple[int, ...] = ()
    """The ranks."""
    how: str | None = None
    """The launcher: `torchrun`."""


class Isolated(Record, kind="isolated", emitted_by="coordinator or conductor"):
    """Every survivor has left the old epoch; of the conductor: all old ranks are gone."""

    epoch: int | None = None
    """The number of the old membership."""


class Restarting(Record, kind="restarting", emitted_by="coordinator"):
    """After a loss all ranks were told to end.

    With the strategies `checkpoint` and `reft`; with others where every rank is lost and saved state is not.
    """

    epoch: int | None = None
    """The number of the membership."""
    ranks: tuple[int, ...] = ()
    """The ranks that are to end."""


class RestartStarted(Record, kind="restart_started", emitted_by="conductor"):
    """All ranks have exited, no repair is pending, and they are started again."""

    ranks: tuple[int, ...] = ()
    """The ranks."""


class DrainRequested(Record, kind="drain_requested", emitted_by="coordinator"):
    """A node will be removed.

    Its ranks hand over their layers at the next step boundary and leave at the one after it, `detected` as drained.
    """

    epoch: int | None = None
    """The number of the membership."""
    leaving_node: int | None = None
    """The node."""
    ranks: tuple[int, ...] = ()
    """Its ranks."""


class RejoinRequested(Record, kind="rejoin_requested", emitted_by="coordinator"):
    """Ranks are back and wait for the next step boundary."""

    ranks: tuple[int, ...] = ()
    """The ranks."""


class Rejoined(Record, kind="rejoined", emitted_by="coordinator"):
    """Ranks are members again, at `step`."""

    epoch: int | None = None
    """The number of the membership."""
    ranks: tuple[int, ...] = ()
    """The ranks."""


class CoordinatorRestarted(Record, kind="coordinator_restarted", emitted_by="coordinator"):
    """The job has a coordinator again."""

    epoch: int | None = None
    """The number of the membership."""
    members: tuple[int, ...] = ()
    """Its ranks, as they report it: also a rank that had been cut off from all others."""


class ProcessStarted(Record, kind="process_started", emitted_by="supervisor or conductor"):
    """A process of the job was started; of a command's rank emitted at its greeting."""

    role: str = ""
    """`rank`, `supervisor`, `coordinator`, `snapshots`, `container` (the first process of one) or `launcher` (a
    command's own process)."""
    started_pid: int | None = None
    """Its process id."""
    start_ticks: int | None = None
    """Its start time in clock ticks since boot, from /proc."""
    started_rank: int | None = None
    """The rank that it is."""
    rank_attempt: int | None = None
    """The attempt of that rank, from 1."""
    parent_pid: int | None = None
    """Of a command's rank: the process id of its parent."""
    started_node: int | None = omitted_if(None)
    """The node that it serves, of a process other than a rank."""
    container: str | None = None
    """The container, such as `node-3`."""


class ProcessExited(Record, kind="process_exited", emitted_by="supervisor or conductor"):
    """A process of the job ended."""

    role: str = ""
    """As in `process_started`."""
    exited_pid: int | None = None
    """Its process id."""
    exit: int | None = None
    """Its exit code, negative for a signal; null where unknown: of a command's rank, before Linux 6.15, whose parent
    collected it first."""
    exited_rank: int | None = None
    """The rank that it was."""
    rank_attempt: int | None = None
    """The attempt of that rank, from 1."""
    exited_node: int | None = omitted_if(None)
    """The node that it served, of a process other than a rank."""


class JobFailed(Record, kind="job_failed", emitted_by="coordinator or conductor"):
    """The job cannot continue."""

    reason: str = "no reason given"
    """The sentence of `why`; older logs have it alone."""
    stopped: tuple[Any, ...] = ()
    """Of a job that stood still: its processes that a signal (SIGSTOP) had stopped by then."""
    exit: int | None = None
    """The exit code of a command that ended."""
    cause: Mapping[str, Any] | None = None
    """The cause of a command's end, as far as known: `code` (`rank_raised`, `rank_ended_by_fault`, `rank_exited`),
    `rank`, `step`, `exception`, `message`, `failure`, `file`, `line`, the same of the exception that led to it
    (`root_exception` ..., `root_link`), `exit`, `incident`, `fault`."""
    why: Reason | None = None
    """Why it cannot, as a reason with its code."""

    @property
    def because(self) -> Reason:
        """Why it failed; without a code its sentence, under `job_failed`."""
        return self.why or Reason(self.KIND, sentence=self.reason)


class JobEnded(Record, kind="job_ended", emitted_by="conductor"):
    """The job is over."""

    outcome: str | None = None
    """`completed`, `failed` or `stopped`."""
    steps_committed: int | None = None
    """Committed steps."""
