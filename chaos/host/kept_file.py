"""One file of a checkpoint's unit, kept whole elsewhere while it is damaged in its place, and put back from its record.

The unit's `unit.json` says what the file must be. As long as that is the one that it was, to restore the kept copy is
right, whatever has changed the file; once the job has written the unit again, nothing of it may be changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chaos.errors import HealError
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.checkpoint.manifest import MANIFEST, FileRecord, measure

_RESTORING = ".restoring-"
_WHOLE = "whole, by size and CRC-32"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile(UndoRecord):
    """File `name` of the unit in `folder`, as its manifest has it, and where it is `kept`: whole paths.

    `unit_crc32` is None of a script's checkpoint, which has no manifest (see `SavedFile`).
    """

    folder: str
    name: str
    num_bytes: int
    crc32: int
    unit_crc32: int | None
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile(KeptFile):
    """A file of a script's checkpoint: the damaged one as long as it is what it was made; None: it was removed."""

    damaged_num_bytes: int | None
    damaged_crc32: int | None

    @property
    def damaged(self) -> FileRecord | None:
        """What it was made."""
        if self.damaged_num_bytes is None or self.damaged_crc32 is None:
            return None
        return FileRecord(self.damaged_num_bytes, self.damaged_crc32)


def describe(unit_folder: Path, name: str, file: FileRecord, kept: Path) -> KeptFile:
    """File `name` of the unit in `unit_folder`, which is to be kept at `kept`.

    Raises:
        OSError: the unit cannot be read.
    """
    return KeptFile(
        folder=str(unit_folder.resolve()),
        name=name,
        num_bytes=file.num_bytes,
        crc32=file.crc32,
        unit_crc32=zlib.crc32((unit_folder / MANIFEST).read_bytes()),
        kept=str(kept.resolve()),
    )


def keep(file: KeptFile) -> None:
    """Make the kept copy, durably: a copy, since what shares its blocks with the file would be damaged with it.

    Raises:
        OSError: it cannot be made.
    """
    kept = Path(file.kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(file.folder) / file.name, kept)
    _sync(kept)


def put_back(file: KeptFile) -> dict[str, Any]:
    """Make the file whole again if it is still that unit's, and drop the copy; as often as one likes.

    Raises:
        chaos.errors.HealError: it is damaged, and there is no whole copy, or it cannot be written.
    """
    path = f"{file.folder}/{file.name}"
    try:
        outcome = _put_back(file)
    except OSError as error:
        raise HealError(f"cannot put {path} back from {file.kept}: {error.strerror}") from error
    kept = Path(file.kept)
    kept.unlink(missing_ok=True)
    with suppress(OSError):
        # Only when it is empty: other faults may keep theirs there.
        kept.parent.rmdir()
    return {"undone": outcome, "file": path}


def _put_back(file: KeptFile) -> str:
    name, kept = file.name, Path(file.kept)
    expected = FileRecord(file.num_bytes, file.crc32)
    try:
        # By its descriptor: if the job replaces the unit meanwhile, this goes to the one that it moved away.
        folder = os.open(file.folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return "the job has removed this checkpoint since"
    try:
        found = _measured(name, folder)
        if file.unit_crc32 is not None and _unit_crc32(folder) != file.unit_crc32:
            return "the job has written this checkpoint anew since"
        if found == expected:
            return _WHOLE
        if isinstance(file, SavedFile) and found != file.damaged:
            return f"the job has {'removed' if found is None else 'written'} this file since"
        if not kept.exists() or _measured(str(kept), None) != expected:
            raise HealError(f"{file.folder}/{name} is damaged, and its copy {kept} is not there or not whole")
        try:
            _copy(kept, f"{_RESTORING}{name}", "wb", folder)
            os.replace(f"{_RESTORING}{name}", name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with suppress(FileNotFoundError):
                os.unlink(f"{_RESTORING}{name}", dir_fd=folder)
            if error.errno != errno.ENOSPC:
                raise
            # Over the damaged one, then, which takes less room.
            _copy(kept, name, "r+b", folder)
        os.fsync(folder)
        return _WHOLE
    finally:
        os.close(folder)


def _copy(kept: Path, name: str, mode: Literal["wb", "r+b"], folder: int) -> None:
    with kept.open("rb") as source, open(name, mode, opener=_opener(folder)) as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())


def _unit_crc32(folder: int) -> int | None:
    try:
        with open(MANIFEST, "rb", opener=_opener(folder)) as file:
            return zlib.crc32(file.read())
    except FileNotFoundError:
        return None


def _measured(path: str, folder: int | None) -> FileRecord | None:
    try:
        with open(path, "rb", opener=_opener(folder)) as file:
            return measure(file)
    except FileNotFoundError:
        return None


def _opener(folder: int | None) -> Any:
    return lambda path, flags: os.open(path, flags, 0o644, dir_fd=folder)


def _sync(path: Path) -> None:
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
