"""The exit code of a process that is not our child, by a pidfd. Linux only."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from mecefo_runtime.system.process import ProcessId

# linux/pidfd.h: struct pidfd_info in its first version (mask, cgroup, eleven ids, exit code), and
# _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info). Of ends it tells since Linux 6.15, after the parent has been told.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 0xC040FF0B
_INFO_EXIT = 1 << 3
# How soon parents usually ask after their children: torchrun every 0.1 s.
REAPED_SECONDS = 0.5
_EXIT_POLL_SECONDS = 0.01


async def exit_of(process: ProcessId) -> int | None:
    """Wait until `process` has ended; returns its exit code, negative for a signal, None where nobody tells.

    Before Linux 6.15 it is told only where the parent leaves the time to look at what is left of the process.
    """
    try:
        descriptor = os.pidfd_open(process.local_pid)
    except ProcessLookupError:
        return None
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        if process.is_running():
            await ended.wait()
        elif process.state() == "gone":
            # The descriptor may be of whoever has the pid by now.
            return None
        loop.remove_reader(descriptor)
        status = _status_of_zombie(process)
        deadline = loop.time() + REAPED_SECONDS
        while status is None and loop.time() < deadline:
            status = _status_of_reaped(descriptor)
            if status is None:
                await asyncio.sleep(_EXIT_POLL_SECONDS)
        return None if status is None else os.waitstatus_to_exitcode(status)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _status_of_zombie(process: ProcessId) -> int | None:
    """The last field of /proc/PID/stat (proc(5)), as long as the parent has not been told."""
    with suppress(OSError):
        text = Path(f"/proc/{process.local_pid}/stat").read_text(encoding="utf-8")
        if process.state() == "Z":
            return int(text.split()[-1])
    return None


def _status_of_reaped(descriptor: int) -> int | None:
    asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError:
        # An older kernel.
        return None
    told = _INFO.unpack(asked)
    return int(told[-1]) if told[0] & _INFO_EXIT else None
