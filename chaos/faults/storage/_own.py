"""The newest whole checkpoint of a job of our runtime, and what undo needs to know of one that is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure, TargetNotFound
from chaos.faults.base import FaultContext
from chaos.host.kept_file import KeptFile, SavedFile
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.checkpoint.folder import CheckpointFolder, complete_folders
from mecefo_runtime.checkpoint.manifest import CheckpointCorrupt, CheckpointError
from mecefo_runtime.system.reason import Reason


def newest_whole(context: FaultContext) -> CheckpointFolder:
    """The newest checkpoint of which every byte is as it was written.

    Raises:
        chaos.errors.TargetNotFound: there is none; the message says whether there is none yet, or none that is whole.
    """
    root = context.checkpoint_folder
    if root is None:
        raise TargetNotFound(Reason("no_checkpoints"))
    damaged: list[str] = []
    try:
        for checkpoint in complete_folders(root):
            try:
                checkpoint.verify()
            except CheckpointCorrupt as error:
                damaged.append(str(error))
            else:
                return checkpoint
    except OSError as error:
        raise EnvironmentFailure(f"cannot read the checkpoints in {root}: {error.strerror}") from error
    if damaged:
        raise TargetNotFound(Reason("no_whole_checkpoint", folder=root, damaged="; ".join(damaged)))
    raise TargetNotFound(Reason("no_complete_checkpoint", folder=root))


def refusal_of(folder: Path) -> CheckpointCorrupt | None:
    """What the runtime's reader says against the checkpoint in `folder`, None when it takes it."""
    try:
        CheckpointFolder.open(folder).verify()
    except CheckpointCorrupt as error:
        return error
    except CheckpointError:
        return None
    return None


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord(UndoRecord):
    """What is affected (`struck`) of which checkpoint, in words (`what`) and in figures (`details`)."""

    struck: str
    checkpoint: str
    step: int
    num_files: int
    what: str
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DamagedFile(CheckpointRecord, KeptFile):
    """A file of a unit that is damaged in its place and kept elsewhere."""


@dataclass(frozen=True, kw_only=True)
class DamagedSavedFile(CheckpointRecord, SavedFile):
    """The same of a script's checkpoint."""


@dataclass(frozen=True, kw_only=True)
class HiddenFolder(CheckpointRecord):
    """A checkpoint's `folder` that was moved aside, and where it is `hidden`."""

    folder: str
    hidden: str

    def changed_paths(self) -> tuple[str, ...] | None:
        """The folder, and what it was made."""
        return self.folder, self.hidden
