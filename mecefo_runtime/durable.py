"""The newest durable checkpoint of a job: what a job begins with, or goes back to when state is lost.

Looking for one imports torch.distributed.checkpoint, which takes most of a second: only jobs that have any do so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mecefo_runtime.config import JobConfig
from mecefo_runtime.data import read_corpus


@dataclass(frozen=True, slots=True)
class Durable:
    """A complete checkpoint: the state after `step`, in `folder`."""

    step: int
    folder: str


class ForeignCheckpoint(RuntimeError):
    """A checkpoint is sound, but of another model or of other data."""


def newest_durable(job: JobConfig, refused: Collection[str] = ()) -> Durable | None:
    """The newest complete checkpoint of `job` in a folder that is not in `refused`; None when there is none.

    Raises:
        ForeignCheckpoint: it is of another job; the message names the difference.
    """
    if job.checkpoint is None:
        return None
    from mecefo_runtime.checkpoint import complete
    from mecefo_runtime.checkpoint_manifest import CheckpointMismatch, Identity

    for checkpoint in complete(Path(job.checkpoint.folder)):
        if str(checkpoint.path) not in refused:
            try:
                checkpoint.require(Identity.of(job, read_corpus(job.data)))
            except CheckpointMismatch as error:
                raise ForeignCheckpoint(str(error)) from error
            return Durable(checkpoint.step, str(checkpoint.path))
    return None


def has_checkpoint(job: JobConfig) -> bool:
    """Whether there is a complete checkpoint in the job's folder, whoever wrote it."""
    if job.checkpoint is None:
        return False
    from mecefo_runtime.checkpoint import complete

    return any(True for _ in complete(Path(job.checkpoint.folder)))
