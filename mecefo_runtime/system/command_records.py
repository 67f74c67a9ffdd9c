"""The events of external jobs: what the agent observes in the ranks of an unchanged script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecefo_runtime.system.record import Record, omitted_if


class StepsCounted(Record, kind="steps_counted", emitted_by="rank"):
    """Of a command, after the first step of each start: who knows its number over all starts."""

    count_kept_by: str = "nobody"
    """`script` (`chaos.agent.step(number=...)`), `torchft` (its manager's count), `parameters` (equal to those after
    one step of the run, and no other), `optimizer` (its own count), `nothing_loaded` (it began anew) or `nobody`: it is
    not known, and steps are counted from 1."""
    resumed_after: int | None = None
    """The step after which this start continues, 0 where it began anew; null: not known."""
    optimizer_steps: int | None = None
    """The optimizer's own count before that step; null where it keeps none."""
    is_optimizer_fresh: bool = False
    """Whether the optimizer's state was empty before that step."""


class TrainingEntered(Record, kind="training_entered", emitted_by="rank"):
    """Of a command, before the first pass of each start.

    `step` is the one after which a rank had the same parameters in this run, where that is known.
    """

    parameters: str = ""
    """A digest of the bits of the parameters that this rank trains."""
    buffers: str = omitted_if("")
    """A digest of the bits of the buffers of its model; missing where there is none, or it was not taken."""
    optimizer: str = omitted_if("")
    """A digest of the bits of the optimizer's state without its counts; missing where there is none."""
    optimizer_steps: int | None = omitted_if(None)
    """The optimizer's own count of steps; missing where it keeps none."""
    scaler: str = omitted_if("")
    """Scale and growth tracker of the GradScaler, as text; missing where none is enabled."""
    rates: tuple[float, ...] = omitted_if(())
    """The learning rate of each parameter group, of all optimizers in the order in which they were made."""
    groups: str = omitted_if("")
    """The other settings of the parameter groups (weight decay, betas, ...), as JSON."""
    is_whole: bool = omitted_if(False)
    """Whether all of these were looked at: then what is missing is not there. Before, only the parameters were."""


class CheckpointBegun(Record, kind="checkpoint_begun", emitted_by="rank"):
    """Of a command: something is about to be saved after `step`; no byte is written yet.

    Its digests are of the state of this rank at that moment, unless they would take too much of the training's time.
    """

    parameters: str = omitted_if("")
    """As in `training_entered`."""
    buffers: str = omitted_if("")
    """As in `training_entered`."""
    optimizer: str = omitted_if("")
    """As in `training_entered`."""
    optimizer_steps: int | None = omitted_if(None)
    """As in `training_entered`."""
    scaler: str = omitted_if("")
    """As in `training_entered`."""
    rates: tuple[float, ...] = omitted_if(())
    """As in `training_entered`."""
    groups: str = omitted_if("")
    """As in `training_entered`."""
    is_whole: bool = omitted_if(False)
    """As in `training_entered`."""
    path: str | None = omitted_if(None)
    """The file or folder that is saved first, where it is known."""
    is_asynchronous: bool = omitted_if(False)
    """Whether another thread than the one that trains saves it. Such a save has a second event, with the digests, when
    the next step begins; none where that step had begun already."""


class CheckpointChecked(Record, kind="checkpoint_checked", emitted_by="conductor"):
    """The checkpoint of `step` of a command was read from outside.

    When all ranks of an attempt had ended, and when the job had; no later than the next attempt's first save.
    """

    path: str | None = None
    """The file or folder where it is now."""
    found: str = "there"
    """`there`, `partly` (some of its files), `gone`, `overwritten` (a later save took its place) or `elsewhere`."""
    moment: str = "job_ended"
    """`attempt_ended` or `job_ended`."""
    of_attempt: int | None = omitted_if(None)
    """The attempt that had ended."""
    is_finished: bool = True
    """Whether its save was seen to end."""
    whole: bool | None = None
    """Whether its files are whole: checksums of zip archives, lengths of safetensors, the pieces that the metadata of a
    distributed checkpoint names; null: not known."""
    readable: bool | None = None
    """Whether the job's own Python could load it (`weights_only`); null: not tried."""
    finite: bool | None = None
    """Whether all its values are finite; null: not read."""
    damage: tuple[Mapping[str, Any], ...] = ()
    """The damage that was found: `{code, file, num_bytes, expected_bytes, part, count, error}` each."""
    unchecked: tuple[str, ...] = ()
    """Codes for why something of it is not known."""
    num_files: int = 0
    """Its files."""
    num_bytes: int = 0
    """Their size."""
    seconds: float = 0.0
    """How long it took to read."""


