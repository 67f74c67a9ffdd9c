"""The newest checkpoint of an external job: found from the saves that the agents saw, or in a folder that is named.

Only regular files that were written since the run began, and not through links, may be damaged: no others belong to
this run.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.faults.base import FaultContext
from chaos.faults.storage._places import nothing
from chaos.host.run_files import EVENTS_FILE
from mecefo_runtime.system.job_records import CheckpointWritten

# A folder with more is none of checkpoints.
# By how much the times of a file system and of an event may differ.
_CLOCK_SECONDS = 0.25
_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """What a script saved at one time: `files` are in `path`, or there is one, which `path` is."""

    path: Path
    files: tuple[Path, ...]
    step: int | None

    def __str__(self) -> str:
        return f"{self.path}" if self.step is None else f"{self.path}, of step {self.step}"


def newest_saved(context: FaultContext) -> SavedCheckpoint:
    """The newest one that is there.

    Raises:
        chaos.errors.TargetNotFound: none is; the message says where was looked.
        chaos.errors.EnvironmentFailure: the folder cannot be read.
    """
    try:
        since_seconds = _began_seconds(context.run_folder)
        if context.checkpoint_folder is not None:
            checkpoint = _newest_in(context.checkpoint_folder, since_seconds)
        else:
            checkpoint = _newest_seen(context.watch.saves, since_seconds)
    except OSError as error:
        raise EnvironmentFailure(f"cannot look for checkpoints: {error.filename}: {error.strerror}") from error
    if checkpoint is not None:
        return checkpoint
    if context.checkpoint_folder is not None:
        raise nothing(context, "not_in_folder", context.checkpoint_folder)
    raise nothing(context, "files_gone" if context.watch.saves else "nothing_saved")


def _began_seconds(run_folder: Path) -> float:
    """When the run began (Unix time): of its first event, since the log's own times change with every further one."""
    with (run_folder / EVENTS_FILE).open(encoding="utf-8") as events:
        return float(json.loads(events.readline())["time"])


def _newest_in(folder: Path, since_seconds: float) -> SavedCheckpoint | None:
    found: list[tuple[float, Path, tuple[Path, ...]]] = []
    for entry in sorted(folder.iterdir())[:_MAX_ENTRIES] if folder.is_dir() else ():
        if files := tuple(_own_files([entry], since_seconds)):
            found.append((max(file.stat().st_mtime for file in files), entry, files))
    if not found:
        return None
    _, path, files = max(found)
    return SavedCheckpoint(path, files, None)


def _newest_seen(saves: Iterable[CheckpointWritten], since_seconds: float) -> SavedCheckpoint | None:
    by_step: dict[int, list[Path]] = {}
    for record in saves:
        for path, device, inode, *_ in record.saved:
            if (place := where_is(Path(path), device, inode, record.time_seconds)) is not None:
                by_step.setdefault(record.step or 0, []).append(place)
    for step in sorted(by_step, reverse=True):
        files = tuple(dict.fromkeys(_own_files(by_step[step], since_seconds)))
        if not files:
            continue
        parents = {file.parent for file in files}
        others = {place.parent for other, places in by_step.items() if other != step for place in places}
        is_folder = len(by_step[step]) == 1 and by_step[step][0].is_dir()
        if is_folder:
            return SavedCheckpoint(by_step[step][0], files, step)
        if len(files) > 1 and len(parents) == 1 and not parents & others:
            return SavedCheckpoint(next(iter(parents)), files, step)
        largest = max(files, key=lambda file: file.stat().st_size)
        return SavedCheckpoint(largest, (largest,), step)
    return None


def where_is(path: Path, device: int, inode: int, saved_unix_seconds: float | None = None) -> Path | None:
    """Where the file is now: many are written under another name first, in the same folder or in one next to it.

    Under another name it has not been written to since it was saved: a later file may have the inode of a removed one.
    """
    if _is_at(path, device, inode):
        return path
    for folder in (path.parent, path.parent.parent):
        try:
            entries = [Path(entry) for entry in os.scandir(folder)][:_MAX_ENTRIES]
        except OSError:
            continue
        places = entries if folder == path.parent else [entry / path.name for entry in entries]
        found = next((place for place in places if _is_at(place, device, inode)), None)
        if found is not None and not _was_written_after(found, saved_unix_seconds):
            return found
    return None


def _was_written_after(file: Path, saved_unix_seconds: float | None) -> bool:
    if saved_unix_seconds is None:
        return False
    try:
        status = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_mtime > saved_unix_seconds + _CLOCK_SECONDS


def _is_at(path: Path, device: int, inode: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


def _own_files(places: Iterable[Path], since_seconds: float) -> Iterator[Path]:
    for place in places:
        inside = (Path(folder, name) for folder, _, names in os.walk(place) for name in sorted(names))
        for path in inside if place.is_dir() and not place.is_symlink() else (place,):
            try:
                found = path.lstat()
            except OSError:
                continue
            is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
            # Clocks of file systems are coarse.
            if is_ours and found.st_size and found.st_mtime >= since_seconds - 1.0:
                yield path
