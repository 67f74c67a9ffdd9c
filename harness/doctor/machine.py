"""What every run needs of the machine that `chaos` runs on."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.host import memory_limit
from chaos.host.inherited import open_file_limits
from chaos.host.process_table import why_no_process_table
from chaos.undo.run_registry import registered, writable_folder
from harness.doctor.finding import EVERY_BACKEND, Check, Finding
from harness.doctor.ground import needs_of
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.process import ProcessId

OLDEST_PYTHON = (3, 11)
# The default job and its baseline, 8 ranks each one after the other, take 0.6 GB (measured); other models take more.
MIN_MEMORY_BYTES = 1 << 30
MIN_DISK_BYTES = 1 << 30
# What NCCL and loaders of data easily take; a container is given 64 MiB unless told otherwise.
MIN_SHARED_BYTES = 256 << 20
SHARED_FOLDER = Path("/dev/shm")

SYSTEM = Check("Linux", "faults use Linux system calls", EVERY_BACKEND)
PYTHON = Check("Python", "runs chaos and the training job", EVERY_BACKEND)
CORES = Check("cores", "shared by the ranks of a local job", EVERY_BACKEND)
MEMORY = Check("memory", "the default job takes 0.6 GB", EVERY_BACKEND)
SHARED = Check("shared memory", "NCCL, and scripts that load data in processes of their own")
PROCESSES = Check("process table", "targets are found in /proc and identified by pidfd", EVERY_BACKEND)
OPEN_FILES = Check("open files", "the connections of ranks to each other and to chaos", EVERY_BACKEND)
TEMPORARY = Check("temporary files", "sockets of runs, and what torch compiles", EVERY_BACKEND)
STATE = Check("state folder", "undo records of runs", EVERY_BACKEND)
RUNS = Check("runs folder", "event logs and reports of runs", EVERY_BACKEND)
EARLIER = Check("earlier runs", "leftovers of interrupted runs can disturb the next one")


def system() -> Finding:
    """Linux, and which."""
    if sys.platform != "linux":
        return SYSTEM.wrong(
            f"this is {platform.system()}", "run it on Linux, or in the image (docs/how-to/containers.md)"
        )
    return SYSTEM.ok(f"{platform.release()}, {platform.machine()}")


def python() -> Finding:
    """The Python that runs this."""
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return PYTHON.wrong(version, f"install chaos into an environment of Python {wanted} or newer")
    return PYTHON.ok(f"{version} ({sys.executable})")


def cores() -> Finding:
    """Those that this process may use."""
    num_usable, num_all = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    some = f"{num_usable} of {num_all}" if num_usable < num_all else str(num_usable)
    if num_usable < 2:
        return CORES.ok(f"{some}: enough to run, too few for meaningful throughput figures; see --dilation")
    return CORES.ok(some)


def memory() -> Finding:
    """What can still be used, by what the kernel says and by the limit on this container."""
    free_bytes = memory_limit.available_bytes()
    limit_bytes = memory_limit.container_limit_bytes()
    usable_bytes = free_bytes if limit_bytes is None else min(free_bytes, limit_bytes)
    found = f"{_gigabytes(usable_bytes)} available"
    if usable_bytes < MIN_MEMORY_BYTES:
        return MEMORY.wrong(found, "stop other programs, or give this container more memory")
    return MEMORY.ok(found)


def shared_memory() -> Finding:
    """The size of /dev/shm."""
    if not SHARED_FOLDER.is_dir() or not os.access(SHARED_FOLDER, os.W_OK):
        return SHARED.missing(
            f"{SHARED_FOLDER} is not there or cannot be written to", f"mount a tmpfs at {SHARED_FOLDER}"
        )
    size_bytes = shutil.disk_usage(SHARED_FOLDER).total
    found = f"{_gigabytes(size_bytes)} at {SHARED_FOLDER}"
    if size_bytes < MIN_SHARED_BYTES:
        return SHARED.wrong(found, "start this container with --shm-size 1g (or --ipc host)")
    return SHARED.ok(found)


def process_table() -> Finding:
    """Whether processes, our own and our parent, can be found and held."""
    if (lack := why_no_process_table()) is not None:
        return PROCESSES.missing(*lack)
    try:
        ours = ProcessId.of(os.getpid())
        os.close(os.pidfd_open(ours.local_pid))
        Path(f"/proc/{ours.local_pid}/environ").read_bytes()
    except OSError as error:
        return PROCESSES.wrong(
            f"a process cannot be held by pidfd: {error.strerror}",
            "needs Linux 5.3 or newer; in a container, a seccomp profile that allows pidfd_open",
        )
    return PROCESSES.ok("/proc and pidfd")


def open_files() -> Finding:
    """Whether the default job's processes may have as many file descriptors as they need."""
    wanted = needs_of(JobConfig(), has_baseline=True, has_networks=False).open_files
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in open_file_limits())
    if hard < wanted:
        return OPEN_FILES.wrong(
            f"a process may have {hard:g}, and the default job needs up to {wanted}",
            f"ulimit -n {wanted}; where that is refused, the hard limit must be raised (limits.conf(5), or the "
            "container's --ulimit nofile). Jobs of fewer ranks need less",
        )
    raised = f", raised to {min(hard, 2 * wanted):g} for a run" if soft < wanted else ""
    return OPEN_FILES.ok(f"{soft:g} for each process{raised}")


def temporary_files() -> Finding:
    """Where temporary files go."""
    try:
        return TEMPORARY.ok(tempfile.gettempdir())
    except FileNotFoundError:
        return TEMPORARY.missing(
            "there is no folder for temporary files that can be written to",
            "name one with TMPDIR=FOLDER, or start this container with --tmpfs /tmp",
        )


def state_folder() -> Finding:
    """Where open runs are registered."""
    try:
        return STATE.ok(str(writable_folder()))
    except EnvironmentFailure as error:
        return STATE.wrong(str(error), "name a folder that you can write to: CHAOS_STATE=FOLDER")


def runs_folder(out: Path) -> Finding:
    """Whether `out`, or where it would be made, can be written to, and has room."""
    place = out.absolute()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return RUNS.wrong(f"{existing} cannot be written to", "name another folder with --out")
    free_bytes = shutil.disk_usage(existing).free
    found = f"{place}, {_gigabytes(free_bytes)} free"
    if free_bytes < MIN_DISK_BYTES:
        return RUNS.wrong(found, "make room, or name another folder with --out")
    return RUNS.ok(found)


def earlier_runs() -> Finding:
    """Runs of this user that were cut off, and are not healed."""
    entries = registered()
    unreadable = [entry.path for entry in entries if entry.run is None]
    runs = [entry.run for entry in entries if entry.run is not None]
    dead = [run.folder for run in runs if not run.is_elsewhere() and not run.is_owned()]
    if unreadable:
        return EARLIER.wrong(f"{unreadable[0]} cannot be read", "look at it, and remove it")
    if dead:
        return EARLIER.wrong(f"cut off: {', '.join(map(str, dead))}", "chaos heal")
    num_under_way = sum(not run.is_elsewhere() for run in runs)
    return EARLIER.ok(f"{num_under_way} under way" if num_under_way else "nothing left behind")


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
