"""One file of a checkpoint's unit, kept whole elsewhere while it is damaged in its place, and put back from its record.

The unit's `unit.json` says what the file must be. As long as that is the one that it was, to restore the kept copy is
right, whatever has changed the file; once the job has written the unit again, nothing of it may be changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.errors import HealError
from chaos.host.own_folder import PRIVATE_FILE, PRIVATE_FOLDER, opened, parent_of, single_name, status_in
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.checkpoint.manifest import MANIFEST, FileRecord, measure
from mecefo_runtime.system.json_values import LEFT_OUT
from mecefo_runtime.system.reason import Reason

_RESTORING = ".restoring-"
_WHOLE = "whole, by size and CRC-32"
# Of a file that was removed, in the record of an earlier version.
_DEFAULT_MODE = 0o644
# Neither through a link nor waiting for the other end of a pipe.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile(UndoRecord):
    """File `name` of the unit in `folder`, as its manifest has it, and where it is `kept`: whole paths.

    `unit_crc32` is None of a script's checkpoint, which has no manifest (see `SavedFile`). `mode` are its permissions,
    None where an earlier version has not noted them.
    """

    folder: str
    name: str
    num_bytes: int
    crc32: int
    unit_crc32: int | None
    kept: str
    mode: int | None = field(default=None, metadata=LEFT_OUT)

    def changed_paths(self) -> tuple[str, ...] | None:
        """The file and its copy."""
        return f"{self.folder}/{self.name}", self.kept


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
        mode=permissions_of(unit_folder / name),
    )


def permissions_of(path: Path) -> int:
    """Who may read and write the file.

    Raises:
        OSError: it is not there.
    """
    return path.stat().st_mode & 0o777


def keep(file: KeptFile) -> None:
    """Make the kept copy, durably: a copy, since what shares its blocks with the file would be damaged with it.

    Others may not read it, whatever they may read of the file: its folder may be more open than the file's.

    Raises:
        OSError: it cannot be made.
    """
    kept = Path(file.kept)
    kept.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    with (Path(file.folder) / file.name).open("rb") as source, open(kept, "xb", opener=_private) as target:
        shutil.copyfileobj(source, target)
    _sync(kept)


def put_back(file: KeptFile) -> dict[str, Any]:
    """Make the file whole again if it is still that unit's, and drop the copy; as often as one likes.

    Raises:
        chaos.errors.HealError: it is damaged, and there is no whole copy, or it cannot be written.
    """
    path = f"{file.folder}/{file.name}"
    single_name(file.name)
    try:
        outcome = _put_back(file)
        _drop(Path(file.kept))
    except OSError as error:
        raise HealError(Reason("file_not_put_back", path=path, kept=file.kept, error=error.strerror)) from error
    return {"undone": outcome, "file": path}


def _drop(kept: Path) -> None:
    """Remove the copy, and its folder when that is empty: other faults may keep theirs there."""
    with suppress(FileNotFoundError), parent_of(kept) as (folder, name):
        status = status_in(folder, name)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise HealError(Reason("not_a_regular_file", path=kept))
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    with suppress(OSError), parent_of(kept.parent) as (outer, name):
        os.rmdir(name, dir_fd=outer)


def _put_back(file: KeptFile) -> str:
    expected = FileRecord(file.num_bytes, file.crc32)
    try:
        # By its descriptor: if the job replaces the unit meanwhile, this goes to the one that it moved away.
        with opened(Path(file.folder)) as folder:
            found = _measured(file.name, folder)
            if file.unit_crc32 is not None and _unit_crc32(folder) != file.unit_crc32:
                return "the job has written this checkpoint anew since"
            if found == expected:
                return _WHOLE
            if isinstance(file, SavedFile) and found != file.damaged:
                return f"the job has {'removed' if found is None else 'written'} this file since"
            _restore(file, folder, expected)
            os.fsync(folder)
            return _WHOLE
    except (FileNotFoundError, NotADirectoryError):
        return "the job has removed this checkpoint since"


def _restore(file: KeptFile, folder: int, expected: FileRecord) -> None:
    """From the copy, which is the same one while it is measured and while it is read."""
    name, kept = file.name, Path(file.kept)
    source = None
    try:
        try:
            with parent_of(kept) as (place, kept_name):
                source = os.open(kept_name, _READING, dir_fd=place)
        except FileNotFoundError:
            source = None
        if source is None or not stat.S_ISREG(os.fstat(source).st_mode) or _measured_open(source) != expected:
            raise HealError(Reason("copy_not_whole", path=f"{file.folder}/{name}", kept=kept))
        try:
            # A leftover of an undo that was cut off, or somebody's: never written into.
            with suppress(FileNotFoundError):
                os.unlink(f"{_RESTORING}{name}", dir_fd=folder)
            _copy(source, f"{_RESTORING}{name}", os.O_CREAT | os.O_EXCL, folder, file, name)
            os.replace(f"{_RESTORING}{name}", name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with suppress(FileNotFoundError):
                os.unlink(f"{_RESTORING}{name}", dir_fd=folder)
            if error.errno != errno.ENOSPC:
                raise
            # Over the damaged one, then, which takes less room.
            _copy(source, name, 0, folder, file, name)
    finally:
        if source is not None:
            os.close(source)


def _copy(source: int, name: str, flags: int, folder: int, file: KeptFile, before: str) -> None:
    """What `source` holds to `name` in the folder, with the permissions and the owner of what is there as `before`."""
    status = status_in(folder, before)
    descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, PRIVATE_FILE, dir_fd=folder)
    with os.fdopen(descriptor, "r+b") as target, os.fdopen(os.dup(source), "rb") as kept:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        kept.seek(0)
        shutil.copyfileobj(kept, target)
        if status is not None:
            # Of another user's job, where this is root.
            with suppress(PermissionError):
                os.fchown(descriptor, status.st_uid, status.st_gid)
        mode = file.mode if file.mode is not None else _DEFAULT_MODE if status is None else status.st_mode
        os.fchmod(descriptor, mode & 0o777)
        target.flush()
        os.fsync(target.fileno())


def _unit_crc32(folder: int) -> int | None:
    try:
        with open(MANIFEST, "rb", opener=_reader(folder)) as file:
            return zlib.crc32(file.read())
    except FileNotFoundError:
        return None


def _measured(name: str, folder: int) -> FileRecord | None:
    try:
        with open(name, "rb", opener=_reader(folder)) as file:
            return measure(file)
    except FileNotFoundError:
        return None


def _measured_open(descriptor: int) -> FileRecord:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return measure(file)


def _reader(folder: int) -> Any:
    return lambda name, flags: os.open(name, flags | _READING, dir_fd=folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, PRIVATE_FILE)


def _sync(path: Path) -> None:
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
