"""A limit on one process's memory: by control group, if one can be made for it, else by resource limit.

At the limit of a memory control group the out-of-memory killer ends the process; at that of a resource limit its
allocations fail.

Control groups: Linux kernel, admin-guide/cgroup-v1/memory.rst and admin-guide/cgroup-v2.rst. A process that is moved
into a group takes what it has used with its old group: the limit counts what it allocates from then on.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chaos.errors import EnvironmentFailure, HealError
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.system.json_values import LEFT_OUT
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_GROUP_PREFIX = "chaos-leak-"
# A group that its last process has just left can be busy for a moment.
REMOVED_WITHIN_SECONDS = 2.0
GROUP_POLL_SECONDS = 0.02
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# No machine has so much: version 1 writes "no limit" as the largest number of pages.
_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit(UndoRecord):
    """A limit `limit_bytes` above what the process uses: by a new `group` (it comes from `home`), or by rlimit.

    `soft` and `hard` are its limits in bytes before.
    """

    pid: int
    start_ticks: int
    limit_bytes: int
    by: Literal["cgroup", "rlimit"]
    group: str | None = field(default=None, metadata=LEFT_OUT)
    home: str | None = field(default=None, metadata=LEFT_OUT)
    soft: int | None = field(default=None, metadata=LEFT_OUT)
    hard: int | None = field(default=None, metadata=LEFT_OUT)

    @property
    def process(self) -> ProcessId:
        """The process that it limits."""
        return ProcessId(self.pid, self.start_ticks)

    @property
    def group_path(self) -> Path:
        """The group, where there is one."""
        if self.group is None:
            raise HealError(Reason("limit_without_group", by=self.by))
        return Path(self.group)

    @property
    def limits_before(self) -> tuple[int, int]:
        """The resource limit before, soft and hard."""
        if self.soft is None or self.hard is None:
            raise HealError(Reason("limit_before_unknown", by=self.by))
        return self.soft, self.hard


def plan(process: ProcessId, limit_bytes: int, *, may_group: bool) -> MemoryLimit:
    """A limit `limit_bytes` above what the process uses now; nothing is changed.

    By control group where one can be made for it, if it `may_group`; else by RLIMIT_DATA.
    """
    pid, ticks = process.local_pid, process.start_ticks
    home = _home(process) if may_group else None
    if home is not None:
        group = str(_parent_of_new(home) / _group_name(pid, ticks))
        return MemoryLimit(
            pid=pid, start_ticks=ticks, limit_bytes=limit_bytes, by="cgroup", group=group, home=str(home)
        )
    soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    return MemoryLimit(pid=pid, start_ticks=ticks, limit_bytes=limit_bytes, by="rlimit", soft=soft, hard=hard)


def impose(limit: MemoryLimit) -> None:
    """Apply the planned limit.

    Raises:
        EnvironmentFailure: the machine refuses.
    """
    pid = limit.process.local_pid
    try:
        if limit.by == "rlimit":
            soft_bytes = _data_bytes(pid) + limit.limit_bytes
            _, hard = limit.limits_before
            allowed = soft_bytes if hard == resource.RLIM_INFINITY else min(soft_bytes, hard)
            resource.prlimit(pid, resource.RLIMIT_DATA, (allowed, hard))
            return
        group = limit.group_path
        group.mkdir()
        if (group / "memory.max").exists():
            (group / "memory.max").write_text(str(limit.limit_bytes), encoding="utf-8")
            with suppress(FileNotFoundError):
                (group / "memory.swap.max").write_text("0", encoding="utf-8")
        else:
            (group / "memory.limit_in_bytes").write_text(str(limit.limit_bytes), encoding="utf-8")
            (group / "memory.swappiness").write_text("0", encoding="utf-8")
        (group / "cgroup.procs").write_text(str(pid), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(f"cannot limit the memory of pid {pid} by {limit.by}: {error.strerror}") from error


def peak_bytes(limit: MemoryLimit) -> int | None:
    """The most that the group has held; None where no group says so."""
    if limit.by != "cgroup":
        return None
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        with suppress(OSError):
            return int((limit.group_path / name).read_text(encoding="utf-8"))
    return None


def num_oom_kills(limit: MemoryLimit) -> int | None:
    """How many processes of the group the out-of-memory killer has ended; None where no group says so."""
    return oom_kills_in(limit.group_path) if limit.by == "cgroup" else None


def oom_kills_in(group: Path) -> int | None:
    """How many processes of this very group the out-of-memory killer has ended; None where it does not say."""
    for name in ("memory.events.local", "memory.events", "memory.oom_control"):
        with suppress(OSError, StopIteration):
            lines = (group / name).read_text(encoding="utf-8").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return None


def lift(limit: MemoryLimit) -> None:
    """Take the limit away, however often it is called.

    Raises:
        HealError: it is still there.
    """
    if limit.by == "rlimit":
        if limit.process.is_running():
            with suppress(ProcessLookupError):
                resource.prlimit(limit.process.local_pid, resource.RLIMIT_DATA, limit.limits_before)
        return
    _check_group(limit)
    group, deadline = limit.group_path, time.monotonic() + REMOVED_WITHIN_SECONDS
    while group.exists():
        try:
            for pid in (group / "cgroup.procs").read_text(encoding="utf-8").split():
                (Path(limit.home or _CGROUP_ROOT) / "cgroup.procs").write_text(pid, encoding="utf-8")
            group.rmdir()
        except OSError as error:
            if group.exists() and time.monotonic() > deadline:
                raise HealError(Reason("group_not_removed", group=group, error=error.strerror)) from error
            time.sleep(GROUP_POLL_SECONDS)


def _group_name(pid: int, start_ticks: int) -> str:
    return f"{_GROUP_PREFIX}{pid}-{start_ticks}"


def _check_group(limit: MemoryLimit) -> None:
    """See that the record's group is one that `plan` makes, and its `home` the one from which that was made.

    Raises:
        HealError: it is not.
    """
    group, home = limit.group_path, Path(limit.home or "")
    is_planned = (
        group.name.startswith(f"{_GROUP_PREFIX}{limit.pid}-")
        and all(one.is_relative_to(_CGROUP_ROOT) and ".." not in one.parts for one in (group, home))
        and group.parent in (home, home.parent)
        and os.path.realpath(group.parent) == str(group.parent)
    )
    if not is_planned:
        raise HealError(Reason("not_our_group", group=group))


def room_bytes(process: ProcessId) -> dict[str, int]:
    """What each group with a limit that the process is in still has room for, what can be dropped not counted.

    By the group's folder: its own, and those around it. A group that does not say is left out.
    """
    home = group_of(process)
    found: dict[str, int] = {}
    for group in () if home is None else (home, *home.parents):
        if not group.is_relative_to(_CGROUP_ROOT):
            break
        with suppress(OSError, ValueError):
            if (group / "memory.max").exists():
                limit, used, prefix = group / "memory.max", group / "memory.current", ""
            else:
                limit, used, prefix = group / "memory.limit_in_bytes", group / "memory.usage_in_bytes", "total_"
            limit_bytes = int(limit.read_text(encoding="utf-8"))
            if limit_bytes >= _NO_LIMIT_BYTES:
                continue
            stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
            # Of files: the kernel takes it back before it ends anybody.
            cached_bytes = sum(int(stat.get(f"{prefix}{which}_file", 0)) for which in ("active", "inactive"))
            found[str(group)] = limit_bytes - (int(used.read_text(encoding="utf-8")) - cached_bytes)
    return found


def _home(process: ProcessId) -> Path | None:
    """The memory group that the process is in, where we may make another for it; None where not."""
    home = group_of(process)
    return home if home is not None and _may_make(_parent_of_new(home)) else None


def group_of(process: ProcessId) -> Path | None:
    """The memory group that the process is in; None where there are none."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.local_pid}/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                return _CGROUP_ROOT / "memory" / path.lstrip("/")
            if not controllers and (_CGROUP_ROOT / "cgroup.controllers").exists():
                return _CGROUP_ROOT / path.lstrip("/")
    return None


