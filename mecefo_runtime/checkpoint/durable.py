"""The newest durable checkpoint of a job: the job starts from it, and restores it when state is lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mecefo_runtime.checkpoint.folder import complete_folders, passed_over
from mecefo_runtime.checkpoint.manifest import CheckpointMismatch, Identity
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.state_source import CheckpointSource, Source, Version
from mecefo_runtime.model.data import read_corpus


@dataclass(frozen=True, slots=True)
class Durable:
    """A complete checkpoint in `folder`: the state after `step`, saved by the run with id `lineage`."""

    step: int
    folder: str
    lineage: str = ""

    @property
    def version(self) -> Version:
        """The version of the job's state that it holds."""
        return Version(self.step, self.lineage)

    @property
    def source(self) -> CheckpointSource:
        """The source that ranks read it from."""
        return CheckpointSource(self.folder)


class MismatchedCheckpoint(RuntimeError):
    """A checkpoint is intact, but belongs to another model or other data."""


def newest_durable(job: JobConfig, refused: Collection[tuple[Version, Source]] = ()) -> Durable | None:
    """The newest complete checkpoint of `job` that is not in `refused`; None when there is none.

    Raises:
        MismatchedCheckpoint: it is of another job; the message names the difference.
    """
    if job.checkpoint is None:
        return None
    for checkpoint in complete_folders(Path(job.checkpoint.folder)):
        found = Durable(checkpoint.step, str(checkpoint.path), checkpoint.stamp.lineage)
        if (found.version, found.source) not in refused:
            try:
                checkpoint.require(Identity.of(job, read_corpus(job.data)))
            except CheckpointMismatch as error:
                raise MismatchedCheckpoint(str(error)) from error
            return found
    return None


def has_checkpoint(job: JobConfig) -> bool:
    """Whether there is a complete checkpoint in the job's folder, whoever wrote it."""
    if job.checkpoint is None:
        return False
    return any(True for _ in complete_folders(Path(job.checkpoint.folder)))


def rejected_checkpoints(job: JobConfig, after_step: int) -> list[str]:
    """For each incomplete checkpoint of a later step than `after_step` in the job's folder, what is wrong with it."""
    return [] if job.checkpoint is None else passed_over(Path(job.checkpoint.folder), after_step)
