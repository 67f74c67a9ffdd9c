"""A small disk of the run's own, put over a folder and taken away again, so that to fill it fills nothing else.

It is a tmpfs at a place in the run's folder; what is written to the covered folder goes to the small disk. Either it is
bound over the folder with a copy of what was in it, or it is the upper layer of an overlay (overlayfs) over the folder:
then what was in the folder shows through, takes no room, and to truncate or remove it frees none. All mounts carry the
name that the record gives them, and are found by it. Linux; needs CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.errors import HealError
from chaos.host.own_folder import PRIVATE_FOLDER, opened, parent_of
from chaos.host.run_files import KEPT_FOLDER
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.checkpoint.folder import CheckpointFolder
from mecefo_runtime.checkpoint.manifest import CheckpointError
from mecefo_runtime.system.reason import Reason

# mount(2), umount2(2), capabilities(7)
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_MS_BIND = 4096
_MNT_DETACH = 2
_CAP_SYS_ADMIN = 21
_RETURNING = ".returning-"
# On a disk that is a layer: the folder for what is written, and the folder that overlayfs works in.
_UPPER = "upper"
_WORK = "work"
NAME_PREFIX = "chaos-disk-"


def may_mount() -> bool:
    """Whether this process has the right to mount."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _CAP_SYS_ADMIN & 1)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDisk(UndoRecord):
    """A disk called `name` of `num_bytes` bytes, at `place` and over `folder`, which are absolute paths.

    `is_layer`: it is the upper layer of an overlay over the folder, and what is written to it ends with it.
    """

    name: str
    folder: str
    place: str
    num_bytes: int
    is_layer: bool = False


def put_over(disk: SmallDisk, between: Callable[[], None] = lambda: None) -> None:
    """Make the disk and put it over the folder, with a copy of what is in there unless it is a layer.

    `between` is called when the disk is mounted at its place and not yet over the folder.

    Raises:
        OSError: it cannot be mounted, or what is in the folder does not fit.
    """
    folder, place = Path(disk.folder), Path(disk.place)
    # Through it nobody else may read: the folder's own parents may be closed to them.
    place.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    place.mkdir()
    status = folder.stat()
    options = f"size={disk.num_bytes},mode={status.st_mode & 0o7777:o},uid={status.st_uid},gid={status.st_gid}"
    _mount(disk.name, place, "tmpfs", _MS_NOSUID_NODEV_NOEXEC, options)
    if disk.is_layer:
        upper, work = place / _UPPER, place / _WORK
        for inner in (upper, work):
            inner.mkdir()
        # The folder as the job sees it has the owner and the mode of the upper layer.
        os.chown(upper, status.st_uid, status.st_gid)
        upper.chmod(status.st_mode & 0o7777)
        between()
        layers = ("lowerdir", folder), ("upperdir", upper), ("workdir", work)
        options = ",".join(f"{name}={_escaped(path)}" for name, path in layers)
        _mount(disk.name, folder, "overlay", _MS_NOSUID_NODEV_NOEXEC, options)
        return
    for entry in sorted(folder.iterdir()):
        # Without what is just being written: only its writer knows what belongs to it.
        if not entry.name.startswith("."):
            _copy(entry, place / entry.name)
    between()
    _mount(str(place), folder, "", _MS_BIND, "")


def uncover(disk: SmallDisk) -> None:
    """Unmount the disk from over the folder; it stays at its place. As often as one likes.

    Raises:
        OSError: it cannot be unmounted.
    """
    while (folder := Path(disk.folder)) in _mount_points(disk.name):
        _unmount(folder, disk.name)


