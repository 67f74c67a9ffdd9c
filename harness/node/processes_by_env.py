"""Finds processes by a variable in their environment, from /proc. Linux only."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from chaos.host.run_processes import processes_of
from mecefo_runtime.system.process import ProcessId, read_environment

_LISTENING = "0A"


def processes_of_run(run: str) -> list[ProcessId]:
    """Every running process of this user that was started with the name of the run, stopped ones included."""
    return [one.process for one in processes_of(run)]


def session_processes(leader: ProcessId) -> list[ProcessId]:
    """Every running process of the session that `leader` began, whatever became of their environment, and it itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            process = ProcessId.of(int(entry.name))
            if os.getsid(process.local_pid) != leader.local_pid or not process.is_running():
                continue
            if process.local_pid == leader.local_pid and process != leader:
                # Its number has been given to another one, and so has that of its session.
                return []
            found.append(process)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which the process was started; empty when it is gone or not ours to read."""
    try:
        raw = read_environment(pid)
    except OSError:
        return {}
    pairs = (part.decode(errors="replace").partition("=") for part in raw.split(b"\0") if part)
    return {name: value for name, _, value in pairs}


def store_of(processes: Collection[ProcessId]) -> ProcessId | None:
    """Which of a job's `processes` has its store: who listens on their MASTER_PORT; None where none does."""
    ports = {environment_of(process.local_pid).get("MASTER_PORT", "") for process in processes} - {"", "0"}
    for port in sorted(port for port in ports if port.isdecimal()):
        if (process := listener_on(int(port), processes)) is not None:
            return process
    return None


def listener_on(port: int, processes: Collection[ProcessId]) -> ProcessId | None:
    """Which of `processes` listens on the TCP port; None when none of them does."""
    for process in processes:
        # Of its own network, which need not be ours.
        tables = (f"/proc/{process.local_pid}/net/{table}" for table in ("tcp", "tcp6"))
        inodes = {f"socket:[{inode}]" for table in tables for inode in _listening_inodes(table, port)}
        with suppress(OSError):
            for descriptor in Path(f"/proc/{process.local_pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return process
    return None


def _listening_inodes(table: str, port: int) -> list[str]:
    """Inodes of the sockets that listen on `port`, from a table as /proc/net/tcp is one (proc(5))."""
    try:
        lines = Path(table).read_text(encoding="utf-8").splitlines()[1:]
    except OSError:
        return []
    rows = (line.split() for line in lines)
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
