"""What a process gets from whoever starts it: limits (getrlimit(2)) and what happens when its children end.

Our own processes need more of it than others; a user's command gets it back as it was.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

# As soon as one more is needed than is allowed, twice as many are: what a run needs is an estimate.
_SPARE_RATIO = 2
# capabilities(7): with either of them a user may have any number of processes.
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


class _Before:
    """What was changed for our processes, as it was."""

    open_files: int | None = None
    ignored_children: bool = False


def hear_of_children() -> None:
    """Have the kernel keep the exit codes of children; where SIGCHLD is ignored it forgets them, here and below."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        _Before.ignored_children = True
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def children_were_ignored() -> bool:
    """Whether whoever started this process had SIGCHLD ignored."""
    return _Before.ignored_children


def open_file_limits() -> tuple[int, int]:
    """How many file descriptors the user lets a process have: (soft, hard); either may be RLIM_INFINITY, -1."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if _Before.open_files is None else _Before.open_files, hard


def allow_open_files(wanted: int) -> int | None:
    """Let this process and those that it starts have `wanted` file descriptors; where they may not, returns how many.

    Only the soft limit is raised, within what the user has allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_within(wanted, soft):
        return None
    if not _is_within(wanted, hard):
        return hard
    if _Before.open_files is None:
        _Before.open_files = soft
    roomy = wanted * _SPARE_RATIO
    resource.setrlimit(resource.RLIMIT_NOFILE, (roomy if _is_within(roomy, hard) else hard, hard))
    return None


def give_back_open_files(soft: int) -> None:
    """In a process that is about to become a user's command: the soft limit is `soft` again."""
    # Of a limit that is below what is open already, nothing is said here.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def processes_refused(wanted: int) -> tuple[int, int] | None:
    """Where this user may not start `wanted` more processes and threads: (how many it may, its limit); else None."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or _has_no_process_limit():
        return None
    num_tasks = _num_tasks()
    if num_tasks + wanted <= soft:
        return None
    return max(0, soft - num_tasks), soft


def why(error: OSError, elsewhere: str = "") -> str:
    """What the system said, and what to do; of a limit of this process, which one it is.

    `elsewhere` is what helps besides, wherever it is no limit.
    """
    said = error.strerror or str(error)
    match error.errno:
        case errno.EFBIG:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            size = "" if limit == resource.RLIM_INFINITY else f" of {limit} bytes"
            return f"{said}: it has reached the limit{size} for one file; type `ulimit -f unlimited` before"
        case errno.EMFILE:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"{said}: this process may have {soft}, and up to {hard} after `ulimit -n {hard}`"
        case errno.EAGAIN:
            limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
            if limit != resource.RLIM_INFINITY:
                return f"{said}: no more processes; this user may have {limit}, with threads: `ulimit -u` raises that"
            return f"{said}: no more processes; a control group or the kernel limits them (pids.max, threads-max)"
        case errno.ENOSPC | errno.EDQUOT:
            return f"{said}: free some space{f', or {elsewhere}' if elsewhere else ''}"
    return f"{said}: {elsewhere}" if elsewhere else said


def is_limit(error: BaseException) -> bool:
    """Whether an error says that a limit of this process or of its user was reached."""
    if isinstance(error, OSError):
        return error.errno in (errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def why_limit(error: BaseException) -> str:
    """`why`, of an error that `is_limit`."""
    return why(error if isinstance(error, OSError) else BlockingIOError(errno.EAGAIN, "no thread can be started"))


def _is_within(number: int, limit: int) -> bool:
    return limit == resource.RLIM_INFINITY or number <= limit


def _has_no_process_limit() -> bool:
    """Of root, and with these capabilities, the kernel does not count (kernel/fork.c, copy_process)."""
    if os.getuid() == 0:
        return True
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
        held = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
        return bool(held & (1 << _CAP_SYS_ADMIN | 1 << _CAP_SYS_RESOURCE))
    return False


def _num_tasks() -> int:
    """Processes and threads of this user, as far as they can be seen from here."""
    num = 0
    for entry in os.scandir("/proc"):
        # It may be gone at any moment.
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                num += Path(entry.path, "task").stat().st_nlink - 2
    return num
