"""The events of external jobs: what the agent observes in the ranks of an unchanged script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mecefo_runtime.system.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsCounted(Record):
    """The first step of a start is committed, and `count_kept_by` says who knows its number over all starts.

    That is `optimizer`, `torchft` or `script`; `nobody`: a restored training is counted from 1 again.
    """

    KIND: ClassVar[str] = "steps_counted"

    count_kept_by: str = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReset(Record):
    """The user's reset command put the job back to its beginning, before it was started."""

    KIND: ClassVar[str] = "job_reset"

    reset_command: str = ""
    exit: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWithoutStep(Record):
    """A process that had made an optimizer came to its end, and no step of a training was seen in it."""

    KIND: ClassVar[str] = "ended_without_step"

    is_compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChecksums(Record):
    """What a rank holds after `step`: of each tensor the sum of its bits, 8 hexadecimal digits, in `sums`.

    Their names are in `tensors`, in the same order; empty: as in the rank's record before. `loss` is the rank's own.
    """

    KIND: ClassVar[str] = "state_checksums"

    sums: str = ""
    tensors: tuple[str, ...] = ()
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossNotFinite(Record):
    """For the first time the loss of a rank that tells no steps is not finite."""

    KIND: ClassVar[str] = "loss_not_finite"

    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRaised(Record):
    """Nobody caught an exception in a rank: it ends of it, in the step that was under way.

    Also when chaos has raised one (`is_injected`), whether or not the script catches that.
    `failure` is `own`, `collective_timeout` or `peer_lost` (`chaos.external.exception_kind`); the latter two tell of
    somebody else's failure. `file` and `line` are the place in the script, `causes` (`exception`, `message`, `file`,
    `line`, and `link`: `cause`, `context`, `remote`) what led to it, the root last.
    `last_step` is the last one that the rank has committed, None where its steps are not followed.
    """

    KIND: ClassVar[str] = "rank_raised"

    exception: str = "Exception"
    message: str = ""
    failure: str = "own"
    file: str | None = None
    line: int | None = None
    is_injected: bool = False
    last_step: int | None = None
    causes: tuple[Mapping[str, Any], ...] = ()
