"""What the process table tells of a process from outside: its threads, its CPU time, its memory, its signals. Linux."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from chaos.errors import EnvironmentFailure
from mecefo_runtime.system.process import ProcessId

_UNMOUNTED = ("{} is not mounted, so no process can be found", "type `mount -t proc proc /proc`")
# Not to be mounted in it: without a mount namespace of its own, that would hide everybody else's.
_FOREIGN = (
    "{} shows the processes of another PID namespace, so those of this one cannot be found",
    "start this namespace with `unshare --fork --pid --mount-proc`",
)
# How soon a change in the table is to be seen by who waits for it.
TABLE_POLL_SECONDS = 0.005
STOPPED = "T"
# clock_getcpuclockid(3): the kernel's number for the CPU clock of a whole process (CPUCLOCK_SCHED).
_CPU_CLOCK = 2
_MAX_ANCESTORS = 64


def why_no_process_table(proc: Path = Path("/proc")) -> tuple[str, str] | None:
    """Why processes cannot be found in `proc` by the numbers that they have here, and what to do; None: they can.

    A namespace of processes needs a /proc of its own: in that of another one our numbers are those of other processes.
    """
    try:
        lines = (proc / "self" / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        pid = int(str((proc / "self").readlink()))
        # What this process is called in every namespace from that of `proc` to its own (proc(5)); older than Linux 4.1:
        # none.
        names = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [str(pid)])
    except (OSError, ValueError):
        names = []
    if names == [str(os.getpid())]:
        return None
    reason, remedy = _FOREIGN if (proc / "uptime").exists() else _UNMOUNTED
    return reason.format(proc), remedy


def require_process_table() -> None:
    """Of whatever finds, holds or ends processes, the first thing.

    Raises:
        EnvironmentFailure: they cannot be found.
    """
    if (lack := why_no_process_table()) is not None:
        raise EnvironmentFailure(": ".join(lack))


def thread_states(process: ProcessId) -> dict[int, str]:
    """Thread id -> state (`R`, `S`, `T`...) of every thread; empty when the process is gone."""
    states: dict[int, str] = {}
    # A thread or the whole process may end while they are read.
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process.local_pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                states[int(task.name)] = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return states if process.is_running() else {}


def parent_of(process: ProcessId) -> ProcessId | None:
    """The process that started it, or has adopted it since; None when either is gone. A zombie still has a parent.

    The parent's pid is read before and after the parent is identified. If both are the same, that pid was not recycled
    in between.
    """
    before = _parent_pid(process)
    if not before:
        return None
    try:
        parent = ProcessId.of(before)
    except ProcessLookupError:
        return None
    return parent if _parent_pid(process) == before else None


def ancestors_of(process: ProcessId) -> Iterator[ProcessId]:
    """The processes above it, from its parent on, at most 64."""
    parent = parent_of(process)
    for _ in range(_MAX_ANCESTORS):
        if parent is None:
            return
        yield parent
        parent = parent_of(parent)


def _parent_pid(process: ProcessId) -> int | None:
    try:
        text = Path(f"/proc/{process.local_pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the state and the parent's pid follow the name, which is in parentheses.
    number = int(text.rpartition(")")[2].split()[1])
    return None if process.state() == "gone" else number


def effective_uid(process: ProcessId) -> int | None:
    """The user with whose rights it acts; None when it is gone."""
    uid = None
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{process.local_pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        # Real, effective, saved and of the file system.
        uid = next((int(line.split()[2]) for line in lines if line.startswith("Uid:")), None)
    return uid if process.is_running() else None


def is_stopped(process: ProcessId) -> bool:
    """Whether every thread of it is stopped by a signal."""
    states = thread_states(process)
    return bool(states) and set(states.values()) == {STOPPED}


def thread_names(process: ProcessId) -> dict[int, str]:
    """Thread id -> name (15 bytes) of every thread; empty when the process is gone."""
    names: dict[int, str] = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process.local_pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                names[int(task.name)] = (task / "comm").read_text(encoding="utf-8").rstrip("\n")
    return names if process.is_running() else {}


def cpu_seconds(process: ProcessId) -> float | None:
    """CPU time of all its threads so far, those that have ended too; None when it is gone."""
    try:
        seconds = time.clock_gettime((~process.local_pid << 3) | _CPU_CLOCK)
    except OSError:
        return None
    return seconds if process.is_running() else None


def resident_bytes(process: ProcessId) -> int | None:
    """Its resident memory; None when it is gone."""
    try:
        pages = int(Path(f"/proc/{process.local_pid}/statm").read_text(encoding="utf-8").split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") if process.is_running() else None


def signal_masks(process: ProcessId) -> dict[str, int]:
    """What it does with signals, bit N - 1 for signal N, by the names of proc(5); empty when it is gone.

    `SigIgn`: ignored, `SigBlk`: blocked, `SigCgt`: it has a handler for it, `SigPnd` and `ShdPnd`: not taken yet.
    """
    masks: dict[str, int] = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in (
            Path(f"/proc/{process.local_pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            name, _, text = line.partition(":")
            if name in ("SigIgn", "SigCgt", "SigBlk", "SigPnd", "ShdPnd"):
                masks[name] = int(text, 16)
    return masks if process.is_running() else {}


def disposition(process: ProcessId, number: signal.Signals) -> str:
    """What it does with a signal: `ignores`, `blocks`, `has a handler of its own for`, or `does not act on`."""
    masks = signal_masks(process)
    bit = 1 << (number - 1)
    words = {"SigIgn": "ignores", "SigBlk": "blocks", "SigCgt": "has a handler of its own for"}
    return next((word for name, word in words.items() if masks.get(name, 0) & bit), "does not act on")


async def exited(processes: Iterable[ProcessId], timeout_seconds: float) -> tuple[ProcessId, ...]:
    """Wait until all of them are gone, without polling; returns those that still run when the time is up."""
    wanted = tuple(processes)
    waits = [asyncio.create_task(_exited(process)) for process in wanted]
    try:
        if waits:
            await asyncio.wait(waits, timeout=timeout_seconds)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return tuple(process for process in wanted if process.is_running())


async def _exited(process: ProcessId) -> None:
    try:
        descriptor = os.pidfd_open(process.local_pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    try:
        if not process.is_running():
            return
        loop.add_reader(descriptor, is_over.set)
        await is_over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
