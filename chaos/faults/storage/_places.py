"""Where the job saves its checkpoints, and why a fault of storage has nothing there: one decision, one text.

A job of our runtime has one folder, or none. A script saves where it likes: in the folder that the user named, else
where it was seen saving.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chaos.errors import TargetNotFound
from chaos.faults.base import FaultContext
from chaos.faults.phase_steps import Steps, joined, ranks_text
from mecefo_runtime.system.job_records import CheckpointWritten

Code = Literal["no_checkpoints", "nothing_saved", "not_in_folder", "files_gone", "several_folders", "no_folder"]
SEEN = "torch.save, safetensors and torch.distributed.checkpoint are seen, on the training thread"
FOLDER_OPTION = "--checkpoint-folder"
_MAX_NAMED = 4
# Frameworks save the files of one checkpoint in folders of it: `out/checkpoint-20/model`.
_MAX_LEVELS = 2


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why there is nothing to act on. `folder` is the one that was looked at, `seen` those in which saves were seen."""

    code: Code
    folder: Path | None = None
    seen: tuple[Path, ...] = ()
    steps: Steps | None = None
    ranks: tuple[int, ...] = ()

    def error(self) -> TargetNotFound:
        """To be raised."""
        return TargetNotFound(str(self), code=self.code)

    def __str__(self) -> str:
        match self.code:
            case "no_checkpoints":
                return "the job writes no checkpoints: give it --checkpoint-every 20"
            case "nothing_saved":
                return (
                    f"the script has saved nothing so far ({SEEN}): choose a step some way after its first save, or "
                    f"name the folder of its checkpoints with {FOLDER_OPTION} DIR"
                )
            case "not_in_folder" if self.seen:
                return (
                    f"nothing was saved in {self.folder} since the run began; {self._saves()}: write "
                    f"{FOLDER_OPTION} {self.seen[0]}"
                )
            case "not_in_folder":
                return f"nothing was saved in {self.folder} yet: choose a step some way after the first save"
            case "files_gone":
                return (
                    f"{self._saves()}, but no regular file that was saved since the run began is there now: choose a "
                    f"step some way after a save, or name the folder of the checkpoints with {FOLDER_OPTION} DIR"
                )
            case "several_folders":
                return f"{self._saves()}: name the one that is meant with {FOLDER_OPTION} {self.seen[0]}"
            case "no_folder" if self.seen:
                return f"{self._saves()}, which is no folder of this machine: name one with {FOLDER_OPTION} DIR"
            case "no_folder":
                return f"there is no folder {self.folder} yet: choose a step after the first checkpoint"

    def _saves(self) -> str:
        named = [str(folder) for folder in self.seen[:_MAX_NAMED]]
        others = len(self.seen) - len(named)
        where = joined([*named, *([f"{others} more folders"] if others else [])])
        whose = f" by {ranks_text(self.ranks)}" if self.ranks else ""
        return f"saves{whose} were seen in {where}{f' ({self.steps})' if self.steps else ''}"


def checkpoint_folder(context: FaultContext) -> Path:
    """The folder that the job saves its checkpoints in, which is there.

    Raises:
        chaos.errors.TargetNotFound: there is none, or not yet, or it is not known which one it is.
    """
    folder = context.checkpoint_folder
    if folder is not None:
        if not folder.is_dir():
            raise NoPlace("no_folder", folder).error()
        return folder
    if not context.has_foreign_checkpoints:
        raise NoPlace("no_checkpoints").error()
    if not (folders := observed_folders(context.watch.saves, wide_folders(context.run_folder))):
        raise nothing(context, "nothing_saved").error()
    if len(folders) > 1:
        raise nothing(context, "several_folders").error()
    if not folders[0].is_dir():
        raise nothing(context, "no_folder").error()
    return folders[0]


def nothing(context: FaultContext, code: Code, folder: Path | None = None) -> NoPlace:
    """Why there is nothing, with what was seen of the script's saves."""
    seen = observed_folders(context.watch.saves, wide_folders(context.run_folder))
    saves = context.watch.saves
    steps = Steps((step, step) for record in saves if (step := record.step) is not None)
    ranks = tuple(sorted({record.rank for record in saves if record.rank is not None}))
    return NoPlace(code, folder, seen, steps, ranks)


def observed_folders(saves: Iterable[CheckpointWritten], too_wide: Collection[Path] = ()) -> tuple[Path, ...]:
    """The folders in which a script saves, the newest first.

    It is one, where they are all in one folder that is none of `too_wide`, at most two levels below it.

    Where each checkpoint has a folder of its own, it is the one that these are in.
    """
    folders: dict[Path, int | None] = {}
    for record in reversed(tuple(saves)):
        for path, *_ in record.saved:
            folders.setdefault(Path(path).parent, record.step)
    if not folders:
        return ()
    if len(folders) == 1:
        ((folder, step),) = folders.items()
        is_of_step = step is not None and re.search(rf"(?<!\d)0*{step}(?!\d)", folder.name) is not None
        return (folder.parent if is_of_step and folder.parent not in too_wide else folder,)
    common = Path(os.path.commonpath(folders))
    levels = max(len(folder.relative_to(common).parts) for folder in folders)
    return tuple(folders) if common in too_wide or levels > _MAX_LEVELS else (common,)


def wide_folders(run_folder: Path) -> frozenset[Path]:
    """Folders that hold more than a job's checkpoints."""
    places = (Path.home(), Path(tempfile.gettempdir()), run_folder.absolute(), Path.cwd())
    return frozenset(parent for place in places for parent in (place, *place.parents))


def is_within(path: Path, folder: Path) -> bool:
    """Whether `path`, all links on the way followed, is `folder`, which is resolved, or in it."""
    return Path(os.path.realpath(path)).is_relative_to(folder)