class CheckpointPointed(Record, kind="checkpoint_pointed", emitted_by="conductor"):
    """A command has ended: a file, link or number names its newest checkpoint, in a folder in which it saved."""

    folder: str = ""
    """The folder."""
    name: str = ""
    """A file or link there, or `highest_number`: the highest number in a name."""
    says: str = ""
    """The text of the file, or the target of the link."""
    target: str | None = None
    """The file or folder that this is; null: no entry of the folder."""
    is_there: bool = True
    """Whether that is there."""


class StateLoaded(Record, kind="state_loaded", emitted_by="rank"):
    """Of a command: a process of a rank has read a saved state, or failed to. It may come before its first step."""

    path: str | None = None
    """The file or folder, absolute; null where it was no file."""
    by: str = ""
    """`torch`, `distributed_checkpoint`, `safetensors`."""
    began_monotonic: float | None = None
    """When the call began (CLOCK_MONOTONIC)."""
    seconds: float | None = None
    """How long it took."""
    device: int | None = None
    """The device that has the file or folder; null where it is not known."""
    inode: int | None = None
    """Its inode."""
    num_bytes: int | None = None
    """Its size; of a folder that of all its files."""
    error: str | None = omitted_if(None)
    """The class and message of the exception that the call raised; the script may have caught it."""


class ProcessGroupFormed(Record, kind="process_group_formed", emitted_by="rank"):
    """Of a command: `init_process_group` has returned in a process of a rank, or raised."""

    backend: str | None = None
    """The backend, as torch names it."""
    world_size: int | None = None
    """Ranks of the group."""
    timeout_seconds: float | None = None
    """The time-out of its operations, as configured or as torch has it by default."""
    began_monotonic: float | None = None
    """When the call began (CLOCK_MONOTONIC)."""
    seconds: float | None = None
    """How long it took."""
    error: str | None = omitted_if(None)
    """The class and message of the exception that the call raised."""


class HangRuleFired(Record, kind="hang_rule_fired", emitted_by="conductor"):
    """A monitor with the rule `job.hang_rule` would have fired now; once in each silence of a command's log."""

    pattern: str = ""
    """The regular expression that no line of the log matched."""
    rule_seconds: float = 0.0
    """For how long none had to match."""
    silent_since_monotonic: float | None = None
    """When the last line that matched was read, or the command was started (CLOCK_MONOTONIC)."""


class HangRuleCleared(Record, kind="hang_rule_cleared", emitted_by="conductor"):
    """A line of a command's log matched the rule `job.hang_rule`, for the first time or again after it fired."""

    pattern: str = ""
    """The regular expression."""


class TimeoutsConfigured(Record, kind="timeouts_configured", emitted_by="conductor"):
    """Time-outs in the environment of a command's first rank, as it starts, and in its launcher's options."""

    timeouts: Mapping[str, str] = {}
    """By name of the variable (`TORCH_NCCL_...`) or key of `--rdzv-conf` (`rdzv.timeout`): the value, as written."""


class SamplerSeen(Record, kind="sampler_seen", emitted_by="rank"):
    """Of a command: the sampler of the loader that this rank trains from, once it is known and when it has changed."""

    sampler: str = ""
    """The class of the sampler."""
    num_samples: int | None = None
    """Samples in an epoch of this rank, or of all ranks with `is_shared`; null: not known."""
    is_shared: bool = False
    """Whether the samples are divided among the ranks; else each rank goes through its own."""
    has_replacement: bool | None = None
    """Whether an epoch may use a sample several times, or leave some out, by design; null: not known."""
    padding: int | None = None
    """Samples that an epoch repeats, over all ranks that divide them, so that batches are equal; null: not known."""
    drops: int | None = None
    """Samples that an epoch leaves out so that batches are equal; null: not known."""


class StepSeen(Record, kind="step_seen", emitted_by="rank"):
    """Of a command, after `step`: what the step of this rank was made of.

    Not of every step where that would take more than 1% of the time of the steps: then of every 2nd, 4th, 8th ...
    """

    batches: tuple[str, ...] = ()
    """Of each forward pass that was seen: a digest of each row of what the model was called with, 8 bytes each, in
    base64; empty where it was not seen. Equal rows have equal digests."""
    indices: tuple[tuple[int, ...], ...] = omitted_if(())
    """Of each of these passes: the indices of its samples in the data set, by the sampler of the loader; missing where
    they are not known of all."""
    rates: tuple[float, ...] = omitted_if(())
    """The learning rate of each parameter group, as the optimizers used them."""
    groups: str = omitted_if("")
    """The other settings of the parameter groups, as JSON; missing: as in the rank's `step_seen` before."""
    random: Mapping[str, str] = omitted_if({})
    """Of each global random generator (`python`, `numpy`, `torch`, `device`) a digest of its state before the first
    forward pass."""
    draws: tuple[str, ...] | None = omitted_if(None)
    """From which of them the step drew; missing: not known."""
    begins_epoch: bool = omitted_if(False)
    """Whether its first batch is the first one of a new iterator of the loader."""
    loss: float | None = omitted_if(None)
    """The rank's own loss."""


