"""Processes by pid and start time, and how none of them outlives its parent. Linux only."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mecefo_runtime.system.host import ForeignPid, Host, this_host

_PR_SET_PDEATHSIG = 1
_PF_KTHREAD = 0x00200000
_PR_SET_NAME = 15
# /proc/PID/stat, counted from the state, which follows the command name in parentheses (proc(5)).
_FLAGS_FIELD = 6
_START_TIME_FIELD = 19
_LEAST_SHARE = 19
# Weight 110 beside 1024 (sched(7)).
_SMALL_SHARE = 10
_DEAD_STATES = frozenset("ZX")
_EXEC_TIMEOUT_SECONDS = 1.0
_EXEC_POLL_SECONDS = 0.001
# glibc has no function for it before 2.41.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class ForeignProcess(RuntimeError):
    """A look at, or an act on, a process of another host or of an earlier boot of this host (`code`).

    The process that has its pid here is another one.
    """

    def __init__(self, process: ProcessId) -> None:
        here = this_host()
        is_rebooted = process.host.name == here.name and process.host.boot != here.boot
        self.process = process
        self.code: Literal["other_host", "other_boot"] = "other_boot" if is_rebooted else "other_host"
        where = f"an earlier boot of {here}" if is_rebooted else f"{process.host}, and this is {here}"
        super().__init__(f"pid {process.pid} is a process of {where}")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process and no other: a recycled pid has another start time (clock ticks since boot).

    Both numbers are valid on its `host` only. On another host, each look at it or act on it raises ForeignProcess.
    """

    pid: int
    start_ticks: int
    host: Host = field(default_factory=this_host)

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has `pid` now.

        Raises:
            ProcessLookupError: none has.
        """
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(fields[_START_TIME_FIELD]))

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host, since this boot."""
        return self.host.is_here

    @property
    def local_pid(self) -> int:
        """Its pid, to look at it or act on it; `pid` itself is for display and storage.

        Raises:
            ForeignProcess: it is a process of another host or boot.
        """
        if not self.host.is_here:
            raise ForeignProcess(self)
        return self.pid

    @property
    def event_pid(self) -> int:
        """Its pid as events have it: that of another host equals no pid of this one."""
        return self.pid if self.host.is_here else ForeignPid(self.pid, self.host)

    def is_running(self) -> bool:
        """Whether it is in the process table and not dead; a zombie is dead."""
        fields = _stat(self.local_pid)
        return (
            fields is not None and fields[0] not in _DEAD_STATES and int(fields[_START_TIME_FIELD]) == self.start_ticks
        )

    def state(self) -> str:
        """Its state in the process table (`R`, `S`, `T`, `Z`...), or `gone`."""
        fields = _stat(self.local_pid)
        if fields is None or int(fields[_START_TIME_FIELD]) != self.start_ticks:
            return "gone"
        return fields[0]

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone already.

        By pidfd, opened before the start time is checked: the pid cannot be recycled in between.
        """
        try:
            descriptor = os.pidfd_open(self.local_pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_running():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def read_environment(pid: int) -> bytes:
    """The environment with which the process was started, as in environ(7), each variable with a zero byte behind it.

    Whoever starts a process goes on before the kernel has put its environment in place, on a busy machine long before.
    So of one that has neither arguments nor an environment yet, it is waited for.

    Raises:
        OSError: it is gone, or not ours to read.
    """
    path = Path(f"/proc/{pid}/environ")
    deadline = time.monotonic() + _EXEC_TIMEOUT_SECONDS
    while not (environment := path.read_bytes()) and time.monotonic() < deadline:
        if not _is_being_started(pid):
            # It may have been put in place between the two looks.
            return path.read_bytes()
        time.sleep(_EXEC_POLL_SECONDS)
    return environment


def _is_being_started(pid: int) -> bool:
    fields = _stat(pid)
    if fields is None or fields[0] in _DEAD_STATES or int(fields[_FLAGS_FIELD]) & _PF_KTHREAD:
        return False
    return not Path(f"/proc/{pid}/cmdline").read_bytes()


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent dies, however it dies; at once if that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def ask_for_short_slices(slice_seconds: float) -> bool:
    """Ask the scheduler to run this thread, and those it starts, soon after they wake up; returns whether it agreed.

    A shorter slice means an earlier deadline, not a larger share, and needs no privilege. Linux 6.12 and newer
    (EEVDF, sched_setattr(2) with sched_runtime); older ones take it and do nothing.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    # struct sched_attr: size, policy (SCHED_OTHER), flags, nice, priority, runtime, deadline, period.
    attributes = struct.pack("<IIQiIQQQ", 48, 0, 0, os.nice(0), 0, round(slice_seconds * 1e9), 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.create_string_buffer(attributes, 48), 0) == 0)


def begin_session(*, is_idle: bool = False) -> None:
    """Make this process the leader of a new session.

    `is_idle`: all that is in it has what others leave of the CPU.
    """
    os.setsid()
    if is_idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _set_session_nice(os.getpid(), _LEAST_SHARE)


def give_way() -> None:
    """Have beside others a tenth of what each of them has of the CPU, with all threads that there are: it does come on.

    Linux shares the CPU among sessions first (autogroups, sched(7)), so that the session, which this process must lead,
    has to give way, too.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            nice = os.getpriority(os.PRIO_PROCESS, int(thread.name)) + _SMALL_SHARE
            os.setpriority(os.PRIO_PROCESS, int(thread.name), min(nice, _LEAST_SHARE))
    _set_session_nice(os.getpid(), _SMALL_SHARE)


def _set_session_nice(pid: int, nice: int) -> None:
    """Where the kernel has no autogroups, there is nothing to set; EAGAIN: too often in too short a time."""
    with suppress(FileNotFoundError, BlockingIOError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="utf-8")


def leave_idle_priority(pid: int) -> bool:
    """Give all threads of the process `pid`, if it is there, the normal priority; False: that takes a privilege."""
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
        _set_session_nice(pid, 0)
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True


def set_name(name: str) -> None:
    """Name this process as `ps -o comm` and `top` show it (15 bytes)."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def start_child(name: str, log: Path, run: Callable[[], int]) -> ProcessId:
    """Fork a child that runs `run` with its output in `log`, dies with this process, and exits with what `run` returns.

    A fork and no exec: the child has torch imported already. The caller must have no other threads.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return ProcessId.of(pid)
    code = 1
    try:
        die_with_parent(parent)
        set_name(name)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        leave_out_of_collections()
        code = run()
    except SystemExit as exit_request:
        code = exit_request.code if isinstance(exit_request.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # Not sys.exit: the parent's exit handlers are not the child's to run.
        os._exit(code)


def leave_out_of_collections() -> None:
    """What this process has by now stays: Python's collector is not to look through it again and again.

    With torch imported each full collection takes about 130 ms, in which no thread runs.
    """
    gc.freeze()


def run_apart(compute: Callable[[], str]) -> str:
    """What `compute` returns, from a forked child: what it allocates is gone with it. The caller has no other threads.

    Raises:
        RuntimeError: the child failed; why stands in this process's standard error.
    """
    parent = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent(parent)
            os.close(reader)
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                pipe.write(compute())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        raise RuntimeError(f"a computation in a process of its own ended with exit code {code}")
    return text


def keep_only(descriptors: Iterable[int]) -> None:
    """Close every descriptor but the standard ones and `descriptors`: what a fork inherited is the parent's."""
    kept = {0, 1, 2, *descriptors}
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in kept:
            with suppress(OSError):
                os.close(int(entry.name))
