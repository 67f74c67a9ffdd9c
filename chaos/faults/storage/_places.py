"""Where the job saves its checkpoints, and why a fault of storage has nothing there: one decision, one text.

A job of our runtime has one folder, or none. A script saves where it likes: in the folder that the user named, else
where it was seen saving.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from chaos.errors import TargetNotFound
from chaos.faults.base import FaultContext
from chaos.step_ranges import Steps
from mecefo_runtime.system.job_records import CheckpointWritten
from mecefo_runtime.system.reason import Reason

Code = Literal["no_checkpoints", "nothing_saved", "not_in_folder", "files_gone", "several_folders", "no_folder"]
# Frameworks save the files of one checkpoint in folders of it: `out/checkpoint-20/model`.
_MAX_LEVELS = 2


def checkpoint_folder(context: FaultContext) -> Path:
    """The folder that the job saves its checkpoints in, which is there.

    Raises:
        chaos.errors.TargetNotFound: there is none, or not yet, or it is not known which one it is.
    """
    folder = context.checkpoint_folder
    if folder is not None:
        if not folder.is_dir():
            raise TargetNotFound(Reason("no_folder", folder=folder))
        return folder
    if not context.has_foreign_checkpoints:
        raise TargetNotFound(Reason("no_checkpoints"))
    if not (folders := observed_folders(context.watch.saves, wide_folders(context.run_folder))):
        raise nothing(context, "nothing_saved")
    if len(folders) > 1:
        raise nothing(context, "several_folders")
    if not folders[0].is_dir():
        raise nothing(context, "no_folder")
    return folders[0]


def nothing(context: FaultContext, code: Code, folder: Path | None = None) -> TargetNotFound:
    """That there is nothing to act on, with what was seen of the script's saves: `seen` are the folders."""
    seen = observed_folders(context.watch.saves, wide_folders(context.run_folder))
    saves = context.watch.saves
    steps = Steps((step, step) for record in saves if (step := record.step) is not None)
    ranks = tuple(sorted({record.rank for record in saves if record.rank is not None}))
    return TargetNotFound(Reason(code, folder=folder, seen=seen, steps=steps.intervals or None, ranks=ranks or None))


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
