"""Where a cluster has its files: a folder that every user can enter, and that is gone when its process is."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "chaos-cluster-"
# One that is being made has no lock yet.
_MIN_STALE_SECONDS = 60.0


def closed_on_the_way(path: Path) -> list[Path]:
    """The folders at and above `path` that a user without rights cannot enter, the topmost first."""
    folders = [path, *path.parents] if path.is_dir() else [*path.parents]
    return [one for one in reversed(folders) if not one.stat().st_mode & 0o001]


@contextmanager
def cluster_folder() -> Iterator[Path]:
    """A new folder with mode 0755 all the way up, removed at the end; those of killed processes are removed first.

    pytest's `tmp_path` is none: only its own user may enter it, and the users of the hosts are others.

    Raises:
        FileNotFoundError: there is no place for it.
    """
    base = _open_base()
    remove_stale(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base)).resolve()
    folder.chmod(0o755)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    # The kernel releases it when this process ends, however that comes; its children do not inherit the descriptor.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_stale(base: Path) -> None:
    """Remove the folders in `base` whose process was killed. The hosts in them died with it."""
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _MIN_STALE_SECONDS and not _is_locked(folder):
                for name in (one.name.removeprefix("slurmd-of-") for one in folder.rglob("slurmd-of-*")):
                    remove_control_groups([name])
                shutil.rmtree(folder, ignore_errors=True)


def remove_control_groups(names: Iterable[str]) -> None:
    """Remove what Slurm's `proctrack/cgroup` made for hosts of these names: no slurmd removes it when it is killed."""
    for name in names:
        path = FREEZER / f"slurm_{name}"
        # Bottom up: a control group with others inside cannot be removed, and its files are none of the kernel's.
        for inner in sorted((one for one in path.rglob("*") if one.is_dir()), reverse=True):
            with suppress(OSError):
                inner.rmdir()
        with suppress(OSError):
            path.rmdir()


FREEZER = Path("/sys/fs/cgroup/freezer")


def _open_base() -> Path:
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    for place in places:
        if place.is_dir() and not closed_on_the_way(place.resolve()):
            return place.resolve()
    raise FileNotFoundError(f"every user can enter none of {', '.join(map(str, places))}")


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
