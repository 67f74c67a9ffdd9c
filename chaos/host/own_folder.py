"""Opens a folder without following a link on the way, so that what is changed in it is where its path says.

What is done by the descriptor of such a folder cannot be led elsewhere by whoever exchanges a folder for a link
meanwhile. Paths that undo records name were resolved when they were written down.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.errors import HealError
from mecefo_runtime.system.reason import Reason

# Not readable by others: what is kept of a user's files may be more open than its original.
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of the folder at `path`, a whole path.

    Raises:
        HealError: a part of the path is a link, or the path is not a whole one.
        OSError: it is not there, is no folder, or may not be read.
    """
    descriptor = _open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def parent_of(path: Path) -> Iterator[tuple[int, str]]:
    """(descriptor of the folder that `path` is in, its name there); raises as `opened` does."""
    name = single_name(path.name)
    with opened(path.parent) as folder:
        yield folder, name


def single_name(name: str) -> str:
    """`name`, which must be one entry of a folder.

    Raises:
        HealError: it is empty, a path, or one of `.` and `..`.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise HealError(Reason("not_a_file_name", name=name))
    return name


def status_in(folder: int, name: str) -> os.stat_result | None:
    """What `name` in the folder is, a link itself; None where it is not there."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open(path: Path) -> int:
    if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise HealError(Reason("not_a_whole_path", path=path))
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[1:]:
            inner = _enter(descriptor, part, path)
            os.close(descriptor)
            descriptor = inner
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _enter(folder: int, name: str, path: Path) -> int:
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            status = status_in(folder, name)
            if status is not None and stat.S_ISLNK(status.st_mode):
                raise HealError(Reason("link_in_path", path=path, name=name)) from error
        raise
