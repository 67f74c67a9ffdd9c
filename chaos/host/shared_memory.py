"""The shared memory of a process: the mount on /dev/shm in its mount namespace, and a file that takes space there.

Each mount has its device number. Its folder is opened below the root of the process, and all changes use this
descriptor, so that no link can redirect them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.errors import HealError
from chaos.host.own_folder import single_name, status_in
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

FOLDER = "/dev/shm"
NAME_PREFIX = ".chaos-shm-"
_TMPFS_MAGIC = 0x01021994
_CHUNK_BYTES = 1 << 24
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFile(UndoRecord):
    """Our file in the shared memory whose device number is `device`."""

    device: int
    name: str

    def changed_paths(self) -> tuple[str, ...] | None:
        """None that has a path here: its name is drawn, and its mount known by number."""
        return ()


@dataclass(frozen=True, slots=True)
class Room:
    """Size and free space of a mount."""

    device: int
    total_bytes: int
    free_bytes: int


@contextmanager
def opened(process: ProcessId) -> Iterator[int]:
    """A descriptor of /dev/shm as the process has it.

    Raises:
        OSError: the process is gone or may not be read, or it has no such folder.
    """
    with _folder_below(f"/proc/{process.local_pid}/root") as folder:
        if not process.is_running():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(process.pid))
        yield folder


@contextmanager
def _folder_below(root: str) -> Iterator[int]:
    """A link on the way is refused: it would be followed from our own root."""
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(root, os.O_PATH | flags)
    try:
        for part in Path(FOLDER).parts[1:]:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def room_of(folder: int) -> Room:
    """How much room there is in it."""
    status = os.fstatvfs(folder)
    return Room(os.fstat(folder).st_dev, status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail)


def is_in_memory(folder: int) -> bool:
    """Whether it is a tmpfs: else filling it would fill a disk."""
    # struct statfs begins with the type, a long (statfs(2)); the rest is shorter than this on all machines.
    buffer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).fstatfs(folder, buffer) != 0:
        return False
    return ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long)).contents.value == _TMPFS_MAGIC


def own_device() -> int | None:
    """The device number of /dev/shm where we run; None where there is none."""
    with suppress(OSError), _folder_below("/") as folder:
        return os.fstat(folder).st_dev
    return None


def create(folder: int, name: str) -> None:
    """Create our file, empty.

    Raises:
        OSError: it cannot be created, or is there.
    """
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder))


def grow(folder: int, name: str, *, limit_bytes: int, leave_bytes: int) -> int:
    """Let our file take all room but `leave_bytes`, and never more than `limit_bytes`; returns what it takes.

    Raises:
        OSError: it is gone, or cannot grow, and not for lack of space.
    """
    file = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        taken_bytes, chunk_bytes = os.fstat(file).st_size, _CHUNK_BYTES
        while chunk_bytes >= _PAGE_BYTES:
            more_bytes = min(chunk_bytes, limit_bytes - taken_bytes, room_of(folder).free_bytes - leave_bytes)
            more_bytes -= more_bytes % _PAGE_BYTES
            if more_bytes <= 0:
                break
            try:
                os.posix_fallocate(file, taken_bytes, more_bytes)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # Other processes took some of the space.
                chunk_bytes //= 2
            else:
                taken_bytes += more_bytes
        return os.fstat(file).st_blocks * _BLOCK_BYTES
    finally:
        os.close(file)


def refusal(folder: int, name: str) -> int | None:
    """The errno with which a write of one byte to a new file fails; None: it succeeds."""
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    except OSError as error:
        return error.errno
    try:
        os.write(file, b"x")
    except OSError as error:
        return error.errno
    finally:
        os.close(file)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
    return None


def remove(file: RoomFile, processes: tuple[ProcessId, ...]) -> str:
    """Remove our file, as often as one likes: `removed`, `absent`, or `gone` with its mount.

    It is looked for where `processes` are, where we are, and where any other process is: the ranks may have ended.

    Raises:
        HealError: the name is not ours, or belongs to something else than a file, or the /dev/shm of one of `processes`
            cannot be read.
    """
    if not single_name(file.name).startswith(NAME_PREFIX):
        raise HealError(Reason("not_our_shm_file", name=file.name))
    running = [process for process in processes if process.is_running()]
    for process in running:
        try:
            with opened(process) as folder:
                if os.fstat(folder).st_dev == file.device:
                    return _remove_in(folder, file)
        except ProcessLookupError:
            continue
        except OSError as error:
            if process.is_running():
                raise HealError(
                    Reason("shm_file_left", name=file.name, pid=process.pid, error=error.strerror)
                ) from error
    others = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    for root in ("/", *(f"/proc/{pid}/root" for pid in others)):
        # Of processes that are gone, or of users whose mounts are not ours to see.
        with suppress(OSError), _folder_below(root) as folder:
            if os.fstat(folder).st_dev == file.device:
                return _remove_in(folder, file)
    return "gone"


def _remove_in(folder: int, file: RoomFile) -> str:
    status = status_in(folder, file.name)
    if status is None:
        return "absent"
    if not stat.S_ISREG(status.st_mode):
        raise HealError(Reason("not_a_regular_file", path=f"{FOLDER}/{file.name}"))
    os.unlink(file.name, dir_fd=folder)
    return "removed"