def _parent_of_new(home: Path) -> Path:
    """Where a group beside or below `home` can hold processes: below in version 1, beside it in version 2."""
    return home if (home / "memory.limit_in_bytes").exists() or home == _CGROUP_ROOT else home.parent


def _may_make(parent: Path) -> bool:
    is_first_version = (parent / "memory.limit_in_bytes").exists()
    with suppress(OSError):
        hands_down = (
            is_first_version or "memory" in (parent / "cgroup.subtree_control").read_text(encoding="utf-8").split()
        )
        return hands_down and os.access(parent, os.W_OK) and os.access(parent / "cgroup.procs", os.W_OK)
    return False


def _data_bytes(pid: int) -> int:
    """What RLIMIT_DATA counts: private writable mappings (proc(5), VmData)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"pid {pid} is gone")


def usable_bytes() -> int:
    """What there is in all: the machine's memory, or as much of it as this container may use."""
    limits = [_memory_line("MemTotal"), container_limit_bytes()]
    return min(limit for limit in limits if limit is not None)


def container_limit_bytes() -> int | None:
    """The limit on the control group that this container is; None: there is none."""
    limits = [int(text) for path in _CONTAINER_LIMITS if (text := _text(path)).isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT_BYTES), default=None)


def available_bytes() -> int:
    """The memory that the machine can provide without swapping."""
    return _memory_line("MemAvailable")


def _memory_line(name: str) -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise EnvironmentFailure(f"/proc/meminfo does not say {name}: is /proc mounted?")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
