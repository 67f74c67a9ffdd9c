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


class CheckpointBegun(Record, kind="checkpoint_begun", emitted_by="rank"):
    """Of a command: something is about to be saved after `step`; no byte is written yet."""

    parameters: str = omitted_if("")
    """A digest of the bits of the parameters, unless that would take too much of the training's time."""


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