class JobReset(Record, kind="job_reset", emitted_by="conductor"):
    """Of a command, before it is started: the user's reset command put the job back to its beginning."""

    reset_command: str = ""
    """The command (`job.reset`)."""
    exit: int | None = None
    """Its exit code."""
    seconds: float = 0.0
    """How long it took."""


class EndedWithoutStep(Record, kind="ended_without_step", emitted_by="rank"):
    """Of a command: a process that created an optimizer ended without an observed training step."""

    is_compiled: bool = False
    """Whether torch.compile had compiled functions there."""


class StateChecksums(Record, kind="state_checksums", emitted_by="rank"):
    """Of a command, after `step`: what the rank holds."""

    sums: str = ""
    """Of each tensor of parameters and optimizer state the sum of the bits, modulo 2**32, 8 hexadecimal digits each."""
    tensors: tuple[str, ...] = omitted_if(())
    """The names of the tensors, in the same order; left out: as before."""
    loss: float | None = omitted_if(None)
    """The rank's own loss."""
    not_finite_values: int | None = None
    """How many values of its parameters are NaN or infinite; null in logs of versions that did not count them."""
    not_finite: Mapping[str, int] = omitted_if({})
    """How many by tensor, of the first 16 that have any."""


class OrphansEnded(Record, kind="orphans_ended", emitted_by="conductor"):
    """Of a command that is over: `chaos` ended processes that it left running."""

    num_processes: int = 0
    """How many."""
    ranks: tuple[int, ...] = ()
    """Ranks whose processes were among them, of any attempt."""
    pids: tuple[int, ...] = ()
    """Their process ids."""


class LossNotFinite(Record, kind="loss_not_finite", emitted_by="rank"):
    """Of a command: the first loss that is not finite, of a rank that reports no steps."""

    loss: str = ""
    """The loss."""


class NoStepSeen(Record, kind="no_step_seen", emitted_by="conductor"):
    """A command ended with exit code 0, and no training step was seen in it."""

    why: str = "no_step"
    """`no_agent` (no Python process of it reported), `no_step`, `nothing_to_do` (an optimizer was made and never used),
    `compiled` (the same, and torch.compile had compiled functions there), `not_in_log` (`--step-from` matched no
    line) or `other_user` (processes of it run as another user, and none of them reported as a rank)."""
    user: str | None = None
    """That other user."""
    unreachable: str | None = None
    """The path that this user must be able to read and cannot, if one was found."""
    cause: Mapping[str, Any] | None = None
    """An exception that it printed all the same, as in `job_failed`."""
    is_pipe: bool = False
    """Whether a shell in the command runs a pipe, which hides the exit code of all but its last program."""


class RankRaised(Record, kind="rank_raised", emitted_by="rank"):
    """Of a command: nobody caught an exception, and the rank ends of it.

    In the step under way, or between two after that step. Not of `SystemExit` and `KeyboardInterrupt`.
    """

    exception: str = "Exception"
    """The class of the exception."""
    message: str = ""
    """Its message, 2,000 characters at most."""
    failure: str = "own"
    """`own`, or `collective_timeout` and `peer_lost`, which report the failure of another rank."""
    file: str | None = None
    """The file of the script in which it was raised."""
    line: int | None = None
    """The line in that file."""
    is_injected: bool = False
    """Whether chaos raised it; the event then comes at that moment, whether or not the script catches it."""
    last_step: int | None = omitted_if(None)
    """The last step that the rank has committed; null where its steps are not followed."""
    causes: tuple[Mapping[str, Any], ...] = ()
    """`{exception, message, file, line, link}` of each exception that led to it, the root last; `link` is `cause`,
    `context` or `remote` (raised in a worker or another process)."""


class SignalsWatched(Record, kind="signals_watched", emitted_by="rank"):
    """A rank of a command reports, from now on, each signal for which its script has a handler."""


class SignalArrived(Record, kind="signal_arrived", emitted_by="rank"):
    """A rank of a command received a signal for which its script has a handler; the handler may run later."""

    signal: str = ""
    """Its name, such as `SIGTERM`."""
