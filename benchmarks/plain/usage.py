"""What a process costs, read from outside or from inside: CPU time and peak memory. Linux only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process in bytes: the peak of all of it, and how much is anonymous, of files, shared."""

    peak_bytes: int
    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int

    @property
    def peak_anonymous_bytes(self) -> int:
        """The peak without files and shared memory: libraries stay mapped once they were used, so they are in it."""
        return self.peak_bytes - self.file_bytes - self.shared_bytes


def read_memory(pid: int | str = "self") -> Memory:
    """Resident memory of process `pid` as of now.

    Raises:
        ProcessLookupError: it is gone.
    """
    try:
        return parse_status(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    except (FileNotFoundError, KeyError):
        # A zombie's status has no memory in it.
        raise ProcessLookupError(f"no process {pid}") from None


def parse_status(text: str) -> Memory:
    """Read proc_pid_status(5).

    Raises:
        KeyError: it says nothing of memory.
    """
    lines = (line.partition(":") for line in text.splitlines())
    fields: Mapping[str, str] = {key: value for key, _, value in lines}
    names = ("VmHWM", "RssAnon", "RssFile", "RssShmem")
    return Memory(*(int(fields[name].split()[0]) * _KIB for name in names))


def cpu_seconds_of(pid: int) -> float:
    """CPU seconds of all threads of process `pid` so far, those that ended included, to the nanosecond.

    Raises:
        ProcessLookupError: it is gone.
    """
    # What clock_getcpuclockid(3) makes of a pid; /proc/PID/stat only counts in ticks of 10 ms.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        raise ProcessLookupError(f"no process {pid}") from None