def take_away(disk: SmallDisk) -> list[str]:
    """Unmount the disk; what was written to it and is whole goes to the folder. As often as one likes.

    Returns the names of what went there.

    Raises:
        OSError: it cannot be unmounted, or there is no room for what is on it.
    """
    uncover(disk)
    folder, place, mounted = Path(disk.folder), Path(disk.place), _mount_points(disk.name)
    returned: list[str] = []
    if place in mounted and disk.is_layer:
        _unmount(place, disk.name)
    elif place in mounted:
        with opened(folder) as target, opened(place) as source:
            # By their descriptors: nobody can exchange either of them for a link meanwhile.
            ours, theirs = (Path(f"/proc/self/fd/{one}") for one in (source, target))
            for entry in sorted(ours.iterdir()):
                if not entry.name.startswith(".") and _return(entry, theirs):
                    returned.append(entry.name)
        _unmount(place, disk.name)
    with suppress(FileNotFoundError), parent_of(place) as (outer, name):
        os.rmdir(name, dir_fd=outer)
    if place.parent.name == KEPT_FOLDER:
        # Only when it is empty: other faults may keep theirs there.
        with suppress(OSError), parent_of(place.parent) as (outer, name):
            os.rmdir(name, dir_fd=outer)
    return returned


def is_over(disk: SmallDisk) -> bool:
    """Whether the disk is mounted over the folder."""
    return Path(disk.folder) in _mount_points(disk.name)


def _return(entry: Path, folder: Path) -> bool:
    """Bring a checkpoint from the disk to the folder, unless the same one is there, or it is not whole."""
    place = folder / entry.name
    if entry.is_symlink() or place.is_symlink():
        return False
    try:
        ours = CheckpointFolder.open(entry)
        ours.verify()
    except CheckpointError:
        return False
    with suppress(CheckpointError):
        if CheckpointFolder.open(place).stamp == ours.stamp:
            return False
    arriving, replaced = folder / f"{_RETURNING}{entry.name}", folder / f"{_RETURNING}{entry.name}-replaced"
    for leftover in (arriving, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    # A link on the disk may lead to what is not the job's.
    shutil.copytree(entry, arriving, symlinks=True)
    if place.exists():
        place.rename(replaced)
    arriving.rename(place)
    shutil.rmtree(replaced, ignore_errors=True)
    return True


def _copy(entry: Path, target: Path) -> None:
    if not entry.is_dir() or entry.is_symlink():
        shutil.copy2(entry, target, follow_symlinks=False)
        return
    target.mkdir()
    for inner in sorted(entry.iterdir()):
        if not inner.name.startswith(".writing-"):
            # Of a checkpoint that the job removes meanwhile, nothing is missed.
            with suppress(FileNotFoundError):
                _copy(inner, target / inner.name)


def _mount_points(name: str) -> list[Path]:
    """Where the disk called `name` is mounted in this mount namespace (proc(5), mountinfo)."""
    return [point for point, _ in _mounts(name)]


def _mounts(name: str) -> list[tuple[Path, int]]:
    """(where, number of the mount) of each mount of the disk."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields = line.split(" ")
        kind, source = fields[fields.index("-") + 1 : fields.index("-") + 3]
        if name and source == name and kind in ("tmpfs", "overlay"):
            # Spaces and the like are octal escapes.
            point = os.fsdecode(fields[4].encode().decode("unicode_escape").encode("latin-1"))
            found.append((Path(point), int(fields[0])))
    return found


def _escaped(path: Path) -> str:
    """A path in the options of an overlay, which are separated by commas and its layers by colons."""
    return re.sub(r"([\\,:])", r"\\\1", str(path))


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    arguments = (source.encode(), os.fsencode(target), kind.encode(), flags, options.encode())
    _call("mount", target, *arguments)


def _unmount(target: Path, name: str) -> None:
    with opened(target) as descriptor:
        # What was opened, be it another one by now, must be the disk called `name`.
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="utf-8").splitlines()
        number = next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))
        if number not in {number for _, number in _mounts(name)}:
            raise HealError(Reason("other_disk_mounted", path=target, name=name))
        # Detached: a file that the job still has open there must not keep us from it.
        _call("umount2", target, f"/proc/self/fd/{descriptor}".encode(), _MNT_DETACH)


def _call(function: str, target: Path, *arguments: bytes | int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))
