"""The events of external jobs: what the agent observes in the ranks of an unchanged script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecefo_runtime.system.record import Record, omitted_if


class StepsCounted(Record, kind="steps_counted"):
    """The first step of a rank's start is committed, and `count_kept_by` says who knows its number over all starts.

    `script`: it says so itself; `torchft`: its manager; `parameters`: they were bit for bit those that a rank had after
    one step of the run, and no other; `optimizer`: its own count; `nothing_loaded`: it began anew, since nothing was
    loaded; `nobody`: it is not known, and steps are counted from 1.

    `resumed_after` is the step after which this start continues, 0 where it began anew; None: not known, or a log of an
    earlier version. `optimizer_steps` is how many steps the optimizer had made before by its own count, None where it
    keeps none. `is_optimizer_fresh`: its state was empty before the step, and is not after it.
    """

    count_kept_by: str = "nobody"
    resumed_after: int | None = None
    optimizer_steps: int | None = None
    is_optimizer_fresh: bool = False


class TrainingEntered(Record, kind="training_entered"):
    """A rank is about to compute its first step of a start with these `parameters`, a digest of their bits.

    `step` is the one after which it had them before; None: it is not known.
    """

    parameters: str = ""


class CheckpointBegun(Record, kind="checkpoint_begun"):
    """A rank is about to save something after `step`, with these `parameters`, a digest of their bits."""

    parameters: str = omitted_if("")


class JobReset(Record, kind="job_reset"):
    """The user's reset command put the job back to its beginning, before it was started."""

    reset_command: str = ""
    exit: int | None = None
    seconds: float = 0.0


class EndedWithoutStep(Record, kind="ended_without_step"):
    """A process that had made an optimizer came to its end, and no step of a training was seen in it."""

    is_compiled: bool = False


class StateChecksums(Record, kind="state_checksums"):
    """What a rank holds after `step`: of each tensor the sum of its bits, 8 hexadecimal digits, in `sums`.

    Their names are in `tensors`, in the same order; empty: as in the rank's record before. `loss` is the rank's own.
    `not_finite_values` of the parameters are NaN or infinite; `not_finite` has them by tensor, for the first tensors
    that have any. None: a version that did not look wrote the log.
    """

    sums: str = ""
    tensors: tuple[str, ...] = omitted_if(())
    loss: float | None = omitted_if(None)
    not_finite_values: int | None = None
    not_finite: Mapping[str, int] = omitted_if({})


class OrphansEnded(Record, kind="orphans_ended"):
    """The command was over, and `chaos` ended what it had left running: of `num_processes` some were those of `ranks`.

    A rank that ran in several attempts is one; `pids` are those of its processes.
    """

    num_processes: int = 0
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()


class LossNotFinite(Record, kind="loss_not_finite"):
    """For the first time the loss of a rank that tells no steps is not finite."""

    loss: str = ""


class NoStepSeen(Record, kind="no_step_seen"):
    """A command ended with exit code 0, and no training step was seen in it.

    `why` is a code of `harness.analysis.command.unseen`; `cause` is an exception that the command printed all the same,
    as `harness.analysis.command.failure_cause` reads it; `is_pipe`: a shell in the command runs a pipe, which hides the
    exit code of all but its last program.
    """

    why: str = "no_step"
    cause: Mapping[str, Any] | None = None
    is_pipe: bool = False


class RankRaised(Record, kind="rank_raised"):
    """Nobody caught an exception in a rank: it ends of it, in the step that was under way.

    Also when chaos has raised one (`is_injected`), whether or not the script catches that.
    `failure` is `own`, `collective_timeout` or `peer_lost` (`chaos.external.exception_kind`); the latter two tell of
    somebody else's failure. `file` and `line` are the place in the script, `causes` (`exception`, `message`, `file`,
    `line`, and `link`: `cause`, `context`, `remote`) what led to it, the root last.
    `last_step` is the last one that the rank has committed, None where its steps are not followed.
    """

    exception: str = "Exception"
    message: str = ""
    failure: str = "own"
    file: str | None = None
    line: int | None = None
    is_injected: bool = False
    last_step: int | None = omitted_if(None)
    causes: tuple[Mapping[str, Any], ...] = ()
