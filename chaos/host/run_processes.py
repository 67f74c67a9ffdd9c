"""The processes of a run, known by its name in the environment that they were started with."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mecefo_runtime.system.process import ProcessId, read_environment

RUN_VARIABLE = "CHAOS_RUN"
# Of what serves a fault and is none of the job's processes.
HELPER_VARIABLE = "CHAOS_HELPER_OF"
# The run whose record is being undone.
_UNDONE_RUN: ContextVar[str | None] = ContextVar("undone_run", default=None)
_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")
END_TIMEOUT_SECONDS = 5.0
_END_POLL_SECONDS = 0.02
_STOPPED_STATES = "Tt"


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A running process of a run; `state` is the process table's word for it."""

    process: ProcessId
    state: str
    command: str

    def __str__(self) -> str:
        stopped = ", stopped" if self.state in _STOPPED_STATES else ""
        return f"pid {self.process.pid}{stopped}: {self.command}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "pid": self.process.pid,
            "start_ticks": self.process.start_ticks,
            "state": self.state,
            "command": self.command,
        }


def is_name(run: str) -> bool:
    """Whether a run can be called so: an empty name would be that of everybody who sets the variable to nothing."""
    return _NAME.fullmatch(run) is not None


@contextmanager
def undoing(run: str) -> Iterator[None]:
    """While a record of `run` is undone: what `bears_mark` asks for."""
    token = _UNDONE_RUN.set(run)
    try:
        yield
    finally:
        _UNDONE_RUN.reset(token)


def undone_run() -> str | None:
    """The run whose record is being undone; None or empty where it is not known."""
    return _UNDONE_RUN.get()


def bears_mark(process: ProcessId) -> bool:
    """Whether it bears the mark of the run whose record is being undone, and may be this user's; else it is not killed.

    Where no run is known, the mark is that of this process, which may be none.
    """
    run = _UNDONE_RUN.get() or os.environ.get(RUN_VARIABLE, "")
    try:
        if not _may_be_ours(Path(f"/proc/{process.local_pid}").stat()):
            return False
        variables = read_environment(process.local_pid).split(b"\0")
    except OSError:
        return False
    marks = [f"{name}={run}".encode() for name in (RUN_VARIABLE, HELPER_VARIABLE)]
    if run:
        is_marked = any(mark in variables for mark in marks)
    else:
        is_marked = not any(one.startswith(f"{RUN_VARIABLE}=".encode()) for one in variables)
    # After the environment was read: else it may have been another's.
    return is_marked and process.is_running()


def processes_of(run: str) -> tuple[RunProcess, ...]:
    """Every running process that was started with `run` in its environment, but this one, and is of this user.

    For root, of any user: only root can start processes of another user.
    """
    if not is_name(run):
        return ()
    wanted = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # It may be gone at any moment; its pid may be another's by then, which the start time tells.
        with suppress(OSError):
            if not _may_be_ours(entry.stat()):
                continue
            # Most are not: their start time is not needed.
            if not _has(int(entry.name), wanted):
                continue
            process = ProcessId.of(int(entry.name))
            if not _has(process.local_pid, wanted):
                continue
            command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if process.is_running():
                found.append(RunProcess(process, process.state(), command))
    return tuple(sorted(found, key=lambda one: one.process.pid))


def _has(pid: int, variable: bytes) -> bool:
    return variable in read_environment(pid).split(b"\0")


def _may_be_ours(status: os.stat_result) -> bool:
    """Whether a process, by its folder in /proc, is of this user; for root, of any."""
    return os.geteuid() in (status.st_uid, 0)


def kill_processes(run: str) -> tuple[RunProcess, ...]:
    """SIGKILL to all of them, without waiting; returns them. A stopped process dies of it like any other."""
    found = processes_of(run)
    for one in found:
        one.process.signal(signal.SIGKILL)
    return found


def end_processes(run: str, timeout_seconds: float = END_TIMEOUT_SECONDS) -> tuple[RunProcess, ...]:
    """Kill them, and those that they start meanwhile, until none is left; returns those that had to be."""
    ended: dict[ProcessId, RunProcess] = {}
    deadline = time.monotonic() + timeout_seconds
    while found := kill_processes(run):
        ended |= {one.process: one for one in found}
        if time.monotonic() > deadline:
            break
        time.sleep(_END_POLL_SECONDS)
    return tuple(ended.values())
